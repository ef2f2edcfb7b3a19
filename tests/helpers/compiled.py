"""Kernels that are compiled for the chip, and what the compiler reports of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from tmaasync import Kernel, _arrays
from tmaasync.ops._gemm.config import ScaledTileConfig
from tmaasync.ops._gemm.tiles import scaled_gemm_kernel, scaled_gemm_tiles

_R2UR, _WGMMAS = 0x2CA, (0x9F0, 0x9F3)  # the low 12 bits of sm_90's instructions: HGMMA, QGMMA


def assert_clean(
    kernel: Kernel, spill_bytes: int = 0, arch: str | None = None, stack_bytes: int | None = None
) -> None:
    program = kernel.compile(arch)
    entry = program.entries[kernel.name]

    assert program.warnings == ()
    assert entry.spill_bytes <= spill_bytes
    assert entry.stack_bytes <= (min(spill_bytes, 8) if stack_bytes is None else stack_bytes)
    assert entry.shared_bytes is not None
    assert entry.shared_bytes <= 232448


def moves_between_mmas(kernel: Kernel) -> int:
    """Count the R2UR instructions from the first wgmma to the last.

    They move descriptors to uniform registers, where ptxas does not know that a warp is converged.
    """
    with kernel.compile().path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(f".text.{kernel.name}")
        assert section is not None
        text = section.data()
    codes = [int.from_bytes(text[at : at + 2], "little") & 0xFFF for at in range(0, len(text), 16)]
    mmas = [place for place, code in enumerate(codes) if code in _WGMMAS]
    return codes[mmas[0] : mmas[-1]].count(_R2UR)


def with_a_gpu(*case: Any) -> Any:
    """A case like one that stays, or one that needs fewer registers; it compiles where a GPU is."""
    return pytest.param(*case, marks=pytest.mark.gpu)


FP8_ROWS = np.zeros((8, 256), ml_dtypes.float8_e4m3fn)


def scaled_tiles(config: ScaledTileConfig, output: str, transposed: bool) -> Any:
    scales, out = (
        np.zeros((4, 8), np.float32),
        np.zeros((8, 64), getattr(ml_dtypes, output, output)),
    )
    *operands, c = (_arrays.view(array) for array in (FP8_ROWS, FP8_ROWS, scales, scales, out))
    return scaled_gemm_tiles(operands, c, config, b_scales_transposed=transposed)


def scaled_gemm_with(config: ScaledTileConfig, output: str, transposed: bool) -> Kernel:
    types = [tile.cuda_type for tile in scaled_tiles(config, output, transposed)]
    return scaled_gemm_kernel(types, transposed, config)
