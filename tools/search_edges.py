"""Call every operation on a GPU at the edges of sizes, device lengths and values.

    python tools/search_edges.py [--groups sizes values lengths] [--seconds 150] [--seed 0]

Each call must be right by an oracle in float64, or refused with an error of the library; device
lengths must write nothing outside and be reported by the next call; and the CUDA context must
survive. Each group runs in a process of its own, for at most ``--seconds`` each. Prints a line per
wrong call and a table of counts; exits with 1 if there is a wrong call. Needs torch, a Hopper GPU
and, for the largest sizes, 75 GiB of its memory.
"""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from edge_lengths import wrong_lengths  # noqa: E402

from tmaasync import ops  # noqa: E402
from tmaasync.errors import TMAError  # noqa: E402
from tmaasync.ops._extents import MAX_EXTENT  # noqa: E402

BF16, HALF, FLOAT8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


class Case(NamedTuple):
    """A call, and whether its result is right; ``call`` may raise what refuses it."""

    name: str
    call: Callable[[], Any]
    is_right: Callable[[Any], bool]


def cuda(array: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, np.float32)).cuda().to(dtype)


def float64(tensor: torch.Tensor) -> Any:
    return tensor.to(torch.float64).cpu().numpy()


def close(got: Any, wanted: Any, error: float = 1e-2) -> bool:
    got = float64(got)
    size = np.linalg.norm(wanted)
    return bool(np.isfinite(got).all() and np.linalg.norm(got - wanted) <= error * size + 1e-30)


# --- sizes ----------------------------------------------------------------------------------------


