"""Ragged all-to-alls of random counts, and what NumPy's concatenation makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np


def drawn_counts(rng: np.random.Generator, ranks: int, experts: int, most: int) -> Any:
    """Return how many tokens of each rank go to each expert; many experts get none."""
    counts = rng.integers(0, most, (ranks, experts)) * (rng.random((ranks, experts)) > 0.3)
    counts[:, rng.integers(experts)] = 0
    if ranks > 2:
        counts[rng.integers(ranks)] = 0
    return counts.astype(np.int32)


def drawn_tokens(rng: np.random.Generator, counts: Any, inner: tuple[int, ...], dtype: Any) -> Any:
    return [rng.integers(-99, 99, (int(one.sum()), *inner)).astype(dtype) for one in counts]


def packed(tokens: list[Any], counts: Any) -> list[Any]:
    """Return the packed rows of each owner: by its experts, then by the ranks they come from."""
    ranks, experts = counts.shape
    parts = [np.split(one, np.cumsum(own)[:-1]) for one, own in zip(tokens, counts, strict=True)]
    owned = np.split(np.arange(experts), ranks)
    return [np.concatenate([part[e] for e in own for part in parts]) for own in owned]


def packed_ends(counts: Any) -> list[Any]:
    return [np.cumsum(own) for own in np.split(counts.sum(0), len(counts))]
