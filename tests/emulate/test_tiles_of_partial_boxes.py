"""Tiles that their boxes do not divide: they are loaded, and not stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import CompileError, Kernel, create_tma_tile

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void move(const __grid_constant__ Tile tile, unsigned char* landed) {
    __shared__ Tile::Shared x;
    __shared__ SharedMemBarrier full;
    if (threadIdx.x == 0) {
        full.init(1);
        fence_barrier_init();
        full.expect_bytes(Tile::kBytes);
        tile.async_copy(x, full, {0, 0});
        full.wait(0);
        for (int i = 0; i < Tile::kBytes; ++i) landed[i] = x.bytes[i];
        STORE
        commit_group();
        wait_group<0>();
    }
}
"""
STORES = {
    "store": "tile.async_store(x, {0, 0});",
    "elected store": "tile.async_store_elect(x, {0, 0}, true);",
    "reduction": "tile.async_reduce<ReduceOp::kAdd>(x, {0, 0});",
    "elected reduction": "tile.async_reduce_elect<ReduceOp::kAdd>(x, {0, 0}, true);",
}


def move(array: Any, shape: tuple[int, int], swizzle: Any, store: str) -> Any:
    tile = create_tma_tile(array, shape, swizzle=swizzle)
    landed = np.zeros(tile.tile_bytes, np.uint8)
    Kernel(SOURCE.replace("STORE", store), "move", types={"Tile": tile})(1, 32, (tile, landed))
    return landed


@pytest.mark.parametrize(
    ("shape", "swizzle", "sides", "store"),
    [
        ((8, 80), "128B", "80, 64, 128", "store"),
        ((8, 48), "64B", "48, 32, 64", "elected store"),
        ((8, 72), "32B", "72, 16, 80", "reduction"),
        ((8, 80), "128B", "80, 64, 128", "elected reduction"),
    ],
)
def test_a_store_of_a_partial_box_does_not_compile(
    shape: tuple[int, int], swizzle: str, sides: str, store: str
) -> None:
    with pytest.raises(CompileError, match="its boxes do not divide this tile") as caught:
        move(np.ones((8, 256), np.float16), shape, swizzle, STORES[store])
    assert f"StoredSide<{sides}>" in str(caught.value)
    assert "kernel.cu:14" in str(caught.value)


def test_a_load_of_a_partial_box_brings_whole_boxes() -> None:
    array = np.arange(8 * 256, dtype=np.float16).reshape(8, 256)
    landed = move(array, (8, 80), "none", "").view(np.float16)
    assert (landed.reshape(8, 80) == array[:, :80]).all()

    landed = move(array, (8, 80), "128B", "").view(np.float16)
    assert sorted(landed.tolist()) == sorted(array[:, :128].ravel().tolist())


@pytest.mark.parametrize("store", ["store", "reduction"])
def test_a_tile_of_whole_boxes_is_stored(store: str) -> None:
    array = np.ones((8, 256), np.float16)
    move(array, (8, 128), "128B", STORES[store])
    assert (array[:, :128] == (2 if store == "reduction" else 1)).all()
    assert (array[:, 128:] == 1).all()
