"""Copy a matrix tile by tile: the smallest complete TMA kernel.

One thread of each CTA loads a tile into shared memory, waits for it and stores it. The last tiles
cross the edges: TMA fills them with zeros in the load and clips them in the store. Runs on a GPU
with CuPy arrays, else on the CPU with NumPy arrays.
"""

from __future__ import annotations

from tmaasync import Kernel, create_tma_tile

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
    WHERE = "on the GPU"
except Exception:  # no CuPy, no driver or no device
    import numpy as xp

    WHERE = "on the CPU, as there is no CuPy with a GPU"

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
    // Shared memory ends with the CTA: the store must have read it.
    wait_group_read<0>();
}
"""


def main() -> None:
    x = xp.random.default_rng(0).standard_normal((1000, 2000), dtype=xp.float32)
    y = xp.full_like(x, xp.nan)
    source, target = (create_tma_tile(array, (64, 64)) for array in (x, y))
    kernel = Kernel(SOURCE, "copy_tile", types={"Tile": source})

    rows, columns = source.tiles_per_side
    kernel(grid=(columns, rows), block=1, args=(source, target))

    equal = bool((x == y).all())
    print(f"{columns * rows} tiles of {source.tile_bytes} bytes copied {WHERE}; equal: {equal}")
    if not equal:
        raise SystemExit("the copy is wrong")


if __name__ == "__main__":
    main()
