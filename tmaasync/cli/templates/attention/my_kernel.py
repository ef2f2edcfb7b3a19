"""Attention with a score function of its own: O = softmax(score(Q K^T)) V; here ALiBi, causal."""

import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, create_tma_tile

ROWS, KEYS = 64, 128  # queries of a consumer warpgroup, keys of a block
CONSUMERS, STAGES = 2, 2


def my_kernel(q, k, v, o, slopes, ctas=132):
    """Write the attention to o: NumPy arrays, or CuPy arrays or torch tensors on a GPU.

    q, k, v, o are [length, heads, 64 or 128], float16 or bfloat16; slopes is [heads], float32.
    """
    length, heads, head_dim = q.shape
    q_tile, k_tile, v_tile, o_tile = (
        create_tma_tile(array, (rows, 1, head_dim), swizzle="128B")
        for array, rows in [(q, ROWS), (k, KEYS), (v, KEYS), (o, ROWS)]
    )
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        types={"QTile": q_tile, "KTile": k_tile},
        constants={"CONSUMERS": CONSUMERS, "STAGES": STAGES},
    )
    tiles = -(-length // (CONSUMERS * ROWS)) * heads
    args = (q_tile, k_tile, v_tile, o_tile, slopes, head_dim**-0.5, heads, length)
    kernel(min(tiles, ctas), 128 * (1 + CONSUMERS), args)


def reference(q, k, v, slopes):
    """The same in float64, of NumPy arrays."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    distance = np.arange(len(k)) - np.arange(len(q))[:, None]
    s = np.where(distance > 0, -np.inf, s + slopes[:, None, None] * distance)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)


def inputs(length, heads, head_dim):
    rng = np.random.default_rng(length)
    q, k, v = rng.standard_normal((3, length, heads, head_dim)).astype(np.float16)
    return q, k, v, (2.0 ** -np.arange(1, heads + 1)).astype(np.float32)


def main():
    if "--gpu" in sys.argv:
        import cupy as xp
    else:
        xp = np
    q, k, v, slopes = inputs(300, 2, 64)
    o = xp.full(q.shape, xp.nan, dtype=xp.float16)
    my_kernel(*map(xp.asarray, (q, k, v)), o, xp.asarray(slopes))
    error = float(abs(o - xp.asarray(reference(q, k, v, slopes))).max())
    if not error < 5e-3:
        raise SystemExit(f"the result is wrong by {error}")
    print(f"{q.shape}: largest error {error:.1e}")


if __name__ == "__main__":
    main()
