"""Results of the demo's operations in NumPy and float64, to compare ours with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]


def _exact(*arrays: _Array) -> tuple[_Array, ...]:
    return tuple(array.astype(np.float64) for array in arrays)


def matmul(a: _Array, b: _Array) -> _Array:
    """Return A[M, K] times the transpose of B[N, K]."""
    a, b = _exact(a, b)
    return np.asarray(a @ b.T)


def grouped(a: _Array, b: _Array, offsets: Sequence[int]) -> _Array:
    """Return the rows of A, each group of them times the transpose of its own B[N, K]."""
    groups = np.split(a, offsets[:-1])
    return np.concatenate([matmul(rows, own) for rows, own in zip(groups, b, strict=True)])


def scaled(a: _Array, b: _Array, scale_a: _Array, scale_b: _Array) -> _Array:
    """Return the matmul of A[M, K] and B[N, K], with [M, K / 128] and [K / 128, N / 128] scales."""
    a, b, scale_a, scale_b = _exact(a, b, scale_a, scale_b)
    of_a = scale_a.repeat(128, axis=1)
    of_b = scale_b.T.repeat(128, axis=0).repeat(128, axis=1)
    return matmul(a * of_a, b * of_b[: b.shape[0], : b.shape[1]])


def conv2d(images: _Array, filters: _Array) -> _Array:
    """Convolve images [N, H, W, C] with filters [K, 3, 3, C], with one pixel of zeros around."""
    images, filters = _exact(images, filters)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.asarray(np.einsum("npqcrs,krsc->npqk", windows, filters, optimize=True))


def attention(q: _Array, k: _Array, v: _Array) -> _Array:
    """Return causal attention of [batch, rows, heads, head_dim], with fewer KV heads (GQA)."""
    return np.stack([_attention(*arrays) for arrays in zip(*_exact(q, k, v), strict=True)])


def varlen_attention(q: _Array, k: _Array, v: _Array, cu_seqlens: Sequence[int]) -> _Array:
    """Return causal attention within each of the sequences that are packed one after the other."""
    ends = cu_seqlens[1:-1]
    parts = zip(*(np.split(array, ends) for array in _exact(q, k, v)), strict=True)
    return np.concatenate([_attention(*arrays) for arrays in parts])


def _attention(q: _Array, k: _Array, v: _Array) -> _Array:
    rows, heads, head_dim = q.shape
    k, v = (array.repeat(heads // array.shape[1], axis=1) for array in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(head_dim)
    scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities = scores / scores.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("hqk,khd->qhd", probabilities, v))


def packed(padded: _Array, lengths: Sequence[int]) -> _Array:
    """Return the sequences of a padded batch, one after the other."""
    return np.concatenate([rows[:n] for rows, n in zip(padded, lengths, strict=True)])
