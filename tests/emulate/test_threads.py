"""CUDA's own words, in a kernel that knows nothing of TMA: what a user writes runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel
from tmaasync.emulate import scheduled

SUMS = """
__device__ float warp_sum(float value) {
    for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
    return value;
}
extern "C" __global__ void sums(const float* x, float* total, unsigned* odd, int n) {
    __shared__ float warps[32];
    extern __shared__ float doubled[];
    const int thread = threadIdx.x + blockDim.x * threadIdx.y;
    const int i = blockIdx.x * blockDim.x * blockDim.y + thread;
    doubled[thread] = i < n ? 2 * x[i] : 0.0f;
    __syncthreads();
    const float sum = warp_sum(doubled[blockDim.x * blockDim.y - 1 - thread]);
    if (thread % 32 == 0) warps[thread / 32] = sum;
    __syncthreads();
    if (thread < 32) {
        const float all = warp_sum(thread < blockDim.x * blockDim.y / 32 ? warps[thread] : 0.0f);
        if (thread == 0) atomicAdd(total, all);
    }
    const unsigned votes = __ballot_sync(0xffffffff, i < n && static_cast<int>(x[i]) % 2);
    if (thread % 32 == 0) atomicAdd(odd, __popc(votes));
}
"""


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_a_block_reduction_with_shuffles_votes_and_atomics(policy: Any) -> None:
    x = np.arange(1000, dtype=np.float32)
    total, odd = np.zeros(1, np.float32), np.zeros(1, np.uint32)

    with scheduled(policy, seed=3):
        Kernel(SUMS, "sums")(5, (64, 4), (x, total, odd, len(x)), shared_mem=1024)

    assert (total[0], odd[0]) == (2 * x.sum(), 500)


PLACES = """
extern "C" __global__ void places(int* out, signed char a, double b, float2 c) {
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
        block * 1000 + thread + a + static_cast<int>(b + c.x * c.y);
}
"""


@pytest.mark.parametrize("cluster", [None, (2, 1, 2)])
def test_every_thread_of_every_block_runs_once_with_its_arguments(cluster: Any) -> None:
    grid, block = (4, 3, 2), (5, 2, 3)
    out = np.full((24, 30), -1, np.int32)
    pair = np.array([(2.0, 3.0)], [("x", np.float32), ("y", np.float32)])[0]

    Kernel(PLACES, "places")(grid, block, (out, -7, 100.5, pair), cluster=cluster)

    assert np.array_equal(out, np.arange(24)[:, None] * 1000 + np.arange(30) - 7 + 106)
