"""The shipped GEMMs of Blackwell compile for their chips without warnings and spills."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tmaasync._source.compile import compile_source
from tmaasync.cli._shipped_kernels import kernels_of
from tmaasync.kernel.observed import SeenKernel

SOURCES = (
    "conv2d_tensor_memory.cu",
    "gemm_tensor_memory.cu",
    "gemm_tensor_memory_epilogue.cu",
    "grouped_gemm_tensor_memory.cu",
    "k_grouped_gemm_tensor_memory.cu",
    "promoted_gemm_tensor_memory.cu",
    "promoted_grouped_gemm_tensor_memory.cu",
    "scaled_gemm_tensor_memory.cu",
    "scaled_grouped_gemm_tensor_memory.cu",
    "swizzle_group_factors.cu",
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SOURCES)
def test_a_gemm_on_tensor_memory_compiles_clean(name: str) -> None:
    check_clean(name, kernels_of(name), "sm_100a", 227 * 1024)


@pytest.mark.parametrize("name", ["scaled_gemm_warps.cu", "scaled_grouped_gemm_warps.cu"])
def test_a_gemm_of_warps_compiles_clean(name: str) -> None:
    check_clean(name, kernels_of(name), "sm_120a", 99 * 1024)


def check_clean(name: str, kernels: Sequence[SeenKernel], arch: str, shared_bytes: int) -> None:
    assert kernels
    for one in kernels:
        program = compile_source(one.source, arch)

        entry = program.entries[name.removesuffix(".cu")]
        assert entry.spill_bytes == 0
        assert (entry.shared_bytes or 0) <= shared_bytes
        assert "warning" not in program.log
