"""Underneath step 7: a persistent, warp-specialised GEMM with barriers by hand."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, Pipeline, Swizzle, create_tma_tile

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp

    M, N, K = 2000, 2040, 2056
    BLOCKS = xp.cuda.Device().attributes["MultiProcessorCount"]
else:
    import numpy as xp

    M, N, K, BLOCKS = 300, 200, 200, 3
GROUPS, ROWS, COLUMNS, DEPTH = 2, 64, 128, 64  # consumer warpgroups, their rows, N and K of a tile


def tensor_tile(array, *sides):
    return create_tma_tile(array, sides, swizzle=Swizzle.B128)


def main():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in [(M, K), (K, N)])
    c = xp.full((M, N), xp.nan, dtype=xp.float16)

    a_tile = tensor_tile(xp.asarray(a), GROUPS * ROWS, DEPTH)
    b_tile = tensor_tile(xp.asarray(b), DEPTH, COLUMNS)
    c_tile = tensor_tile(c, ROWS, COLUMNS)
    pipeline = Pipeline(3, tiles={"a": a_tile, "b": b_tile}, consumers=4 * GROUPS)  # warps
    pipeline.check()
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "gemm",
        types={"ATile": a_tile, "BTile": b_tile, "CTile": c_tile},
        constants={"STAGES": pipeline.stages},
    )
    threads = 32 * (4 * GROUPS + 1)  # and the producer warp
    kernel(grid=BLOCKS, block=threads, args=(a_tile, b_tile, c_tile, M, N, K))

    expected = a.astype(np.float64) @ b.astype(np.float64)
    result = c.get() if GPU else c
    error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
    if not error < 1e-3:
        raise SystemExit(f"the result is wrong by {error}")
    print(f"{M} x {N} x {K} multiplied by {BLOCKS} blocks; relative error {error:.1e}")


if __name__ == "__main__":
    main()
