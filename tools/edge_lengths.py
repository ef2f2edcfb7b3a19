"""Calls with wrong lengths, offsets and pages in device memory, for search_edges.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tmaasync import ops
from tmaasync.errors import ArgumentError
from tmaasync.torch import flash_attn_with_kvcache

BF16 = torch.bfloat16
_CANARY = 12345.0


class Guarded:
    """Arrays with canaries on both sides."""

    def __init__(self) -> None:
        self._memory: list[tuple[torch.Tensor, int]] = []

    def array(self, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        elements, pad = int(np.prod(shape)), 4096
        memory = torch.full((elements + 2 * pad,), _CANARY, dtype=dtype, device="cuda")
        self._memory.append((memory, pad))
        return memory[pad : pad + elements].view(shape).normal_()

    @property
    def are_intact(self) -> bool:
        ends = (end for m, pad in self._memory for end in (m[:pad], m[-pad:]))
        return all(bool((end == torch.tensor(_CANARY).to(end.dtype).cuda()).all()) for end in ends)


def wrong_lengths(
    rng: np.random.Generator,
) -> Iterator[tuple[str, Callable[[], Any], Guarded]]:
    """Yield the name of a call with wrong numbers in device memory, the call, and its arrays."""
    calls = (_ragged, _grouped, _k_grouped, _varlen, _paged_lengths, _varlen_backward, _kvcache)
    while True:
        for make in calls:
            guarded = Guarded()
            name, call = make(guarded, rng)
            yield name, _twice(call), guarded


def _twice(call: Callable[[], Any]) -> Callable[[], Any]:
    """Call, wait, and call again: the second call may report the first."""

    def both() -> None:
        try:
            call()
        finally:
            torch.cuda.synchronize()
        try:
            call()
        except ArgumentError as error:
            if "earlier call" not in str(error):
                raise

    return both


def _edges(total: int, count: int, rng: np.random.Generator, *, starts_at_0: bool) -> torch.Tensor:
    """Return numbers of which some are at the edges of what fits."""
    dtype = torch.int32 if rng.random() < 0.6 else torch.int64
    good = np.sort(rng.integers(0, total + 1, count))
    good[-1] = total
    edges = [0, -1, 1, total, total + 1, total - 1, 2**31 - 1, -(2**31), 2**30, 2**31 - 256]
    if dtype is torch.int64:
        edges += [2**32 + 60, -(2**63), 2**63 - 1, 2**32, 2**31]
    for _ in range(rng.integers(0, 4)):
        good[rng.integers(count)] = rng.choice(np.array(edges, np.int64))
    if starts_at_0 and rng.random() < 0.8:
        good[0] = 0
    return torch.tensor(good, dtype=dtype, device="cuda")


def _ragged(guarded: Guarded, rng: np.random.Generator) -> tuple[str, Callable[[], Any]]:
    packed, padded = guarded.array(300, 2, 16), guarded.array(5, 100, 2, 16)
    table = _edges(300, 6, rng, starts_at_0=True)
    if rng.random() < 0.5:
        return f"ragged_load, {table.tolist()}", lambda: ops.ragged_load(
            packed, cu_seqlens=table, out=padded
        )
    return f"ragged_store, {table.tolist()}", lambda: ops.ragged_store(
        padded, cu_seqlens=table, out=packed
    )


def _grouped(guarded: Guarded, rng: np.random.Generator) -> tuple[str, Callable[[], Any]]:
    a, b, out = guarded.array(300, 64), guarded.array(4, 64, 48), guarded.array(300, 48)
    table = _edges(300, 4, rng, starts_at_0=False)
    return f"grouped_matmul, {table.tolist()}", lambda: ops.grouped_matmul(a, b, table, out=out)


def _k_grouped(guarded: Guarded, rng: np.random.Generator) -> tuple[str, Callable[[], Any]]:
    a, b, out = guarded.array(300, 64), guarded.array(300, 48), guarded.array(4, 64, 48)
    table = _edges(300, 4, rng, starts_at_0=False)
    return f"k_grouped_matmul, {table.tolist()}", lambda: ops.k_grouped_matmul(
        a.T, b, table, out=out
    )


def _longest(rng: np.random.Generator) -> int:
    return int(rng.choice((100, 300, 2**20, 2**31 - 1, 2**31 - 2**18)))


def _varlen(guarded: Guarded, rng: np.random.Generator) -> tuple[str, Callable[[], Any]]:
    q, k, v, out = (guarded.array(300, 2, 64) for _ in range(4))
    tables = [_edges(300, 5, rng, starts_at_0=True) for _ in "qk"]
    longest = {"max_seqlen_q": _longest(rng), "max_seqlen_k": _longest(rng)}
    causal = bool(rng.random() < 0.5)
    return (
        f"varlen_attention, {[t.tolist() for t in tables]}, {longest}",
        lambda: ops.varlen_attention(q, k, v, *tables, **longest, causal=causal, out=out),  # type: ignore[arg-type]
    )


def _paged_lengths(guarded: Guarded, rng: np.random.Generator) -> tuple[str, Callable[[], Any]]:
    rows = int(rng.choice((4, 60)))
    q, out = guarded.array(rows, 2, 64), guarded.array(rows, 2, 64)
    k, v = guarded.array(20, 16, 1, 64), guarded.array(20, 16, 1, 64)
    pages = torch.randint(0, 20, (4, 12), dtype=torch.int32, device="cuda")
    for _ in range(rng.integers(0, 3)):
        wrong = (-1, 20, 2**31 - 1, -(2**31))[rng.integers(4)]
        pages[rng.integers(4), rng.integers(12)] = wrong
    of_q, of_k = (_edges(n, 5, rng, starts_at_0=True) for n in (rows, 300))
    longest = {"max_seqlen_q": int(rng.choice((1, rows))), "max_seqlen_k": 192}
    return (
        f"paged attention, {of_q.tolist()}, {of_k.tolist()}, {pages.tolist()}",
        lambda: ops.varlen_attention(q, k, v, of_q, of_k, page_table=pages, **longest, out=out),  # type: ignore[arg-type]
    )


def _varlen_backward(guarded: Guarded, rng: np.random.Generator) -> tuple[str, Callable[[], Any]]:
    q, k, v, out, dout, dq, dk, dv = (guarded.array(300, 2, 64) for _ in range(8))
    lse = guarded.array(2, 300, dtype=torch.float32)
    tables = [_edges(300, 5, rng, starts_at_0=True) for _ in "qk"]
    given = {"max_seqlen_q": _longest(rng), "max_seqlen_k": _longest(rng), "dq": dq, "dk": dk}
    return (
        f"varlen_attention_backward, {[t.tolist() for t in tables]}",
        lambda: ops.varlen_attention_backward(dout, q, k, v, out, lse, *tables, **given, dv=dv),
    )


def _kvcache(guarded: Guarded, rng: np.random.Generator) -> tuple[str, Callable[[], Any]]:
    q, k, v = (guarded.array(3, 2, 2, 64) for _ in range(3))
    is_paged = bool(rng.random() < 0.5)
    k_cache, v_cache = (guarded.array(*((12, 16) if is_paged else (3, 64)), 2, 64) for _ in "kv")
    seqlens = rng.choice((0, 1, 40, 62, 63, 64, 65, -1, 2**31 - 1, -(2**31)), 3)
    cached = torch.tensor(seqlens, dtype=torch.int32, device="cuda")
    blocks = torch.arange(12, dtype=torch.int32, device="cuda").view(3, 4)
    if rng.random() < 0.5:
        blocks[rng.integers(3), rng.integers(4)] = int(rng.choice((-1, 12, 2**31 - 1)))
    table = {"block_table": blocks} if is_paged else {}
    return (
        f"flash_attn_with_kvcache, {seqlens.tolist()}, {blocks.tolist()}",
        lambda: flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=cached, **table),
    )
