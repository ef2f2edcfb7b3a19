"""Step 7: a GEMM of any size: roles, a schedule, a main loop and an epilogue."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, Swizzle, create_tensor_tile

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp

    M, N, K = 2000, 2040, 2056
    CTAS = xp.cuda.Device().attributes["MultiProcessorCount"]
else:
    import numpy as xp

    M, N, K, CTAS = 300, 200, 200, 3
CONSUMERS, COLUMNS, DEPTH = 2, 128, 64  # warpgroups of 64 rows; N and K of a tile
STAGES = 4


def tensor_tile(array, *sides):
    return create_tensor_tile(array, sides, swizzle=Swizzle.B128)


def main():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in [(M, K), (K, N)])
    c = xp.full((M, N), xp.nan, dtype=xp.float16)

    a_tile = tensor_tile(xp.asarray(a), CONSUMERS * 64, DEPTH)
    b_tile = tensor_tile(xp.asarray(b), DEPTH, COLUMNS)
    c_tile = tensor_tile(c, 64, 64)  # the epilogue stores chunks of this size
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "gemm",
        types={"ATile": a_tile, "BTile": b_tile, "CTile": c_tile},
        constants={"STAGES": STAGES},
    )
    threads = 128 * (1 + CONSUMERS)  # and the producer warpgroup
    kernel(grid=CTAS, block=threads, args=(a_tile, b_tile, c_tile, M, N, K))

    expected = a.astype(np.float64) @ b.astype(np.float64)
    result = c.get() if GPU else c
    error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
    if not error < 1e-3:
        raise SystemExit(f"the result is wrong by {error}")
    print(f"{M} x {N} x {K} multiplied by {CTAS} CTAs; relative error {error:.1e}")


if __name__ == "__main__":
    main()
