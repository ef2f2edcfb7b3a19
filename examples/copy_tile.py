"""Copies a matrix tile by tile: the smallest whole TMA kernel.

One thread of each block loads a tile into shared memory, waits for it and stores it again. The last
tiles hang over the edges: TMA fills them with zeros on the way in and clips them on the way out.
"""

from __future__ import annotations

import cupy

from tmaasync import Kernel, create_tma_tile

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

extern "C" __global__ void copy_tile(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target
) {
    __shared__ Tile::Shared tile;
    __shared__ SharedMemBarrier full;
    full.init(1);
    fence_barrier_init();

    // Coordinates count elements, innermost first.
    const int x = blockIdx.x * Tile::side(1);
    const int y = blockIdx.y * Tile::side(0);
    full.expect_bytes(Tile::kBytes);
    source.async_copy(tile, full, {x, y});
    full.wait(0);

    target.async_store(tile, {x, y});
    commit_group();
    // Shared memory goes with the block: the store must have read it.
    wait_group_read<0>();
}
"""


def main() -> None:
    x = cupy.random.default_rng(0).standard_normal((1000, 2000), dtype=cupy.float32)
    y = cupy.full_like(x, cupy.nan)
    source, target = (create_tma_tile(array, (64, 64)) for array in (x, y))
    kernel = Kernel(SOURCE, "copy_tile", types={"Tile": source})

    rows, columns = source.tiles_per_side
    kernel(grid=(columns, rows), block=1, args=(source, target))

    equal = bool((x == y).all())
    print(f"{columns * rows} tiles of {source.tile_bytes} bytes copied; equal: {equal}")
    if not equal:
        raise SystemExit("the copy is wrong")


if __name__ == "__main__":
    main()
