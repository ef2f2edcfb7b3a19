"""Ordinary writes of one block that TMA reads or overwrites in another, with and without fences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bodies import chosen

from tmaasync import EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int handed_shared_bytes = sizeof(SharedMemory);

__device__ void signal(int* flag) { atomicExch(flag, 1); }
__device__ void await(int* flag) { while (atomicAdd(flag, 0) == 0) __nanosleep(20); }

extern "C" __global__ void handed(
    const __grid_constant__ Tile tile, float* array, int* flag, float* out, int what
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x != 0) return;
    shared.full.init(1);
    fence_barrier_init();
    if (blockIdx.x == 0) {
EARLIER
        for (int i = 0; i < 64; ++i) array[i] = i;
WRITER
        signal(flag);
        return;
    }
    await(flag);
READER
}
"""
LOAD = """
    shared.full.expect_bytes(Tile::kBytes);
    tile.async_copy(shared.tile, shared.full, {0, 0});
    shared.full.wait(0);
    out[0] = shared.tile.data()[9];
"""
BULK = LOAD.replace(
    "tile.async_copy(shared.tile, shared.full, {0, 0});",
    "tma_load_1d(array, shared.full, shared.tile.data(), Tile::kBytes);",
)
STORE = """
    for (int i = 0; i < 64; ++i) shared.tile.data()[i] = 2 * i;
    fence_async_view_proxy();
    tile.async_store(shared.tile, {0, 0});
    commit_group();
    wait_group<0>();
    out[0] = 9;
"""
FENCE = "ptx::fence_proxy_async_global();"
WRITTEN = f"{FENCE} __threadfence();"

# Before the write, after it, and what the other block does.
LEGAL = {
    "the writer fences": ("", WRITTEN, f"__threadfence(); {LOAD}"),
    "the reader fences": ("", "__threadfence();", f"__threadfence(); {FENCE} {LOAD}"),
    "a bulk load": ("", WRITTEN, f"__threadfence(); {BULK}"),
    "a store over it": ("", WRITTEN, f"__threadfence(); {STORE}"),
    "an ordinary read": ("", "__threadfence();", "__threadfence(); out[0] = array[9];"),
}
DEFECTS = {
    "no proxy fence": ("", "__threadfence();", f"__threadfence(); {LOAD}"),
    "the fence of shared memory": (
        "",
        "fence_async_view_proxy(); __threadfence();",
        f"__threadfence(); fence_async_view_proxy(); {LOAD}",
    ),
    "a bulk load without a fence": ("", "__threadfence();", f"__threadfence(); {BULK}"),
    "a store without a fence": ("", "__threadfence();", f"__threadfence(); {STORE}"),
    "the writer fences before it writes": (FENCE, "__threadfence();", f"__threadfence(); {LOAD}"),
}
CASES = {**LEGAL, **DEFECTS, "no order": ("", FENCE, LOAD)}
_EARLIER, _WRITERS, _READERS = map(chosen, zip(*CASES.values(), strict=True))
TEXT = SOURCE.replace("EARLIER", _EARLIER).replace("WRITER", _WRITERS).replace("READER", _READERS)


def run(name: str) -> Any:
    array, flag, out = np.zeros((8, 8), np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    tile = create_tma_tile(array, (8, 8))
    kernel = Kernel(TEXT, "handed", types={"Tile": tile})
    kernel(2, 32, (tile, array, flag, out, [*CASES].index(name)))
    return out[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LEGAL)
def test_writes_that_a_fence_makes_visible_are_no_race(name: str) -> None:
    for policy in ("round_robin", "random"):
        with scheduled(policy):
            assert run(name) == 9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DEFECTS)
def test_writes_without_a_proxy_fence_are_a_race_with_its_remedy(name: str) -> None:
    what = "store" if "store" in name else "load"
    match = (
        r"a race on tile\[0\]\[0\] \(global address 0x\w+\):\n"
        r"  block \(0, 0, 0\), thread 0 at kernel.cu:\d+: ordinary write\n"
        rf"  block \(1, 0, 0\), thread 0 at kernel.cu:\d+: TMA {what}\n"
        r".*calls ptx::fence_proxy_async_global\(\)"
    )

    with pytest.raises(EmulatedRace, match=match) as caught:
        run(name)

    lines = TEXT.splitlines()
    assert caught.value.first.source is not None
    assert "array[i] = i;" in lines[int(caught.value.first.source.removeprefix("kernel.cu:")) - 1]


def test_a_write_that_nothing_orders_lacks_more_than_the_fence() -> None:
    with pytest.raises(
        EmulatedRace, match="nothing orders the write before the load, which another"
    ):
        run("no order")
