"""Step 1: copy contiguous bytes through shared memory, with one mbarrier per block."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import BulkTile, Kernel

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp
else:
    import numpy as xp

PIECE_BYTES = 16384


def main():
    x = np.random.default_rng(0).standard_normal(25_000, dtype=np.float32)
    y = xp.full(x.shape, xp.nan, dtype=xp.float32)

    source, target = (BulkTile(array, PIECE_BYTES) for array in (xp.asarray(x), y))
    kernel = Kernel(Path(__file__).with_suffix(".cu"), "bulk_copy", types={"Piece": source})
    pieces = -(-source.size_bytes // PIECE_BYTES)
    kernel(grid=pieces, block=1, args=(source, target))

    copied = y.get() if GPU else y
    if not np.array_equal(copied, x):
        raise SystemExit("the copy is wrong")
    print(
        f"{x.nbytes} bytes copied in {pieces} pieces, the last of {x.nbytes % PIECE_BYTES}: equal"
    )


if __name__ == "__main__":
    main()
