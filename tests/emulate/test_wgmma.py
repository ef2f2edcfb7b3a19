"""wgmma with A in registers; both operands in shared memory are tests/parity/test_products.py's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import Kernel, Swizzle, create_tma_tile

SOURCE = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;
using OperandB = WgmmaOperand<BTile, Major::kK>;
constexpr int kColumns = BTile::side(0);

struct SharedMemory {
    BTile::Shared b;
    SharedMemBarrier full;
};
extern "C" __device__ const int multiply_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void multiply(const u32* a, const __grid_constant__ BTile b, float* c) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.full.init(1);
    fence_barrier_init();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.full.expect_bytes(BTile::kBytes);
        b.async_copy(shared.b, shared.full, {0, 0});
    }
    shared.full.wait(0);

    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    float sums[kColumns / 2];
    for (int step = 0; step < 4; ++step) {
        u32 held[4];
        for (int i = 0; i < 4; ++i) {
            held[i] = a[(row + i % 2 * 8) * 32 + step * 8 + pair + i / 2 * 4];
        }
        ptx::wgmma_fence();
        const u64 descriptor = OperandB::descriptor(shared.b, 0) + OperandB::step_offset(step);
        wgmma_rs_atom<BTile::Element>(sums, held, descriptor, step > 0);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<0>();
    }
    for (int i = 0; i < kColumns / 2; ++i) {
        c[(row + i / 2 % 2 * 8) * kColumns + i / 4 * 8 + pair * 2 + i % 2] = sums[i];
    }
}
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_product_with_a_in_registers_is_exact(dtype: str) -> None:
    rng = np.random.default_rng(0)
    kind: Any = getattr(ml_dtypes, dtype, dtype)
    a, b = (rng.integers(-4, 5, (rows, 64)).astype(kind) for rows in (64, 40))
    c = np.full((64, 40), np.nan, np.float32)
    tile = create_tma_tile(b, (40, 64), swizzle=Swizzle.B128)

    Kernel(SOURCE, "multiply", types={"BTile": tile})(1, 128, (a, tile, c))

    assert np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)
