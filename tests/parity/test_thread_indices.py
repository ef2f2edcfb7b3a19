"""Which thread, lane, warp and warpgroup a thread is, and who is elected, in any block."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel

EXTENTS = (0, 1, 32, 33, 64, 96, 100, 128, 256)

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct Indices {
    u32 thread, lane, warp, warpgroup, elected;
};

template <int... kExtents>
__device__ u32 elections() {
    u32 elected = 0, number = 0;
    ((elected |= elect_one<kExtents, SIDES>() << number++), ...);
    return elected;
}

extern "C" __global__ void indices(Indices* out) {
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[thread] = {
        thread_index<SIDES>(), lane_index<SIDES>(), warp_index<SIDES>(), warpgroup_index<SIDES>(),
        elections<EXTENTS>()
    };
}
"""
INDICES = np.dtype([(name, "<u4") for name in ("thread", "lane", "warp", "warpgroup", "elected")])


@functools.cache
def kernel(sides: int) -> Kernel:
    text = SOURCE.replace("EXTENTS", ", ".join(map(str, EXTENTS)))
    return Kernel(text, "indices", constants={"SIDES": sides})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "block",
    [(7,), (96,), (1024,), (5, 7), (32, 4), (3, 100), (64, 16), (2, 3, 17), (7, 5, 11), (4, 4, 64),
     (33, 1, 3)],
    ids=str,
)  # fmt: skip
def test_every_thread_knows_its_index(backend: Any, block: tuple[int, ...]) -> None:
    threads = math.prod(block)
    held = backend.array(np.zeros(threads * INDICES.itemsize, np.uint8))

    kernel(len(block))(1, block, (held,))

    seen = backend.host(held).view(INDICES)
    number = np.arange(threads)
    assert np.array_equal(seen["thread"], number)
    assert np.array_equal(seen["lane"], number % 32)
    assert np.array_equal(seen["warp"], number // 32)
    assert np.array_equal(seen["warpgroup"], number // 128)
    warps = -(-threads // 32)
    for bit, extent in enumerate(EXTENTS):
        step = -(-extent // 32) if extent else warps
        elected = number[(seen["elected"] >> bit & 1).astype(bool)]
        # One thread of each warp that begins a group, whichever.
        assert (elected // 32).tolist() == list(range(0, warps, step)), extent
