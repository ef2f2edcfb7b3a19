"""Step 7: a GEMM of any size: roles, a schedule, a main loop and an epilogue."""

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

    M, N, K, CTAS = 600, 200, 200, 2
CONSUMERS = 2  # warpgroups that multiply


def bind(a, b, c, tile=(256, 192), cluster=2, stages=3):
    """Return a function that computes C[M, N] = A[M, K] B[N, K]^T on each call.

    ``tile`` is the CTA tile along M and N. Each CTA of a cluster loads a box of its rows of A.
    """
    rows, columns = tile
    # Operands come from L2 again and again: it fetches two lines at a time.
    operand = {"swizzle": "128B", "l2_promotion": "256B"}
    a_tile = create_tma_tile(a, (rows, 64), box_shape=(rows // cluster, 64), **operand)
    b_tile = create_tma_tile(b, (columns, 64), **operand)
    c_tile = create_tma_tile(c, (64, 64), swizzle="128B")  # a chunk of the epilogue
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "gemm",
        types={"ATile": a_tile, "BTile": b_tile, "CTile": c_tile},
        constants={"CONSUMERS": CONSUMERS, "CLUSTER": cluster, "STAGES": stages},
    )
    grid, block = CTAS // cluster * cluster, 128 * (1 + CONSUMERS)
    args = (a_tile, b_tile, c_tile, *c.shape, a.shape[1])
    return lambda: kernel(grid=grid, block=block, args=args, cluster=cluster)


def main():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    c = xp.full((M, N), xp.nan, dtype=xp.float16)

    multiply = bind(xp.asarray(a), xp.asarray(b), c)
    multiply()

    expected = a.astype(np.float64) @ b.astype(np.float64).T
    result = c.get() if GPU else c
    error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
    if not error < 1e-3:
        raise SystemExit(f"the result is wrong by {error}")
    print(f"{M} x {N} x {K} multiplied by {CTAS} CTAs; relative error {error:.1e}")


if __name__ == "__main__":
    main()
