"""Edits of tensor maps: their order before copies that use the map, and the memory of maps.

TMA reads maps through a proxy of its own, and an edit is a plain write. Between the two there must
be a release, a barrier and an acquire (PTX ISA: fence.proxy.tensormap).
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from bodies import chosen

from tmaasync import EmulatedFault, EmulatedRace, Kernel, TMATensorTileArray, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    TensorMap scratch;
    SharedMemBarrier full;
};
extern "C" __device__ const int edited_shared_bytes = sizeof(SharedMemory);

__device__ void load(const Tile& tile, SharedMemory& shared) {
    shared.full.expect_bytes(Tile::kBytes);
    tile.async_copy(shared.tile, shared.full, {0, 0});
}

extern "C" __global__ void edited(TMATensorTileArray<Tile> tiles, float* array, int what) {
    auto& shared = dynamic_shared<SharedMemory>();
    Tile& tile = tiles.at(0);
    Tile& other = tiles.at(1);
    auto& scratch = shared.scratch;
    const int thread = threadIdx.x;
    (void)other, (void)scratch;
    if (thread == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
BODIES
}
"""
EDIT = "tile.replace_tensormap_global_address_in_gmem(array);"
SHARED_EDIT = (
    "tile.smem_tensormap_init(scratch); "
    "tile.replace_tensormap_global_address_in_shared_mem(scratch, array);"
)
RELEASE, ACQUIRE = "tile.tensormap_fence_release();", "tile.tensormap_fence_acquire();"
COPY = "if (thread < 32) tile.tensormap_cp_fence_release(scratch);"
LOAD = "load(tile, shared);"
STORE = "tile.async_store(shared.tile, {0, 0}); commit_group();"
WAIT = "shared.full.wait(0);"
PREFETCH = "tile.prefetch({0, 0});"
OTHER_EDIT = EDIT.replace("tile.", "other.")
OTHER_ACQUIRE = ACQUIRE.replace("tile.", "other.")

ORDERED = {
    "by one thread": f"if (thread == 0) {{ {EDIT} {RELEASE} {ACQUIRE} {LOAD} }} {WAIT}",
    "in one call": "if (thread == 0) { "
    f"tile.edit_in_gmem([&](auto map) {{ map.replace_global_address(array); }}); {LOAD} }} {WAIT}",
    "by a warp in one call": "if (thread < 32) tile.edit_in_shared_mem(scratch, [&](auto map) "
    f"{{ map.replace_global_address(array); }}); if (thread == 0) {LOAD} {WAIT}",
    "acquired by another thread": f"if (thread == 40) {{ {EDIT} {RELEASE} }} __syncthreads(); "
    f"if (thread == 0) {{ {ACQUIRE} {LOAD} }} {WAIT}",
    "through the array": f"if (thread == 40) {{ {EDIT} {RELEASE} }} __syncthreads(); "
    f"if (thread == 0) load(tiles[0], shared); {WAIT}",
    "in shared memory, step by step": f"if (thread == 0) {{ {SHARED_EDIT} }} __syncwarp(); {COPY} "
    f"__syncthreads(); if (thread == 40) {{ {ACQUIRE} {LOAD} }} {WAIT}",
    "after the load has landed": f"if (thread == 0) {LOAD} {WAIT} "
    f"if (thread == 40) {{ {EDIT} {RELEASE} }}",
    "acquired for a prefetch": (
        f"if (thread == 0) {{ {EDIT} {RELEASE} {ACQUIRE} {PREFETCH} {EDIT} }}"
    ),
    "acquired after its own prefetch": (
        f"if (thread == 0) {{ {EDIT} {RELEASE} tile.prefetch_descriptor(); {ACQUIRE} {LOAD} }} "
        f"{WAIT}"
    ),
    "two maps released at once": (
        f"if (thread == 0) {{ {EDIT} {OTHER_EDIT} {RELEASE} {OTHER_ACQUIRE} {ACQUIRE} {LOAD} }} "
        f"{WAIT}"
    ),
    "another map edited": f"if (thread == 0) {{ {OTHER_EDIT} {LOAD} }} {WAIT}",
    "after the store has read": f"if (thread == 0) {{ {LOAD} {WAIT} {STORE} wait_group_read<0>(); "
    f"{EDIT} {RELEASE} wait_group<0>(); }}",
}
STALE, BUSY = r"tensormap_fence_acquire\(\)", "a copy that uses the map may still be in flight"
RACES = {
    "no fence": (f"if (thread == 0) {{ {EDIT} {LOAD} }} {WAIT}", STALE),
    "no acquire": (f"if (thread == 0) {{ {EDIT} {RELEASE} {LOAD} }} {WAIT}", STALE),
    "no release": (f"if (thread == 0) {{ {EDIT} {ACQUIRE} {LOAD} }} {WAIT}", STALE),
    "acquired before": (f"if (thread == 0) {{ {ACQUIRE} {EDIT} {RELEASE} {LOAD} }} {WAIT}", STALE),
    "released before": (f"if (thread == 0) {{ {RELEASE} {EDIT} {ACQUIRE} {LOAD} }} {WAIT}", STALE),
    "a fence of the async proxy": (
        f"if (thread == 0) {{ {EDIT} ptx::fence_proxy_async_global(); {LOAD} }} {WAIT}",
        STALE,
    ),
    "a store": (f"if (thread == 0) {{ {LOAD} {WAIT} {EDIT} {STORE} wait_group<0>(); }}", STALE),
    "acquired too early": (
        (
            f"if (thread == 0) {{ {ACQUIRE} }} if (thread == 40) {{ {EDIT} {RELEASE} }} "
            f"__syncthreads(); if (thread == 0) {LOAD} {WAIT}"
        ),
        STALE,
    ),
    "another map acquired": (
        (f"if (thread == 0) {{ {EDIT} {OTHER_EDIT} {RELEASE} {OTHER_ACQUIRE} {LOAD} }} {WAIT}"),
        STALE,
    ),
    "a prefetch": (f"if (thread == 0) {{ {EDIT} {RELEASE} {PREFETCH} }}", STALE),
    "copied and not acquired": (
        f"if (thread == 0) {{ {SHARED_EDIT} }} __syncwarp(); {COPY} if (thread == 0) {LOAD} {WAIT}",
        STALE,
    ),
    "copied without __syncwarp": (
        (
            f"if (thread == 0) {{ {SHARED_EDIT} }} {COPY} if (thread == 0) {{ {ACQUIRE} {LOAD} }} "
            f"{WAIT}"
        ),
        "no barrier orders the two|which nothing has written",
    ),
    "no barrier": (
        f"if (thread == 40) {{ {EDIT} {RELEASE} }} if (thread == 0) {{ {ACQUIRE} {LOAD} }} {WAIT}",
        f"no barrier orders the two|{BUSY}",
    ),
    "edited before the load has landed": (
        f"if (thread == 0) {{ {LOAD} {EDIT} {RELEASE} }} {WAIT}",
        BUSY,
    ),
    "edited before the store has read": (
        f"if (thread == 0) {{ {LOAD} {WAIT} {STORE} {EDIT} {RELEASE} wait_group<0>(); }}",
        BUSY,
    ),
}


