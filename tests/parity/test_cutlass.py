"""A kernel of CuTe's and CUTLASS's parts runs unchanged on either back end, and is searched.

The headers come with the package nvidia-cutlass, or from the folder CUTLASS_INCLUDE.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate
from planted import RACE, Defect, Edit
from planted_choices import choices, choosing

from tmaasync import Kernel, create_tma_tile, emulate
from tmaasync.emulate.launch.schedule import Policy

SOURCE = Path(__file__).with_name("cutlass") / "cutlass_gemm.cu"
PACKAGE = importlib.util.find_spec("cutlass_library")
HEADERS = os.environ.get("CUTLASS_INCLUDE") or (
    PACKAGE and PACKAGE.origin and Path(PACKAGE.origin).parent / "source" / "include"
)
pytestmark = [
    pytest.mark.skipif(not HEADERS, reason="pip install --no-deps nvidia-cutlass"),
    pytest.mark.chips("sm_90a"),
]
M, N, K = 250, 136, 328


EARLY = Defect(
    *("cutlass_gemm", "a stage released before its wgmma is done"),
    (Edit("warpgroup_wait<0>();", "warpgroup_wait<1>();"),),
    RACE,
)


@choosing
def kernel(text: str) -> Kernel:
    assert HEADERS
    return Kernel(text, "cutlass_gemm", include_dirs=[HEADERS])


def on_the_cpu(defect: Defect | None) -> AbstractContextManager[str]:
    """The text of one build for both: g++ takes a quarter of a minute."""
    return choices(SOURCE.read_text(), (EARLY,)).chosen(defect)


def error(gemm: Kernel, array: Callable[[Any], Any], host: Callable[[Any], Any]) -> float:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, K), np.float32).astype(np.float16) for rows in (M, N))
    tiles = [
        create_tma_tile(array(values), (rows, 64), swizzle="128B")
        for values, rows in ((a, 128), (b, 64))
    ]
    out = array(np.full((M, N), np.nan, np.float16))
    stored = create_tma_tile(out, (128, 64), swizzle="128B")
    gemm((-(-N // 128), -(-M // 128)), 384, (*tiles, stored, K))
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    return float(np.abs(host(out).astype(np.float64) - expected).max() / np.abs(expected).max())


def test_a_gemm_of_cutlass_equals_numpy(backend: Any) -> None:
    if not isinstance(backend, Emulate) and "CUTLASS_INCLUDE" not in os.environ:
        pytest.skip("CUTLASS 4.2 does not compile with libcu++ of CUDA 13: set CUTLASS_INCLUDE")
    is_emulated = isinstance(backend, Emulate)
    with on_the_cpu(None) if is_emulated else nullcontext(SOURCE.read_text()) as text:
        assert error(kernel(text), backend.array, backend.host) < 2**-10


def test_no_schedule_of_it_raises() -> None:
    policies: tuple[Policy, ...] = ("random", "adversarial")
    for policy in policies:
        with on_the_cpu(None) as text, emulate.scheduled(policy, seed=1, races=True):
            assert error(kernel(text), np.copy, np.asarray) < 2**-10


def test_a_stage_released_before_its_wgmma_is_done_is_found() -> None:
    line = 1 + SOURCE.read_text().split("cute::gemm(")[0].count("\n")

    with (
        on_the_cpu(EARLY) as text,
        pytest.raises(EARLY.reported, match=rf"kernel\.cu:{line} \(in .*: wgmma"),
        emulate.scheduled(races=True),
    ):
        error(kernel(text), np.copy, np.asarray)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("header", ["arch/mma.h", "arch/wmma.h"])
def test_a_header_that_names_types_of_1_and_4_bits_compiles(header: str) -> None:
    assert HEADERS
    text = f"""#include <cutlass/{header}>
extern "C" __global__ void k(int* x) {{
    cutlass::arch::OpMultiplyAdd named;
    x[threadIdx.x] = sizeof(named) + threadIdx.x;
}}
"""
    x = np.zeros(32, np.int32)
    Kernel(text, "k", include_dirs=[HEADERS])(1, 32, (x,))
    assert (x == 1 + np.arange(32)).all()
