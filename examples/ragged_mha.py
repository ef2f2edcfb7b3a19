"""A layer of multi-head attention over the sentences of a text, packed one after the other.

The text is Lincoln's Gettysburg Address (1863, in the public domain); a token is a byte. Nothing is
padded from the first GEMM to the last. With a GPU the text is taken 100 times, and attention is
timed against padded sentences. Without a GPU, half of the text runs on the emulator.
"""

from pathlib import Path

import numpy as np

from tmaasync import ops

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
    COPIES, HEADS = 100, 16
except Exception:  # no CuPy, no driver or no device: NumPy arrays, which the emulator takes
    import numpy as xp

    COPIES, HEADS = 0, 2
HEAD_DIM = 64
TEXT = " ".join(Path(__file__).with_name("gettysburg.txt").read_text().split())


def layer(x, w_qkv, w_out, cu_seqlens):
    qkv = ops.matmul(x, w_qkv).reshape(len(x), 3, HEADS, HEAD_DIM)
    heads = ops.varlen_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens, causal=True)
    return ops.matmul(heads.reshape(len(x), -1), w_out), qkv


def expected(x, w_qkv, w_out):
    """One sentence, in float64."""
    q, k, v = np.moveaxis((x @ w_qkv).reshape(len(x), 3, HEADS, HEAD_DIM), (1, 2), (0, 1))
    scores = np.einsum("hqd,hkd->hqk", q, k) * HEAD_DIM**-0.5
    scores[:, np.triu(np.ones((len(x), len(x)), bool), 1)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    heads = np.einsum("hqk,hkd->qhd", p / p.sum(-1, keepdims=True), v)
    return heads.reshape(len(x), -1) @ w_out


def milliseconds(run):
    run()
    begin, end = (xp.cuda.Event() for _ in range(2))
    begin.record()
    [run() for _ in range(20)]
    end.record()
    end.synchronize()
    return xp.cuda.get_elapsed_time(begin, end) / 20


def main():
    sentences = [f"{sentence}.".encode() for sentence in TEXT.split(".")[:-1]]
    sentences = sentences * COPIES or sentences[:5]
    cu_seqlens = np.cumsum([0, *map(len, sentences)], dtype=np.int32)
    rng, model = np.random.default_rng(0), HEADS * HEAD_DIM
    shapes = (256, model), (model, 3 * model), (model, model)
    drawn = (rng.standard_normal(shape) * shape[0] ** -0.5 for shape in shapes)
    embedding, *weights = (each.astype(np.float16) for each in drawn)
    x = 16 * embedding[np.frombuffer(b"".join(sentences), np.uint8)]
    out, qkv = layer(*map(xp.asarray, (x, *weights)), cu_seqlens)
    for rows in (slice(*cu_seqlens[i : i + 2]) for i in range(3)):
        reference = expected(*(array.astype(float) for array in (x[rows], *weights)))
        if np.linalg.norm(out[rows].tolist() - reference) > 5e-3 * np.linalg.norm(reference):
            raise SystemExit(f"{rows} is wrong")
    print(f"{len(sentences)} sentences, {len(x)} bytes: right")
    if COPIES:  # a GPU
        packed = [qkv[:, i] for i in range(3)]
        padded = [ops.ragged_load(part, cu_seqlens=cu_seqlens) for part in packed]
        runs = {
            "packed": lambda: ops.varlen_attention(*packed, cu_seqlens, causal=True),
            "padded": lambda: ops.attention(*padded, causal="top_left"),
        }
        for name, time in {name: milliseconds(run) for name, run in runs.items()}.items():
            print(f"{name} {time:7.3f} ms {'#' * round(20 * time)}")


if __name__ == "__main__":
    main()
