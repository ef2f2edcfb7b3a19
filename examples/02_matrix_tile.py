"""Step 2: a three-point vertical stencil on a matrix, tile by tile, with a halo."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, create_tma_tile

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp
else:
    import numpy as xp

ROWS, COLUMNS = 32, 64  # of a tile


def main():
    x = np.random.default_rng(0).standard_normal((100, 200), dtype=np.float32)
    y = xp.full(x.shape, xp.nan, dtype=xp.float32)

    source = create_tma_tile(xp.asarray(x), (ROWS + 2, COLUMNS))
    target = create_tma_tile(y, (ROWS, COLUMNS))
    types = {"Source": source, "Target": target}
    kernel = Kernel(Path(__file__).with_suffix(".cu"), "vertical_stencil", types=types)
    kernel(grid=target.tiles_per_side[::-1], block=COLUMNS, args=(source, target))

    result = y.get() if GPU else y
    padded = np.pad(x.astype(np.float64), ((1, 1), (0, 0)))
    error = np.abs(result - (padded[:-2] + padded[1:-1] + padded[2:])).max()
    if not error < 1e-5:
        raise SystemExit(f"the result is wrong by {error}")
    down, across = target.tiles_per_side
    print(f"{x.shape} in {down} x {across} tiles, edges included; largest error {error:.1e}")


if __name__ == "__main__":
    main()
