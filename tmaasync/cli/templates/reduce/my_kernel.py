"""The sum of every column of a matrix, through a ring of stages and TMA's reduce-add."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, create_tma_tile

ROWS, COLUMNS = 32, 128  # of a tile
STAGES = 4


def my_kernel(x, out, ctas_per_column=8):
    """Write the sum of every column of x to out, a float32 vector.

    NumPy arrays on the CPU, CuPy arrays or torch tensors on a GPU. Several CTAs add to an element
    of out, in any order: the last bits of a sum of fractions may differ from run to run.
    """
    out[...] = 0
    x_tile, out_tile = create_tma_tile(x, (ROWS, COLUMNS)), create_tma_tile(out, (COLUMNS,))
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        types={"Tile": x_tile, "OutTile": out_tile},
        constants={"STAGES": STAGES},
    )
    down, across = x_tile.tiles_per_side
    kernel((across, min(down, ctas_per_column)), COLUMNS + 32, (x_tile, out_tile, down))


def main():
    if "--gpu" in sys.argv:
        import cupy as xp
    else:
        xp = np
    x = np.random.default_rng(0).standard_normal((1000, 516), dtype=np.float32)
    out = xp.full(x.shape[1], xp.nan, dtype=xp.float32)
    my_kernel(xp.asarray(x), out)
    error = float(abs(out - xp.asarray(x.sum(axis=0, dtype=np.float64))).max())
    if not error < 1e-3:
        raise SystemExit(f"the result is wrong by {error}")
    print(f"{x.shape}: largest error {error:.1e}")


if __name__ == "__main__":
    main()
