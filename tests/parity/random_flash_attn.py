"""Random calls of flash_attn's three functions, against what its documentation says, in float64.

A call follows from its number alone. Small ones run on the emulator and share their kernels: few
masks, one type, one head_dim and its padding.
"""

from __future__ import annotations

import importlib
import itertools
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch
from parity.attention_oracle import Array, Mask, assert_close, attend

operators: Any = importlib.import_module("tmaasync.torch")

_NUMPY = {torch.float16: np.dtype(np.float16), torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}
_Window = tuple[int, int]


@dataclass
class Call:
    """What all three functions take, and the generator that the rest is drawn from."""

    rng: np.random.Generator
    device: str
    is_small: bool
    heads: int
    kv_heads: int
    head_dim: int
    dtype: Any
    causal: bool
    window: _Window
    softcap: float
    scale: float | None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Give every option by its name in flash_attn, and those with their default at times."""
        given = {
            "softmax_scale": (self.scale, None),
            "causal": (self.causal, False),
            "window_size": (self.window, (-1, -1)),
            "softcap": (self.softcap, 0.0),
        }
        for name, (value, default) in given.items():
            if value != default or self.rng.random() < 0.5:
                self.options[name] = value

    @property
    def longest(self) -> int:
        return 40 if self.is_small else 500

    def integers(self, low: int, high: int, *shape: int) -> Any:
        return self.rng.integers(low, high + 1, shape)

    def normal(self, *shape: int) -> Any:
        """Draw a tensor, whose rows may lie apart."""
        apart = 8 * int(self.integers(0, 1))
        values = self.rng.standard_normal((*shape[:-1], shape[-1] + apart)).astype(np.float32)
        return torch.from_numpy(values).to(self.dtype).to(self.device)[..., apart:]

    def int32(self, values: Any) -> Any:
        return torch.tensor(np.asarray(values), dtype=torch.int32, device=self.device)

    def expect(self, out: Any, lse: Any, q: Any, k: Any, v: Any) -> None:
        """Compare [positions, heads, head_dim] and the log-sum-exp [heads, positions]."""
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        left, right = (None if side < 0 else side for side in self.window)
        softcap = self.softcap or None
        mask = Mask(self.causal, (left, right))
        wanted = attend(host(q), host(k), host(v), mask, self.scale, softcap)
        assert_close(host(out), lse.cpu().numpy(), wanted, host(v))


def host(tensor: Any) -> Array:
    """Return a NumPy array of the tensor's own type."""
    bits = tensor.contiguous().view(torch.int16).cpu().numpy()
    array: Array = bits.view(_NUMPY[tensor.dtype])
    return array


