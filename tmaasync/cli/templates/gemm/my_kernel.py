"""C = relu(A B^T + bias): a warp-specialised, persistent GEMM with an epilogue of its own."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, create_tma_tile

M, N, K = 128, 128, 64  # of a CTA tile and a stage
STAGES = 4


def my_kernel(a, b, bias, c, ctas=132):
    """Write relu(a @ b.T + bias) to c: NumPy arrays, or CuPy arrays or torch tensors on a GPU.

    a is [M, K], b [N, K], c [M, N], all float16 or bfloat16; bias is [N], float32. Rows of all
    matrices have a multiple of 8 elements.
    """
    a_tile, b_tile, c_tile = (
        create_tma_tile(array, sides, swizzle="128B")
        for array, sides in [(a, (M, K)), (b, (N, K)), (c, (64, 64))]
    )
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        types={"ATile": a_tile, "BTile": b_tile, "CTile": c_tile},
        constants={"STAGES": STAGES},
    )
    (m, k), (n, _) = a.shape, b.shape
    tiles = -(-m // M) * -(-n // N)
    threads = 128 * (1 + M // 64)  # a producer warpgroup, and a consumer for every 64 rows
    kernel(min(tiles, ctas), threads, (a_tile, b_tile, c_tile, bias, m, n, k))


def main():
    if "--gpu" in sys.argv:
        import cupy as xp
    else:
        xp = np
    m, n, k = 300, 200, 320
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in [(m, k), (n, k)])
    bias = rng.standard_normal(n, dtype=np.float32)
    c = xp.full((m, n), xp.nan, dtype=xp.float16)
    my_kernel(xp.asarray(a), xp.asarray(b), xp.asarray(bias), c)
    expected = xp.asarray(np.maximum(a.astype(np.float64) @ b.T.astype(np.float64) + bias, 0))
    error = float(xp.linalg.norm(c - expected) / xp.linalg.norm(expected))
    if not error < 1e-3:
        raise SystemExit(f"the result is wrong by {error}")
    print(f"{m} x {n} x {k}: relative error {error:.1e}")


if __name__ == "__main__":
    main()
