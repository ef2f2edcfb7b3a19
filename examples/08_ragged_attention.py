"""Step 8: causal attention over packed sequences, with ragged tensor maps."""

import math
import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, Swizzle, create_ragged_tensor_map

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp
else:
    import numpy as xp

LENGTHS, HEADS, KV_HEADS = [700, 0, 5, 1300] if GPU else [70, 0, 5, 260], 2, 1
HEAD_DIM, UNUSED_ROWS = 128, 3  # rows after the last sequence
CONSUMERS, ROWS, KEYS, STAGES = 2, 64, 128, 2  # warpgroups, their queries, and blocks of keys


def bind(q, k, v, out, cu_seqlens, max_length, causal):
    """Return a function that computes out = softmax(q k^T / sqrt(head_dim)) v on each call."""
    options = {"max_length": max_length, "swizzle": Swizzle.B128}
    maps = [
        create_ragged_tensor_map(array, (rows, 1, HEAD_DIM), **options)
        for array, rows in ((q, ROWS), (k, KEYS), (v, KEYS), (out, ROWS))
    ]
    kernel = Kernel(
        Path(__file__).with_suffix(".cu"),
        "attention",
        types={"QTile": maps[0], "KTile": maps[1]},
        constants={"CONSUMERS": CONSUMERS, "STAGES": STAGES, "CAUSAL": causal},
    )
    tile_counter = xp.zeros(1, dtype=xp.uint32)  # 0 again after each launch
    sizes = (len(cu_seqlens) - 1, q.shape[1], q.shape[1] // k.shape[1], q.shape[0])
    args = (*maps, cu_seqlens, tile_counter, *sizes, HEAD_DIM**-0.5 * math.log2(math.e))
    return lambda: kernel(grid=132 if GPU else 3, block=128 * (1 + CONSUMERS), args=args)


def reference(q, k, v):
    """One sequence, causal, in float64."""
    q, k, v = (np.repeat(x, HEADS // x.shape[1], axis=1).astype(np.float64) for x in (q, k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
    p = np.exp(np.where(np.tri(len(q), dtype=bool), scores, -np.inf))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)


def main():
    cu_seqlens = np.cumsum([0, *LENGTHS], dtype=np.int32)
    end, rng = cu_seqlens[-1], np.random.default_rng(0)
    q, k, v, out = (
        rng.standard_normal((end + UNUSED_ROWS, heads, HEAD_DIM)).astype(np.float16)
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    )
    out[:] = q[end:] = k[end:] = v[end:] = np.nan
    arrays = [xp.asarray(array) for array in (q, k, v, out)]
    bind(*arrays, xp.asarray(cu_seqlens), max(LENGTHS), causal=True)()

    result = arrays[3].get() if GPU else arrays[3]
    rows = map(slice, cu_seqlens, cu_seqlens[1:])
    expected = np.concatenate([reference(q[each], k[each], v[each]) for each in rows])
    error = np.abs(result[:end] - expected).max()
    if not (error < 5e-3 and np.isnan(result[end:]).all()):
        raise SystemExit(f"the output is wrong by {error}, or rows after the end are written")
    print(f"sequences of {LENGTHS} rows, {HEADS} heads, no padding; largest error {error:.1e}")


if __name__ == "__main__":
    main()
