"""Groups of lanes of which some are absent, and groups that the CPU back end lacks."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import CompileError, EmulatedFault, Kernel

SOURCE = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

extern "C" __global__ void count(int* x) {
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const auto part = cg::binary_partition(warp, threadIdx.x & 1);
    x[threadIdx.x] = cg::reduce(part, 1, cg::plus<int>());
}

extern "C" __global__ void count_coalesced(int* x) {
    const auto part = cg::binary_partition(cg::coalesced_threads(), threadIdx.x % 5 == 0);
    x[threadIdx.x] = cg::reduce(part, 1, cg::plus<int>());
}
"""
LARGE = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void meet(int* x) {
    __shared__ cg::block_tile_memory<128> memory;
    x[threadIdx.x] = 0;
}
"""


def test_a_partition_of_absent_lanes_is_a_fault() -> None:
    x = np.zeros(32, np.int32)
    kernel = Kernel(SOURCE, "count")
    kernel(1, 32, (x,))
    assert (x == 16).all()
    with pytest.raises(EmulatedFault, match=r"binary_partition: lanes of the parent have ended"):
        kernel(1, 20, (x,))


def test_coalesced_threads_of_a_part_of_a_warp_are_partitioned() -> None:
    x = np.zeros(20, np.int32)
    Kernel(SOURCE, "count_coalesced")(1, 20, (x,))
    np.testing.assert_array_equal(x, np.where(np.arange(20) % 5 == 0, 4, 16))


def test_tiles_of_several_warps_are_refused_by_name() -> None:
    with pytest.raises(CompileError, match=r"block_tile_memory: tiles of several warps"):
        Kernel(LARGE, "meet")(1, 128, (np.zeros(128, np.int32),))
