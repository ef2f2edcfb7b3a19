"""Step 4: compute the energy of each column in a pipeline of loads and consumer warps."""

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
    # Search every interleaving for a deadlock, and for a tile that is overwritten too early.
    Pipeline(STAGES, tiles={"tile": source}, consumers=CONSUMER_WARPS).check()
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "column_energies",
        types={"Tile": source},
        constants={"STAGES": STAGES},
    )
    down, across = source.tiles_per_side
    threads = 32 * (CONSUMER_WARPS + 1)  # and the producer warp
    kernel(grid=across, block=threads, args=(source, energies, rows, columns))

    result = energies.get() if GPU else energies
    expected = (x.astype(np.float64) ** 2).sum(axis=0)
    error = np.abs(result / expected - 1).max()
    if not error < 1e-5:
        raise SystemExit(f"the energies are wrong by {error}")
    print(f"{down} tiles per block through {STAGES} stages; largest relative error {error:.1e}")


if __name__ == "__main__":
    main()
