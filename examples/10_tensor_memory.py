"""Step 10: multiply matrices with Blackwell's tensor cores, through tensor memory."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, Swizzle, create_tma_tile

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp
else:
    import numpy as xp

M, N, K = 128, 128, 64  # of a CTA tile; K is also the K of the matrices


def main():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in [(150, K), (K, 200)])
    c = xp.full((len(a), b.shape[1]), xp.nan, dtype=xp.float32)

    described = {
        "ATile": (xp.asarray(a), (M, K)),
        "BTile": (xp.asarray(b), (K, N)),
        "CTile": (c, (M, N)),
    }
    tiles = {
        name: create_tma_tile(array, sides, swizzle=Swizzle.B128)
        for name, (array, sides) in described.items()
    }
    source = Path(__file__).with_suffix(".cu")
    kernel = Kernel(source, "multiply", types=tiles, arch="sm_100a")
    kernel(grid=tiles["CTile"].tiles_per_side[::-1], block=128, args=tuple(tiles.values()))

    result = c.get() if GPU else c
    error = np.abs(result - a.astype(np.float64) @ b.astype(np.float64)).max()
    if not error < 1e-3:
        raise SystemExit(f"the result is wrong by {error}")
    print(f"{a.shape} by {b.shape} in tiles of {M} x {N}; largest error {error:.1e}")


if __name__ == "__main__":
    main()
