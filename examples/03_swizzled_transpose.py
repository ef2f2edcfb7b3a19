"""Step 3: transpose an image of four floats per pixel, without bank conflicts."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, Swizzle, create_tma_tile
from tmaasync.swizzle import bank_conflicts, tile_offset

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp
else:
    import numpy as xp

SIDE = 16  # pixels


def wavefronts(tile, swizzle):
    """Passes over the banks that it takes to read one pixel of each of eight rows."""
    offsets = tile_offset((np.arange(8), 0), tile.tile_shape, tile.box_shape, 4, swizzle)
    return 1 + bank_conflicts(offsets, 16)


def main():
    image = np.random.default_rng(0).standard_normal((50, 70, 4), dtype=np.float32)
    rows, columns, _ = image.shape
    turned = xp.full((columns, rows, 4), xp.nan, dtype=xp.float32)

    source, target = (
        create_tma_tile(array.reshape(len(array), -1), (SIDE, 4 * SIDE), swizzle=Swizzle.B128)
        for array in (xp.asarray(image), turned)
    )
    kernel = Kernel(Path(__file__).with_suffix(".cu"), "transpose", types={"Tile": source})
    kernel(grid=source.tiles_per_side[::-1], block=128, args=(source, target))

    result = turned.get() if GPU else turned
    if not np.array_equal(result, image.transpose(1, 0, 2)):
        raise SystemExit("the transpose is wrong")
    own, plain = (wavefronts(source, mode) for mode in (source.spec.swizzle, Swizzle.NONE))
    print(f"{image.shape} transposed: wavefronts of a column of 8: {own}, without swizzle {plain}")


if __name__ == "__main__":
    main()
