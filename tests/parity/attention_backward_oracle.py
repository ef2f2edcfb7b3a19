"""Gradients of attention in float64, head by head, and how far 16-bit P and dS may be from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from parity.attention_oracle import ROUNDING, Array, Mask, attend

# Relative error of exponentials and sums in fp32; row sums of dO * O have the output's rounding.
_ARITHMETIC = 2e-5
# Absolute error of P and dS below the least normal number of fp16.
_LEAST = {"float16": 2.0**-25}


@dataclass(frozen=True)
class Expected:
    """A gradient, and an upper bound of its error."""

    gradient: Array
    bound: Array


@dataclass(frozen=True)
class Saved:
    """What the forward leaves to the backward: the output, rounded, and the log-sum-exp."""

    out: Array
    lse: Array


def saved(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask,
    scale: float | None = None,
    softcap: float | None = None,
) -> Saved:
    expected = attend(q, k, v, mask, scale, softcap)
    return Saved(expected.out.astype(q.dtype), expected.lse.astype(np.float32))


def differentiate(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    mask: Mask,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Expected, Expected, Expected]:
    """dq, dk and dv of one entry of a batch: [positions, heads, head_dim]."""
    queries, heads, head_dim = q.shape
    keys, kv_heads, _ = k.shape
    factor = head_dim**-0.5 if scale is None else scale
    rounding, least = ROUNDING[q.dtype.name], _LEAST.get(q.dtype.name, 0.0)
    seen = mask.visible(queries, keys)
    shapes = (q.shape, k.shape, v.shape)
    sums, bounds = ([np.zeros(shape) for shape in shapes] for _ in range(2))
    for head in range(heads):
        kv_head = head * kv_heads // heads
        one_q, one_do = (array[:, head].astype(np.float64) for array in (q, dout))
        one_k, one_v = (array[:, kv_head].astype(np.float64) for array in (k, v))
        p, slope = _probabilities(one_q @ one_k.T * factor, seen, softcap)
        dp = one_do @ one_v.T
        delta = (p * dp).sum(1, keepdims=True)
        ds = p * (dp - delta) * slope
        # Errors: P and dS have their own rounding, and delta has the output's.
        of_delta = (abs(one_do) * (p @ abs(one_v))).sum(1, keepdims=True)
        of_p = (rounding + _ARITHMETIC) * p + least
        of_dp = _ARITHMETIC * (abs(one_do) @ abs(one_v).T)
        of_ds = (rounding + _ARITHMETIC) * abs(ds) + p * (2 * rounding * of_delta + of_dp) + least
        places = ((0, head), (1, kv_head), (2, kv_head))
        values = (ds @ one_k * factor, ds.T @ one_q * factor, p.T @ one_do)
        errors = (of_ds @ abs(one_k) * factor, of_ds.T @ abs(one_q) * factor, of_p.T @ abs(one_do))
        for (which, at), value, error in zip(places, values, errors, strict=True):
            sums[which][:, at] += value
            bounds[which][:, at] += error
    dq, dk, dv = (
        Expected(gradient, bound + rounding * abs(gradient) + _ARITHMETIC + least)
        for gradient, bound in zip(sums, bounds, strict=True)
    )
    return dq, dk, dv


def _probabilities(
    scores: Array, seen: Array, softcap: float | None
) -> tuple[Array, Array | float]:
    """P, and the derivative of softcap."""
    slope: Array | float = 1.0
    if softcap is not None:
        capped = np.tanh(scores / softcap)
        scores, slope = softcap * capped, 1 - capped**2
    scores = np.where(seen, scores, -np.inf)
    most = scores.max(1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isfinite(most), most, 0))
    total = p.sum(1, keepdims=True)
    return p / np.where(total == 0, 1, total), slope


def assert_gradient(got: Array, expected: Expected) -> None:
    error = abs(got.astype(np.float64) - expected.gradient)
    assert not np.isnan(error).any()
    assert (error <= expected.bound).all(), (error / expected.bound).max()
