"""Step 5: mix the channels of an image; the blocks of a cluster share each load."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, create_tma_tile

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp
else:
    import numpy as xp

INPUTS, OUTPUTS, PIXELS = 24, 4, 64  # channels, channels, pixels of a tile


def main():
    rng = np.random.default_rng(0)
    image = rng.standard_normal((INPUTS, 500), dtype=np.float32)
    weights = rng.standard_normal((OUTPUTS, INPUTS), dtype=np.float32)
    pixels = image.shape[1]
    mixed = xp.full((OUTPUTS, pixels), xp.nan, dtype=xp.float32)

    source = create_tma_tile(xp.asarray(image), (INPUTS, PIXELS))
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "mix_channels",
        types={"Tile": source},
        constants={"CLUSTER": OUTPUTS},
    )
    tiles = source.tiles_per_side[1]
    args = (source, xp.asarray(weights), mixed, pixels)
    kernel(grid=tiles * OUTPUTS, block=PIXELS, args=args, cluster=OUTPUTS)

    result = mixed.get() if GPU else mixed
    error = np.abs(result - weights.astype(np.float64) @ image).max()
    if not error < 1e-4:
        raise SystemExit(f"the channels are wrong by {error}")
    print(f"{tiles} tiles, each loaded once for {OUTPUTS} blocks; largest error {error:.1e}")


if __name__ == "__main__":
    main()
