"""y = scale * x, tile by tile through a ring of stages in shared memory."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, create_tma_tile

TILE = (32, 128)  # rows and columns
STAGES = 4


def my_kernel(x, y, scale, ctas=264):
    """Write scale * x to y: NumPy arrays on the CPU, CuPy arrays or torch tensors on a GPU."""
    x_tile, y_tile = (create_tma_tile(array, TILE) for array in (x, y))
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"), types={"Tile": x_tile}, constants={"STAGES": STAGES}
    )
    down, across = x_tile.tiles_per_side
    tiles = down * across
    kernel(min(tiles, ctas), 128 + 32, (x_tile, y_tile, across, tiles, scale))


def main():
    if "--gpu" in sys.argv:
        import cupy as xp
    else:
        xp = np
    x = xp.asarray(np.random.default_rng(0).standard_normal((1000, 516), dtype=np.float32))
    y = xp.full_like(x, xp.nan)
    my_kernel(x, y, 2.5)
    if not bool((y == 2.5 * x).all()):
        raise SystemExit("the result is wrong")
    print(f"{x.shape}: equal to {xp.__name__}")


if __name__ == "__main__":
    main()
