"""Attention over packed sequences as a structured kernel, causal or not, with GQA."""

import math
import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, Swizzle, create_ragged_tensor_map

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp

    LENGTHS, HEADS, KV_HEADS = [700, 0, 5, 1300, 64, 311], 16, 4
    BLOCKS = xp.cuda.Device().attributes["MultiProcessorCount"]
else:
    import numpy as xp

    LENGTHS, HEADS, KV_HEADS, BLOCKS = [70, 0, 5, 260], 2, 1, 3
HEAD_DIM, UNUSED_ROWS = 128, 3  # rows after the last sequence
CONSUMERS, ROWS, KEYS, STAGES = 2, 64, 128, 2  # warpgroups, their queries, and blocks of keys


def bind(arrays, cu_seqlens, *, max_length, causal=False):
    """Return a function that computes out = softmax(q k^T / sqrt(head_dim)) v on each call."""
    q, k, _, _ = arrays

    maps = [
        create_ragged_tensor_map(
            array, (rows, 1, HEAD_DIM), max_length=max_length, swizzle=Swizzle.B128
        )
        for array, rows in zip(arrays, (ROWS, KEYS, KEYS, ROWS), strict=True)
    ]
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "attention",
        types={"QTile": maps[0], "KTile": maps[1]},
        constants={"CONSUMERS": CONSUMERS, "STAGES": STAGES, "CAUSAL": causal},
    )
    tile_counter = xp.zeros(1, dtype=xp.uint32)
    sizes = (len(cu_seqlens) - 1, q.shape[1], q.shape[1] // k.shape[1], max_length)
    args = (*maps, cu_seqlens, tile_counter, *sizes, HEAD_DIM**-0.5 * math.log2(math.e))
    return lambda: kernel(grid=BLOCKS, block=128 * (1 + CONSUMERS), args=args)


def reference(q, k, v, causal):
    """One sequence, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, HEADS // KV_HEADS, axis=1) for x in (k, v))
    p = np.exp(np.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5)
    p *= np.tri(len(q)) if causal else 1
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)


def main():
    cu_seqlens = np.cumsum([0, *LENGTHS], dtype=np.int32)
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((cu_seqlens[-1] + UNUSED_ROWS, heads, HEAD_DIM)).astype(np.float16)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    q[cu_seqlens[-1] :], k[cu_seqlens[-1] :], v[cu_seqlens[-1] :] = np.nan, np.nan, np.nan
    sequences = [slice(*cu_seqlens[i : i + 2]) for i in range(len(LENGTHS))]
    for causal in (False, True):
        out = xp.full(q.shape, xp.nan, dtype=xp.float16)
        arrays = *(xp.asarray(array) for array in (q, k, v)), out
        attend = bind(arrays, xp.asarray(cu_seqlens), max_length=max(LENGTHS), causal=causal)
        attend()
        attend()  # the tile counter is 0 again
        result = out.get() if GPU else out
        expected = np.concatenate([reference(q[s], k[s], v[s], causal) for s in sequences])
        error = np.abs(result[: cu_seqlens[-1]] - expected).max()
        if not (error < 5e-3 and np.isnan(result[cu_seqlens[-1] :]).all()):
            raise SystemExit(f"wrong by {error}, or rows after the last sequence are written")
        print(f"sequences of {LENGTHS} rows, {HEADS} heads, {causal=}: error {error:.1e}")


if __name__ == "__main__":
    main()
