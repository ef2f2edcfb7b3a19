"""Step 11: a GEMM of any size on Blackwell's tensor cores."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, create_tma_tile

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp

    M, N, K = 2000, 2040, 2056
    CTAS = xp.cuda.Device().attributes["MultiProcessorCount"]
else:
    import numpy as xp

    M, N, K, CTAS = 400, 264, 200, 2


def bind(a, b, c, columns=128, pair=False, stages=3):
    """Return a function that computes C[M, N] = A[M, K] B[N, K]^T on each call.

    A CTA has tiles of 128 x ``columns``; of a ``pair`` of CTAs, each loads half of the columns.
    """
    ctas = 2 if pair else 1
    a_tile = create_tma_tile(a, (128, 64), swizzle="128B")
    b_tile = create_tma_tile(b, (columns // ctas, 64), swizzle="128B")
    c_tile = create_tma_tile(c, (128, 128 // c.itemsize), swizzle="128B")  # a chunk
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "gemm",
        types={"ATile": a_tile, "BTile": b_tile, "CTile": c_tile},
        constants={"STAGES": stages, "CTAS": ctas},
        arch="sm_100a",
    )
    args = (a_tile, b_tile, c_tile, *c.shape, a.shape[1])
    return lambda: kernel(grid=CTAS // ctas * ctas, block=256, args=args, cluster=ctas)


def main():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    c = xp.full((M, N), xp.nan, dtype=xp.float16)

    multiply = bind(xp.asarray(a), xp.asarray(b), c, pair=True)
    multiply()

    expected = a.astype(np.float64) @ b.astype(np.float64).T
    result = c.get() if GPU else c
    error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
    if not error < 1e-3:
        raise SystemExit(f"the result is wrong by {error}")
    print(f"{M} x {N} x {K} multiplied by {CTAS} CTAs; relative error {error:.1e}")


if __name__ == "__main__":
    main()