REACHED = {
    "a map": f"if (thread == 0) {{ {LOAD} {WAIT} array[0] = tiles.at(0).map.words[0] != 0; }}",
    "after the array": "if (thread == 0) array[8 * 32] = 1;",
    "after the maps": "if (thread == 0) array[0] = float(tiles.tiles[2].map.words[0]);",
}
BODIES = {
    **{f"ordered: {name}": body for name, body in ORDERED.items()},
    **{name: body for name, (body, _) in RACES.items()},
    **REACHED,
}


def run(name: str) -> None:
    array = np.ones((8, 32), np.float32)
    tiles = TMATensorTileArray([create_tma_tile(array, (8, 32))] * 2)
    text = SOURCE.replace("BODIES", chosen(BODIES.values()))
    kernel = Kernel(text, "edited", types={"Tile": tiles[0]})
    kernel(1, 64, (tiles, array, [*BODIES].index(name)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ORDERED)
def test_an_edit_that_is_fenced_is_no_race(name: str) -> None:
    for policy in get_args(Policy)[:2]:
        with scheduled(policy, seed=5):
            run(f"ordered: {name}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", RACES)
def test_an_edit_that_is_not_is_a_race_with_its_remedy(name: str) -> None:
    _, remedy = RACES[name]

    for policy in get_args(Policy)[:2]:
        with (
            scheduled(policy, seed=5),
            pytest.raises((EmulatedRace, EmulatedFault), match=remedy) as caught,
        ):
            run(name)
        assert "kernel.cu:" in str(caught.value)


# --- where maps point -------------------------------------------------------------------------


def test_maps_and_their_arrays_are_within_reach_and_nothing_else_is() -> None:
    run("a map")

    for name in ("after the array", "after the maps"):
        with pytest.raises(EmulatedFault, match="lies in none of the launch's arrays"):
            run(name)


MOVES_A_MAP = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int moved_shared_bytes = sizeof(SharedMemory);

// Moves the map to to[0], or else acquires what an earlier launch left, and loads.
extern "C" __global__ void moved(TMATensorTileArray<Tile> tiles, void* const* to, float* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.full.init(1);
    fence_barrier_init();
    Tile& tile = tiles.at(0);
    if (to[0]) {
        tile.edit_in_gmem([&](auto map) { map.replace_global_address(to[0]); });
    } else {
        tile.tensormap_fence_acquire();
    }
    shared.full.expect_bytes(Tile::kBytes);
    tile.async_copy(shared.tile, shared.full, {0, 0});
    shared.full.wait(0);
    for (int i = 0; i < 8 * 32; ++i) out[i] = shared.tile.data()[i];
}
"""


def test_a_map_may_be_moved_to_an_array_that_no_argument_names() -> None:
    first, other = np.ones((8, 32), np.float32), np.full((8, 32), 2, np.float32)
    tiles = TMATensorTileArray([create_tma_tile(first, (8, 32))])
    kernel = Kernel(MOVES_A_MAP, "moved", types={"Tile": tiles[0]})
    out = np.zeros((8, 32), np.float32)

    for place in (other.ctypes.data, 0):  # the next launch finds the map as this one left it
        out[:] = 0
        kernel(1, 1, (tiles, np.array([place], np.uint64), out))
        assert (out == 2).all()


# --- state tokens -----------------------------------------------------------------------------

TOKEN = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
__shared__ SharedMemBarrier barrier;

extern "C" __global__ void token(int rounds, int* ended) {
    barrier.init(1);
    fence_barrier_init();
    const u64 state = barrier.arrive();
    for (int round = 0; round < rounds; ++round) {
        barrier.wait(round & 1);
        barrier.arrive();
    }
    ended[0] = barrier.test_wait_state(state);
}
"""


def test_a_token_is_good_in_its_own_phase_and_the_next() -> None:
    kernel, ended = Kernel(TOKEN, "token"), np.zeros(1, np.int32)
    kernel(1, 1, (0, ended))
    assert ended[0]

    with pytest.raises(EmulatedFault, match="a state token of phase 0 is tested in phase 2"):
        kernel(1, 1, (1, ended))
