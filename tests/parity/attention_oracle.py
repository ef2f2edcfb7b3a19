"""Attention in float64, head by head, and how far 16-bit probabilities may be from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

# Half a unit in the last place, relative.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float8_e4m3fn": 2.0**-4}
# Relative error of exponentials and sums in fp32.
_ARITHMETIC = 1e-5
# Weights below the least normal number are rounded to multiples of 2^-24 in fp16. In e4m3 to those
# of 2^-9, but the greatest of a row is 2^6 there at least.
_LEAST = {"float16": 2.0**-25, "float8_e4m3fn": 2.0**-16}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True)
class Mask:
    """Arguments of ops.attention; what they mean is said here once more."""

    causal: bool | str = False
    window: tuple[int | None, int | None] | None = None

    def visible(self, queries: int, keys: int) -> Array:
        """Whether each position sees each key."""
        own = np.arange(queries)[:, None]
        if self.causal != "top_left":
            own = own + keys - queries
        distance = np.arange(keys)[None] - own
        seen = np.ones((queries, keys), bool)
        if self.causal:
            seen &= distance <= 0
        left, right = self.window or (None, None)
        if left is not None:
            seen &= distance >= -left
        if right is not None:
            seen &= distance <= right
        return seen


@dataclass(frozen=True)
class Expected:
    out: Array
    lse: Array
    spread: Array
    """Of each output: the sum of the magnitudes that it is made of."""


def attend(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask,
    scale: float | None = None,
    softcap: float | None = None,
) -> Expected:
    """One entry of a batch: [positions, heads, head_dim], and log-sum-exp [heads, positions]."""
    queries, heads, head_dim = q.shape
    keys, kv_heads, _ = k.shape
    seen = mask.visible(queries, keys)
    outs, sums, spreads = [], [], []
    for head in range(heads):
        kv_head = head * kv_heads // heads
        wide = (array.astype(np.float64) for array in (q[:, head], k[:, kv_head], v[:, kv_head]))
        one_q, one_k, one_v = wide
        scores = one_q @ one_k.T * (head_dim**-0.5 if scale is None else scale)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = np.where(seen, scores, -np.inf)
        most = scores.max(1, keepdims=True, initial=-np.inf)
        probabilities = np.exp(scores - np.where(np.isfinite(most), most, 0))
        total = probabilities.sum(1, keepdims=True)
        probabilities /= np.where(total == 0, 1, total)
        with np.errstate(divide="ignore"):
            sums.append((np.where(np.isfinite(most), most, 0) + np.log(total))[:, 0])
        outs.append(probabilities @ one_v)
        spreads.append(probabilities @ abs(one_v))
    axis = 1
    return Expected(np.stack(outs, axis), np.stack(sums), np.stack(spreads, axis))


def assert_close(
    got: Array, lse: Array | None, expected: Expected, v: Array, probabilities: str | None = None
) -> None:
    """Compare with the output rounded once, of probabilities rounded once; the lse in fp32.

    ``probabilities`` is their type, by default the output's.
    """
    rounding, of_probabilities = ROUNDING[got.dtype.name], ROUNDING[probabilities or got.dtype.name]
    largest = abs(v.astype(np.float64)).max(initial=0)
    bound = of_probabilities * expected.spread + rounding * abs(expected.out)
    bound = bound + _ARITHMETIC * (1 + expected.spread)
    bound = bound + len(v) * _LEAST.get(probabilities or got.dtype.name, 0.0) * largest
    error = abs(got.astype(np.float64) - expected.out)
    assert not np.isnan(error).any()
    assert (error <= bound).all(), (error / bound).max()
    if lse is not None:
        finite = np.isfinite(expected.lse)
        assert np.array_equal(lse[~finite], expected.lse[~finite])
        # The tensor cores keep 14 bits or so of float8 scores.
        off = 1e-5 if probabilities is None else 5e-3
        np.testing.assert_allclose(lse[finite], expected.lse[finite], rtol=off, atol=off)


def scales_of_heads(scales: tuple[Any, ...] | None, entries: int, kv_heads: int) -> Array:
    """Return float64 scales of q, k and v: [3, entries, kv_heads]."""
    given = (np.float64(1.0 if scale is None else scale) for scale in scales or (None,) * 3)
    return np.stack([np.broadcast_to(scale, (entries, kv_heads)) for scale in given])


def assert_close_in_float8(
    got: Array,
    lse: Array,
    operands: tuple[Array, Array, Array],
    scales: Array,
    mask: Mask,
    **options: Any,
) -> None:
    """Compare one entry, whose operands have a scale for each head of keys, and its lse."""
    of_q, of_k, of_v = (scale[:, None] for scale in scales)
    q, k, v = (array.astype(np.float64) for array in operands)
    group = q.shape[1] // k.shape[1]
    expected = attend(q * np.repeat(of_q, group, axis=0), k * of_k, v * of_v, mask, **options)
    assert_close(got, lse, expected, v * of_v, "float8_e4m3fn")
    assert_typical(got, expected.out)


def assert_typical(got: Array, wanted: Array) -> None:
    """Roundings of weights that nothing has in common cancel: together they are 2.5 %."""
    error = np.linalg.norm(got.astype(np.float64) - wanted)
    assert error <= 0.035 * np.linalg.norm(wanted)
