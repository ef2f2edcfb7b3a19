"""Rules of tensor memory that a launch may relax, and those that are only noted."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import numpy as np
import pytest
from emulate.tcgen05 import test_copies, test_pair_gemm

from tmaasync import Kernel, emulate

SOURCE = """
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

extern "C" __global__ void breaks(u32 what, u32* out) {
    __shared__ u32 base;
    __shared__ u64 done;
    const u32 warp = threadIdx.x / 32, barrier = static_cast<u32>(__cvta_generic_to_shared(&done));
    const u32 place = static_cast<u32>(__cvta_generic_to_shared(&base));
    if (threadIdx.x == 0) mbarrier_init(barrier, what == 2 ? 2 : 1);
    if (warp == 0) {
        tcgen05_alloc(place, 32);
        if (what == 4) {
            tcgen05_dealloc(0, 32);
            tcgen05_alloc(place, 64);
        }
    }
    __syncthreads();
    const u32 own = base + (warp % 4 * 32 << 16);
    u32 held[1] = {threadIdx.x};
    if (what != 0 && warp < 4) {
        tcgen05_st<Tcgen05Shape::k32x32b>(own, held);
        tcgen05_wait_st();
    }
    if (what == 5) __syncthreads();
    if (what == 1) {
        const u32 other = base + ((warp + 1) * 32 << 16);
        tcgen05_ld<Tcgen05Shape::k32x32b>(held, other);
    } else {
        tcgen05_ld<Tcgen05Shape::k32x32b>(held, own);
    }
    tcgen05_wait_ld();
    out[threadIdx.x] = held[0];
    if (what == 2 && threadIdx.x < 2) tcgen05_commit(barrier);
    if (what == 3 && threadIdx.x == 0) tcgen05_commit(barrier);
    if (what == 2) mbarrier_try_wait_parity(barrier, 0);
    __syncthreads();
    if (warp == 0) tcgen05_dealloc(base, what == 4 ? 64 : 32);
}
""".replace(
    "#include <tmaasync/ptx/tcgen05_order.cuh>",
    """#include <tmaasync/ptx/tcgen05_order.cuh>
#include <tmaasync/ptx/mbarrier.cuh>""",
)


@functools.cache
def kernel() -> Kernel:
    return Kernel(SOURCE, "breaks", arch="sm_100a")


def run(what: int, block: int = 64) -> None:
    kernel()(1, block, (what, np.zeros(block, np.uint32)))


WHOLE_KERNELS: dict[str, Callable[[], object]] = {
    "unwritten-tensor-memory": lambda: run(0),
    "tensor-memory-lanes": lambda: run(1),
    "tcgen05-by-lanes": lambda: run(2),
    "tcgen05-at-exit": lambda: run(3),
    "tcgen05-fence": lambda: run(5, 160),
    "tcgen05-pair-start": test_pair_gemm.allocate_early,
    "tcgen05-proxy-fence": lambda: test_copies.moved(
        1, *test_copies.ROWS[1], test_copies.DEFECTS[0]
    ),
}
NOTED = {"tensor-memory-growth"}
"""Rules that no launch has to relax."""


def test_a_larger_allocation_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tmaasync"):
        run(4)

    (message,) = [one for one in caplog.messages if "[rule:" in one]
    assert "asks for more columns than the one before (once, first at kernel.cu:" in message
    assert "[rule: tensor-memory-growth]" in message


CONTENDED = """
#include <tmaasync/ptx/tcgen05_alloc.cuh>
#include <tmaasync/ptx/tcgen05_ld_st.cuh>
#include <tmaasync/ptx/tcgen05_order.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

extern "C" __global__ void contended(u32* out) {
    __shared__ u32 bases[4];
    const u32 warp = threadIdx.x / 32;
    for (u32 round = 0; round < 3; ++round) {
        tcgen05_alloc(static_cast<u32>(__cvta_generic_to_shared(&bases[warp])), 256);
        __syncwarp();
        const u32 base = bases[warp], own = base + (warp * 32 << 16);
        u32 held[1] = {threadIdx.x + round};
        tcgen05_st<Tcgen05Shape::k32x32b>(own, held);
        tcgen05_wait_st();
        tcgen05_ld<Tcgen05Shape::k32x32b>(held, own);
        tcgen05_wait_ld();
        out[threadIdx.x] = held[0];
        __syncwarp();
        tcgen05_dealloc(base, 256);
    }
}
"""


def test_an_allocation_waits_until_another_warp_frees_its_columns() -> None:
    kernel = Kernel(CONTENDED, "contended", arch="sm_100a")
    for seed in range(20):
        out = np.zeros(128, np.uint32)
        with emulate.scheduled("adversarial" if seed % 2 else "random", seed=seed, races=True):
            kernel(1, 128, (out,))
        np.testing.assert_array_equal(out, np.arange(128) + 2)