def sizes(rng: np.random.Generator) -> Iterator[Case]:
    """Yield calls with one extent at, or close to, 2^31."""
    for extent in (MAX_EXTENT, MAX_EXTENT - 8, MAX_EXTENT + 8, 2**31 - 8, 2**31 - 1, 2**31, 2**32):
        yield from _depth(extent, rng)
        yield from _keys(extent, rng)
        yield _paged(extent, 64, rng)
        yield _paged(extent // 2, 256, rng)
        yield from _rows(extent, rng)
        yield _scales(min(extent, 2**31) // 2)


def _sparse(extent: int, rows: int, dtype: torch.dtype, rng: np.random.Generator) -> torch.Tensor:
    """Return [rows, extent] of zeros but at both ends; rows overlap, 16 bytes apart."""
    memory = torch.zeros(extent + 16 * rows, dtype=dtype, device="cuda")
    for part in (memory[:2000], memory[-2000:]):
        part.copy_(cuda(rng.standard_normal(2000), dtype))
    return memory.as_strided((rows, extent), (16 // memory.element_size(), 1))


def _ends(a: torch.Tensor) -> Any:
    return np.concatenate([float64(a[:, :2500]), float64(a[:, -2500:])], axis=1)


def _depth(k: int, rng: np.random.Generator) -> Iterator[Case]:
    yield _matmul_of_depth(k, BF16, rng)
    yield _matmul_of_depth(k, FLOAT8, rng)
    a, b = (_sparse(k, rows, FLOAT8, rng) for rows in (64, 24))
    scales = torch.full((1, -(-k // 128)), 0.5, device="cuda")
    scale_a, scale_b = scales.expand(64, -1), scales.expand(24, -1).T
    wanted = _ends(a) @ _ends(b).T / 4
    yield Case(
        f"scaled_matmul K={k}",
        lambda: ops.scaled_matmul(a, b.T, scale_a, scale_b, dtype="float32"),
        lambda out: close(out, wanted),
    )


def _matmul_of_depth(k: int, dtype: torch.dtype, rng: np.random.Generator) -> Case:
    a, b = (_sparse(k, rows, dtype, rng) for rows in (64, 24))
    wanted = _ends(a) @ _ends(b).T
    return Case(
        f"matmul K={k} of {dtype}",
        lambda: ops.matmul(a, b.T, dtype="float32"),
        lambda out: close(out, wanted),
    )


def _keys(keys: int, rng: np.random.Generator) -> Iterator[Case]:
    """Keys of zeros but at the end, one of which has nearly all of the probability."""
    q = cuda(rng.standard_normal((1, 2, 1, 8)), HALF)
    k = torch.zeros((min(keys, 2**31), 1, 8), dtype=HALF, device="cuda")
    k[-1], k[-2] = q[0, 0] * 8, q[0, 1] * 8
    wanted = float64(k[[-1, -2]])
    if keys > len(k):
        k = k[:1].expand(keys, 1, 8)
    scale = 200 / float((q.float() ** 2).sum(-1).min())
    yield Case(
        f"attention of {keys} keys",
        lambda: ops.attention(q, k[None], k[None], scale=scale)[0],
        lambda out: close(out, wanted),
    )
    yield Case(
        f"attention of {keys} keys in a window",
        lambda: ops.attention(q, k[None], k[None], scale=scale, window=(keys // 2, 1))[0],
        lambda out: close(out, wanted),
    )
    yield Case(
        f"varlen_attention of {keys} keys",
        lambda: ops.varlen_attention(q[0], k, k, [0, 2], [0, keys], scale=scale),
        lambda out: close(out, wanted),
    )


def _paged(keys: int, head_dim: int, rng: np.random.Generator) -> Case:
    page, pool = 128, 40
    q = cuda(rng.standard_normal((1, 1, head_dim)), HALF)
    k, v = (cuda(rng.standard_normal((pool, page, 1, head_dim)), HALF) for _ in "kv")
    table = torch.randint(0, pool - 1, (1, -(-keys // page)), dtype=torch.int32, device="cuda")
    table[0, -1] = pool - 1
    counts = torch.bincount(table[0], minlength=pool).cpu().numpy().astype(np.float64)
    in_last = keys - (table.shape[1] - 1) * page
    weights = np.repeat(counts, page)
    weights[(pool - 1) * page + in_last :] = 0
    scores = float64(k).reshape(-1, head_dim) @ float64(q)[0, 0] * head_dim**-0.5
    weights *= np.exp(scores - scores.max())
    wanted = weights @ float64(v).reshape(-1, head_dim) / weights.sum()
    lengths = torch.tensor([[0, 0], [1, min(keys, 2**31 - 1)]], dtype=torch.int32)
    return Case(
        f"paged attention of {keys} keys, head_dim {head_dim}",
        lambda: ops.varlen_attention(
            *(q, k, v), *lengths.T.numpy(), page_table=table, max_seqlen_k=keys
        ),
        lambda out: close(out[0, 0], wanted, 3e-2),
    )


def _rows(m: int, rng: np.random.Generator) -> Iterator[Case]:
    b = cuda(rng.standard_normal((8, 8)), HALF)
    memory = cuda(rng.standard_normal((1000, 8)), HALF)
    if m > MAX_EXTENT:
        a = memory.as_strided((m, 8), (0, 1))
        yield Case(f"matmul M={m}", lambda: ops.matmul(a, b), lambda _: False)
        return
    a = torch.zeros((m, 8), dtype=HALF, device="cuda")
    a[-1000:] = memory
    wanted = float64(memory) @ float64(b)
    yield Case(
        f"matmul M={m}",
        lambda: ops.matmul(a, b),
        lambda out: close(out[-1000:], wanted) and not bool(out[:-1000].any()),
    )
    yield Case(
        f"grouped_matmul T={m}",
        lambda: ops.grouped_matmul(a, torch.stack([b, -b]), [m - 700, m]),
        lambda out: close(out[-700:], -wanted[-700:]),
    )


def _scales(step: int) -> Case:
    """FP8 scales whose entries lie far apart."""
    memory = torch.zeros(2 * step + 1, device="cuda")
    scales = memory.as_strided((3, 1), (step, 1))
    scales.copy_(torch.tensor([[1.0], [2.0], [4.0]]))
    q = torch.randn(3, 4, 1, 16, device="cuda").to(FLOAT8)
    wanted = float64(ops.attention(q, q, q)) * np.array([1, 2, 4]).reshape(3, 1, 1, 1)
    return Case(
        f"FP8 scales {step} apart",
        lambda: ops.attention(q, q, q, scales=(None, None, scales)),
        lambda out: close(out, wanted),
    )


# --- values ---------------------------------------------------------------------------------------

_POWERS = (-30, -20, -10, -5, 0, 3, 5, 8, 12, 18, 30, 37)


def values(rng: np.random.Generator) -> Iterator[Case]:
    """Yield calls whose finite numbers are very large or very small."""
    while True:
        yield _attention_of_values(rng)
        yield _scaled_of_values(rng)
        yield _epilogue_of_values(rng)
        yield _backward_of_values(rng)


def _power(rng: np.random.Generator) -> float:
    return float(10.0 ** rng.choice(_POWERS) * rng.choice((1, 3)))


def _attention_of_values(rng: np.random.Generator) -> Case:
    """Attention of small integers times a power of two: scores and their ties are exact."""
    dtype = (BF16, HALF, FLOAT8)[rng.integers(3)]
    queries, keys = rng.integers(1, 90), rng.integers(1, 700)
    factor = 2.0 ** (rng.integers(-3, 4) if dtype is not BF16 else rng.integers(-40, 41))
    q, k = (rng.integers(-3, 4, (1, n, 1, 16)).astype(np.float64) for n in (queries, keys))
    v = rng.standard_normal((1, keys, 1, 16))
    scale, softcap = _power(rng), None if rng.random() < 0.8 else 30.0
    operands = cuda(q * factor, dtype), cuda(k, dtype), cuda(v, dtype)
    causal = bool(rng.random() < 0.3)
    scores = np.einsum("qd,kd->qk", q[0, :, 0] * factor, k[0, :, 0]) * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if causal:
        after = np.arange(keys) > np.arange(queries)[:, None] + keys - queries
        scores = np.where(after, -np.inf, scores)
    wanted = _softmax(scores) @ float64(operands[2])[0, :, 0]
    # The documented limits of scaled scores.
    most = 4.6e7 if dtype is FLOAT8 else 3.4e38
    is_within = np.abs(scores[np.isfinite(scores)]).max(initial=0) < most
    return Case(
        f"attention, {dtype}, factor {factor}, scale {scale:g}, softcap {softcap}, {causal=}",
        lambda: ops.attention(*operands, scale=scale, softcap=softcap, causal=causal)[0, :, 0],
        lambda out: (
            close(out, wanted, 6e-2 if dtype is FLOAT8 else 1e-2)
            or (not is_within and bool(out.isnan().any()))
        ),
    )


def _softmax(scores: Any) -> Any:
    most = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(most), most, 0))
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def _scaled_of_values(rng: np.random.Generator) -> Case:
    m, n, k = (int(rng.integers(1, 4) * 64) for _ in range(3))
    a, b = (cuda(rng.standard_normal(shape), FLOAT8) for shape in ((m, k), (n, k)))
    of_a, of_b = _power(rng), _power(rng)
    scale_a = torch.full((m, -(-k // 128)), of_a, device="cuda")
    scale_b = torch.full((-(-k // 128), n), of_b, device="cuda")
    wanted = float64(a) @ float64(b).T * (of_a * of_b)
    fits = 1e-36 < np.abs(wanted).max() < 3e38 and 1e-37 < of_a * of_b < 3e38
    return Case(
        f"scaled_matmul, scales {of_a:g} and {of_b:g}",
        lambda: ops.scaled_matmul(a, b.T, scale_a, scale_b, dtype="float32"),
        lambda out: close(out, wanted) or not fits,
    )


def _epilogue_of_values(rng: np.random.Generator) -> Case:
    a, b = (cuda(rng.standard_normal(shape), BF16) for shape in ((70, 64), (64, 40)))
    alpha = _power(rng)
    activation = (None, "relu", "gelu", "gelu_tanh", "silu")[rng.integers(5)]
    size = float(np.abs(float64(a) @ float64(b)).max()) * alpha
    return Case(
        f"matmul, alpha {alpha:g}, {activation=}",
        lambda: ops.matmul(a, b, alpha=alpha, activation=activation, dtype="float32"),
        lambda out: not bool(out.isnan().any()) and (size > 3e38 or bool(out.isfinite().all())),
    )


def _backward_of_values(rng: np.random.Generator) -> Case:
    """The gradient of v; with a log-sum-exp above 65536 it may be NaN, as documented."""
    q, k = (rng.integers(-3, 4, (1, 70, 1, 64)).astype(np.float64) for _ in "qk")
    v, dout = (rng.standard_normal((1, 70, 1, 64)) for _ in "vd")
    scale = _power(rng)
    operands = [cuda(array, BF16) for array in (q, k, v)]
    gradient = cuda(dout, BF16)
    scores = np.einsum("qd,kd->qk", q[0, :, 0], k[0, :, 0]) * scale
    probabilities = _softmax(scores)
    wanted = probabilities.T @ float64(gradient)[0, :, 0]

    def call() -> Any:
        out, lse = ops.attention(*operands, scale=scale, return_lse=True)
        return ops.attention_backward(gradient, *operands, out, lse, scale=scale)

    def is_right(found: Any) -> bool:
        if np.abs(scores).max() > 65000:
            return bool(found[2].isnan().any())
        return close(found[2][0, :, 0], wanted) and bool(found[0].isfinite().all())

    return Case(f"attention_backward, scale {scale:g}", call, is_right)


# --- lengths on the device ------------------------------------------------------------------------


def lengths(rng: np.random.Generator) -> Iterator[Case]:
    """Yield calls with wrong numbers in device memory; only the memory outside is checked."""
    for name, call, guarded in wrong_lengths(rng):
        yield Case(name, call, lambda _, guarded=guarded: guarded.are_intact)  # type: ignore[misc]


# --- the search -----------------------------------------------------------------------------------

GROUPS = {"sizes": sizes, "values": values, "lengths": lengths}


def outcome(case: Case) -> str:
    try:
        result = case.call()
        torch.cuda.synchronize()
        return "right" if case.is_right(result) else "WRONG"
    except torch.cuda.OutOfMemoryError:
        return "no memory"
    except TMAError as error:
        torch.cuda.synchronize()
        sys.stderr.write(f"refused: {case.name}: {str(error).splitlines()[0][:150]}\n")
        return "refused"
    except Exception as error:
        return f"WRONG ({type(error).__name__}: {str(error)[:200]})"


def search(group: str, seconds: float, seed: int) -> int:
    """Run the cases of a group; return the number of wrong ones."""
    end = time.monotonic() + seconds
    counts: collections.Counter[str] = collections.Counter()
    alive = torch.randn(64, 64, device="cuda").to(BF16)
    expected = float64(alive) @ float64(alive)
    cases = GROUPS[group](np.random.default_rng(seed))
    while time.monotonic() < end:
        case = next(cases, None)
        if case is None:
            break
        began, name = time.monotonic(), case.name
        found = outcome(case)
        took = time.monotonic() - began
        counts[found.split()[0]] += 1
        if found.startswith("WRONG") or took > 30:
            print(f"{group}: {found} after {took:.1f} s: {name}", flush=True)
        if not close(ops.matmul(alive, alive), expected):
            print(f"{group}: the context is lost after {name}", flush=True)
            return 1
        del case  # and its arrays, for which the next case needs the memory
        torch.cuda.empty_cache()
    print(f"{group}: {dict(counts)}", flush=True)
    return counts["WRONG"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="one group in this process")
    given = parser.parse_args()
    if given.here:
        return int(search(given.groups[0], given.seconds, given.seed) > 0)
    failed = False
    for group in given.groups:
        options = ["--here", "--groups", group, "--seconds", str(given.seconds)]
        command = [sys.executable, __file__, *options, "--seed", str(given.seed)]
        try:
            failed |= subprocess.run(command, timeout=given.seconds + 120, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"{group}: no end after {given.seconds + 120:.0f} s", flush=True)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
