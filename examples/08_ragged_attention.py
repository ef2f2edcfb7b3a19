"""Step 8: variable-length attention over packed sequences, with a ragged tensor map."""

import math
import sys
from pathlib import Path

import numpy as np

from tmaasync import Kernel, Swizzle, create_ragged_tensor_map

GPU = "--gpu" in sys.argv
if GPU:
    import cupy as xp

    LENGTHS, HEADS = [700, 0, 5, 1300, 64, 311], 16
else:
    import numpy as xp

    LENGTHS, HEADS = [70, 0, 5, 130], 2
ROWS, HEAD_DIM, UNUSED_ROWS = 64, 64, 3  # of a consumer warpgroup; after the last sequence
CONSUMERS, STAGES, CTAS = 2, 2, 132 if GPU else 3
SCALE = HEAD_DIM**-0.5


def attention(q, k, v):
    """One sequence, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    p = np.exp(np.einsum("qhd,khd->hqk", q, k) * SCALE)
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v)


def main():
    cu_seqlens = np.cumsum([0, *LENGTHS], dtype=np.int32)
    shape = (cu_seqlens[-1] + UNUSED_ROWS, HEADS, HEAD_DIM)
    inputs = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float16)
    inputs[:, cu_seqlens[-1] :] = np.nan
    out = xp.full(shape, xp.nan, dtype=xp.float16)

    maps = [
        create_ragged_tensor_map(
            array, (ROWS, 1, HEAD_DIM), max_length=max(LENGTHS), swizzle=Swizzle.B128
        )
        for array in (*xp.asarray(inputs), out)
    ]
    source, constants = Path(__file__).with_suffix(".cu"), {"STAGES": STAGES}
    kernel = Kernel(source, "attention", types={"Rows": maps[0]}, constants=constants)
    tiles = -(-max(LENGTHS) // (CONSUMERS * ROWS))  # of a sequence
    sizes = (len(LENGTHS), HEADS, tiles, SCALE * math.log2(math.e))
    threads = 128 * (1 + CONSUMERS)  # and the producer warpgroup
    kernel(grid=CTAS, block=threads, args=(*maps, xp.asarray(cu_seqlens), *sizes))

    result = out.get() if GPU else out
    rows = [slice(*cu_seqlens[i : i + 2]) for i in range(len(LENGTHS))]
    expected = np.concatenate([attention(*inputs[:, each]) for each in rows])
    error = np.abs(result[: cu_seqlens[-1]] - expected).max()
    if not (error < 5e-3 and np.isnan(result[cu_seqlens[-1] :]).all()):
        raise SystemExit(
            f"the output is wrong by {error}, or rows after the last sequence are written"
        )
    print(f"sequences of {LENGTHS} rows, {HEADS} heads, no padding; largest error {error:.1e}")


if __name__ == "__main__":
    main()
