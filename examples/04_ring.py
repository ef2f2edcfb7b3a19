"""Rung 4: adds up the squares of each column, loads running ahead of the sums in a ring."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, Pipeline, create_tma_tile

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp
else:
    import numpy as xp

STAGES, COLUMNS = 3, 128
CONSUMER_WARPS = COLUMNS // 32


def main():
    x = np.random.default_rng(0).standard_normal((250, 300), dtype=np.float32)
    rows, columns = x.shape
    energies = xp.full(columns, xp.nan, dtype=xp.float32)

    source = create_tma_tile(xp.asarray(x), (16, COLUMNS))
    # Searches every order of events for a deadlock and for a tile overwritten too early.
    Pipeline(STAGES, tiles={"tile": source}, consumers=CONSUMER_WARPS).check()
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "column_energies",
        types={"Tile": source},
        constants={"STAGES": STAGES},
    )
    down, across = source.tiles_per_side
    threads = 32 * (CONSUMER_WARPS + 1)  # and the producer's warp
    kernel(grid=across, block=threads, args=(source, energies, rows, columns))

    result = energies.get() if GPU else energies
    expected = (x.astype(np.float64) ** 2).sum(axis=0)
    error = np.abs(result / expected - 1).max()
    if not error < 1e-5:
        raise SystemExit(f"the sums are wrong by {error}")
    print(f"{down} tiles a block through {STAGES} stages; largest relative error {error:.1e}")


if __name__ == "__main__":
    main()