def draw(number: int, device: str, *, is_small: bool) -> Call:
    """Draw what the functions have in common."""
    rng = np.random.default_rng((24, number))
    windows = [(-1, -1), (7, -1)] if is_small else [(-1, -1), (-1, -1), (70, -1), (40, 30), (-1, 9)]
    window = windows[int(rng.integers(len(windows)))]
    if is_small:
        causal, softcap = window != (-1, -1) or number % 2 == 0, 3.0 if window[0] >= 0 else 0.0
        dtype, head_dim = torch.float16, (16, 13)[number // 3 % 2]
    else:
        causal, softcap = bool(rng.integers(2)), float(rng.choice([0.0, 0.0, 5.0]))
        dtype = (torch.bfloat16, torch.float16)[number % 2]
        head_dim = int(rng.choice([8, 20, 64, 64, 96, 128, 256]))
    kv_heads = int(rng.integers(1, 4))
    scale = None if rng.integers(2) else float(rng.uniform(0.02, 0.5))
    heads = kv_heads * int(rng.integers(1, 4 if is_small else 9))
    shape = (heads, kv_heads, head_dim)
    return Call(rng, device, is_small, *shape, dtype, causal, window, softcap, scale)


def check(number: int, device: str, *, is_small: bool) -> None:
    """Make the call of this number, and compare it with the oracle."""
    checks = (_check_padded, _check_packed, _check_cache)
    checks[number % 3](draw(number, device, is_small=is_small))


def _check_padded(call: Call) -> None:
    batch = int(call.integers(1, 3))
    queries, keys = (int(size) for size in call.integers(1, call.longest, 2))
    q = call.normal(batch, queries, call.heads, call.head_dim)
    k, v = (call.normal(batch, keys, call.kv_heads, call.head_dim) for _ in range(2))

    out, lse, none = operators.flash_attn_func(q, k, v, **call.options, return_attn_probs=True)

    assert none is None
    for i in range(batch):
        call.expect(out[i], lse[i], q[i], k[i], v[i])


def _check_packed(call: Call) -> None:
    lengths = call.integers(0, call.longest, 2, int(call.integers(1, 4)))
    lengths[:, 0] += 1
    sums = [[0, *itertools.accumulate(map(int, one))] for one in lengths]
    q = call.normal(sums[0][-1], call.heads, call.head_dim)
    k, v = (call.normal(sums[1][-1], call.kv_heads, call.head_dim) for _ in range(2))
    longest = [int(one.max()) for one in lengths]

    out, lse, none = operators.flash_attn_varlen_func(
        q, k, v, *map(call.int32, sums), *longest, **call.options, return_attn_probs=True
    )

    assert none is None
    for (a, b), (c, d) in zip(*map(itertools.pairwise, sums), strict=True):
        call.expect(out[a:b], lse[:, a:b], q[a:b], k[c:d], v[c:d])


@dataclass
class Cache:
    """Keys and values, whole or in blocks, and the entries that belong to each sequence."""

    arrays: list[Any]
    entries: Array
    is_paged: bool

    @classmethod
    def draw(cls, call: Call, batch: int) -> Cache:
        is_paged = bool(call.integers(0, 1))
        size = 32 if call.is_small else int(call.rng.choice([16, 64, 256]))
        each = int(call.integers(1, 3)) if is_paged else 1
        entries = call.rng.permutation(batch * each + 2)[: batch * each].reshape(batch, each)
        shape = (batch * each + 2, size, call.kv_heads, call.head_dim)
        return cls([call.normal(*shape) for _ in range(2)], entries, is_paged)

    @property
    def capacity(self) -> int:
        return int(self.entries.shape[1] * self.arrays[0].shape[1])

    def where(self, call: Call) -> dict[str, Any]:
        if self.is_paged:
            return {"block_table": call.int32(self.entries)}
        return {"cache_batch_idx": call.int32(self.entries[:, 0])}

    def rows(self, sequence: int) -> list[Any]:
        """Return a copy of all rows of a sequence, of the keys and of the values."""
        return [one[self.entries[sequence]].flatten(0, 1) for one in self.arrays]

    def others(self) -> list[Any]:
        """Return a copy of the entries that belong to no sequence."""
        used = set(self.entries.flatten().tolist())
        return [one[sorted(set(range(len(one))) - used)] for one in self.arrays]


def _check_cache(call: Call) -> None:
    """Check a call with a cache: with or without new keys, and of both functions that read one."""
    call.head_dim = -(-call.head_dim // 8) * 8
    batch, queries, new = (int(size) for size in call.integers(1, 5, 3))
    cache = Cache.draw(call, batch)
    lengths = call.integers(1, cache.capacity - 5, batch)
    kind = int(call.integers(0, 3))
    if kind == 0:
        lengths[:] = lengths[0]
    q = call.normal(batch, queries, call.heads, call.head_dim)
    added = [call.normal(batch, new, call.kv_heads, call.head_dim) for _ in range(2)]
    if kind in (1, 3):
        added = [one[:, :0] for one in added]
    before = [cache.rows(i) for i in range(batch)]
    others = cache.others()

    if kind == 3 and cache.is_paged:
        out, lse = _packed_queries(call, q, cache, lengths)
    else:
        out, lse = operators.flash_attn_with_kvcache(
            *(q, *cache.arrays, *(() if kind in (1, 3) else added)),
            cache_seqlens=int(lengths[0]) if kind == 0 else call.int32(lengths),
            **cache.where(call),
            **call.options,
            return_softmax_lse=True,
        )

    for i, held in enumerate(map(int, lengths)):
        k, v = (
            torch.cat([one[:held], more[i]]) for one, more in zip(before[i], added, strict=True)
        )
        call.expect(out[i], lse[i], q[i], k, v)
        for now, old, wanted in zip(cache.rows(i), before[i], (k, v), strict=True):
            assert torch.equal(now, torch.cat([wanted, old[len(wanted) :]]))
    assert all(torch.equal(*pair) for pair in zip(cache.others(), others, strict=True))


def _packed_queries(call: Call, q: Any, cache: Cache, lengths: Array) -> tuple[Any, Any]:
    """Read a cache in blocks by flash_attn_varlen_func."""
    batch, queries = q.shape[:2]
    sums = [queries * np.arange(batch + 1), np.concatenate([[0], lengths.cumsum()])]
    out, lse, _ = operators.flash_attn_varlen_func(
        *(q.flatten(0, 1), *cache.arrays, *map(call.int32, sums), queries, int(lengths.max())),
        **cache.where(call),
        **call.options,
        return_attn_probs=True,
    )
    return out.view(q.shape), lse.view(call.heads, batch, queries).transpose(0, 1)
