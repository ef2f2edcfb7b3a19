"""Tensor maps in global memory that the host or an earlier launch rewrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays_in_memory import aligned

from tmaasync import EmulatedRace, Kernel, TMATensorTileArray, create_tma_tile, emulate

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int use_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void use(const Tile* maps, float* out, int acquires) {
    auto& shared = dynamic_shared<SharedMemory>();
    const Tile& tile = maps[0];
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        if (acquires) tile.tensormap_fence_acquire();
    }
    __syncthreads();
    if (threadIdx.x == 32) {
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {0, 0});
    }
    shared.full.wait(0);
    for (int i = threadIdx.x; i < 256; i += 64) out[i] = shared.tile.data()[i];
}
extern "C" __global__ void move(Tile* maps, const float* array) {
    if (threadIdx.x == 0) {
        maps[0].replace_tensormap_global_address_in_gmem(array);
        maps[0].tensormap_fence_release();
    }
}
"""
ONES, TWOS = np.ones((8, 32), np.float32), np.full((8, 32), 2, np.float32)


def map_of(array: Any) -> Any:
    return np.frombuffer(create_tma_tile(array, (8, 32)).descriptor, np.uint8)


def aligned_maps() -> Any:
    return aligned(128, np.uint8)


def use(maps: Any, *, acquires: bool = False, expected: float) -> None:
    kernel = Kernel(SOURCE, "use", types={"Tile": create_tma_tile(ONES, (8, 32))})
    out = np.zeros(256, np.float32)
    with emulate.scheduled(races=True):
        kernel(1, 64, (maps, out, acquires))
    assert (out == expected).all()


def move(maps: Any, array: Any) -> None:
    Kernel(SOURCE, "move", types={"Tile": create_tma_tile(ONES, (8, 32))})(1, 32, (maps, array))


def test_a_map_that_the_host_rewrites_between_launches_must_be_acquired() -> None:
    maps = aligned_maps()
    maps[:] = map_of(ONES)
    use(maps, expected=1)
    use(maps, expected=1)  # unchanged

    maps[:] = map_of(TWOS)
    with pytest.raises(EmulatedRace, match="write before this launch, by the host") as caught:
        use(maps, expected=2)
    assert caught.value.rule == "map-without-acquire"
    assert "tensormap_fence_acquire()" in caught.value.cause

    maps[:] = map_of(ONES)
    use(maps, acquires=True, expected=1)
    use(maps, expected=1)


def test_a_map_that_an_earlier_launch_edited_must_be_acquired() -> None:
    maps = aligned_maps()
    maps[:] = map_of(ONES)
    move(maps, TWOS)
    with pytest.raises(EmulatedRace, match="or by another launch"):
        use(maps, expected=2)
    move(maps, ONES)
    use(maps, acquires=True, expected=1)


def test_the_rule_can_be_relaxed() -> None:
    maps = aligned_maps()
    for array, value in ((ONES, 1), (TWOS, 2)):
        maps[:] = map_of(array)
        with emulate.scheduled(tolerate={"map-without-acquire"}):
            use(maps, expected=value)


def test_new_memory_at_the_same_address_is_another_map() -> None:
    for array, value in 8 * ((ONES, 1), (TWOS, 2)):
        maps = aligned_maps()
        maps[:] = map_of(array)
        use(maps, expected=value)
        del maps


PARAMETER = SOURCE.replace("const Tile* maps,", "const __grid_constant__ Tile tile,").replace(
    "    const Tile& tile = maps[0];\n", ""
)


def test_a_parameter_needs_no_fence() -> None:
    for array, value in ((ONES, 1), (TWOS, 2)):
        tile = create_tma_tile(array, (8, 32))
        out = np.zeros(256, np.float32)
        with emulate.scheduled(races=True):
            Kernel(PARAMETER, "use", types={"Tile": tile})(1, 64, (tile, out, False))
        assert (out == value).all()


def test_an_array_of_tiles_acquires_the_one_that_is_used() -> None:
    source = SOURCE.replace("const Tile* maps,", "TMATensorTileArray<Tile> maps,")
    tiles = TMATensorTileArray([create_tma_tile(ONES, (8, 32))])
    kernel = Kernel(
        source.replace("void move(Tile* maps,", "void move(Tile* maps,"),
        "use",
        types={"Tile": tiles[0]},
    )
    for array, value in ((ONES, 1), (TWOS, 2), (ONES, 1)):
        tiles[0] = create_tma_tile(array, (8, 32))
        out = np.zeros(256, np.float32)
        with emulate.scheduled(races=True):
            kernel(1, 64, (tiles, out, False))
        assert (out == value).all()
