"""Attention over the positions of several ranks: what each rank holds, and what float64 says."""

from __future__ import annotations

from typing import Any

import numpy as np


def shards(whole: Any, ranks: int, *, causal: bool, axis: int = 1) -> list[Any]:
    """Return each rank's positions: with a causal mask chunks r and 2 P - 1 - r (zigzag)."""
    if not causal:
        return [np.ascontiguousarray(one) for one in np.split(whole, ranks, axis)]
    chunks = np.split(whole, 2 * ranks, axis)
    return [np.concatenate([chunks[r], chunks[2 * ranks - 1 - r]], axis) for r in range(ranks)]


def reference(q: Any, k: Any, v: Any, *, causal: bool, scale: float | None = None) -> Any:
    """Return output and log-sum-exp of whole sequences, in float64."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (one.astype(np.float64).swapaxes(1, 2) for one in (q, k, v))
    k, v = (np.repeat(one, group, 1) for one in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores[..., ~np.tri(scores.shape[-1], dtype=bool)] = -np.inf
    greatest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - greatest)
    total = weights.sum(-1, keepdims=True)
    return (weights / total @ v).swapaxes(1, 2), (greatest + np.log(total))[..., 0]


def drawn(
    rng: np.random.Generator,
    batch: int,
    positions: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: Any,
) -> list[Any]:
    """Return q, k and v of whole sequences."""
    return [
        rng.standard_normal((batch, positions, each, head_dim), np.float32).astype(dtype)
        for each in (heads, kv_heads, kv_heads)
    ]


def check(out: list[Any], whole: list[Any], *, causal: bool, lse: Any = None, **more: Any) -> None:
    """Compare the outputs of all ranks, and their log-sum-exps, with float64."""
    wanted, sums = reference(*whole, causal=causal, **more)
    for found, own in zip(out, shards(wanted, len(out), causal=causal), strict=True):
        assert found.shape == own.shape
        # Outputs and probabilities are rounded to 8 bits.
        assert (abs(found.astype(np.float64) - own) <= 2.0**-7 * (1 + abs(own))).all()
    if lse is not None:
        for found, own in zip(lse, shards(sums, len(out), causal=causal, axis=2), strict=True):
            assert found.shape == own.shape
            assert found.dtype == np.float32
            assert abs(found - own).max() <= 2.0**-16 * max(1, abs(own).max())


def reference_gradients(
    dout: Any, q: Any, k: Any, v: Any, *, causal: bool, scale: float | None = None
) -> list[Any]:
    """Return dq, dk and dv of whole sequences, in float64."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[2] // k.shape[2]
    dout, q, k, v = (one.astype(np.float64) for one in (dout, q, k, v))
    dq, dk, dv = map(np.zeros_like, (q, k, v))
    # One head at a time: scores of all would need gigabytes, and einsum does not call BLAS.
    for entry, head in np.ndindex(q.shape[0], q.shape[2]):
        own, shared = np.s_[entry, :, head], np.s_[entry, :, head // group]
        scores = q[own] @ k[shared].T * factor
        if causal:
            scores[~np.tri(len(scores), dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        of_weights = dout[own] @ v[shared].T
        delta = (weights * of_weights).sum(-1, keepdims=True)
        of_scores = weights * (of_weights - delta) * factor
        dq[own] = of_scores @ k[shared]
        dk[shared] += of_scores.T @ q[own]
        dv[shared] += weights.T @ dout[own]
    return [dq, dk, dv]


def check_gradients(found: Any, dout: Any, whole: list[Any], *, causal: bool, **more: Any) -> None:
    """Compare dq, dk and dv of all ranks with float64."""
    wanted = reference_gradients(dout, *whole, causal=causal, **more)
    for arrays, one in zip(found, wanted, strict=True):
        for array, own in zip(arrays, shards(one, len(arrays), causal=causal), strict=True):
            assert array.shape == own.shape
            off = array.astype(np.float64) - own
            # P, dS, the output, and each rank's part of dK and dV are rounded to 8 bits.
            assert np.linalg.norm(off) <= 2.0**-6 * np.linalg.norm(own)
            assert (abs(off) <= 2.0**-4 * (abs(own) + np.abs(own).max() / 4)).all()
