"""Paged KV caches: tables in random order, pages that sequences share, NaN elsewhere."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
from parity.attention_oracle import Array, Mask
from parity.random_attention import Problem, draw

# The mask and option for each page size. One each, so that few kernels are built.
KINDS = {
    16: (Mask("bottom_right", (70, None)), None),
    64: (Mask(), None),
    128: (Mask(True), None),
    256: (Mask(window=(40, 90)), 30.0),
}
_WILD = (-1, 1 << 30, -(1 << 31))


@dataclass(frozen=True)
class PagedKeys:
    """Arrays of [pages, page_size, heads, head_dim], and which of the pages sequences have."""

    k: Array
    v: Array
    table: Array

    def of(self, sequence: int, length: int) -> tuple[Array, Array]:
        """The keys and values of a sequence, one after the other."""
        size = self.k.shape[1]
        pages = self.table[sequence, : -(-length // size)]
        row = self.k.shape[2:]
        k, v = (array[pages].reshape(-1, *row)[:length] for array in (self.k, self.v))
        return k, v


def draw_paged(number: int, size: int, *, small: bool) -> Problem:
    """The problem of this number, with the mask that goes with the size of its pages."""
    mask, softcap = KINDS[size]
    problem = draw(number, small=small)
    head_dim = 64 if small else (64, 128, 256)[number % 3]
    dtype = problem.dtype if small else "bfloat16"
    lengths = (*problem.keys[:-1], random.Random(number).choice((size, 0, problem.keys[-1])))
    return replace(
        problem, keys=lengths, mask=mask, softcap=softcap, head_dim=head_dim, dtype=dtype
    )


def paged_from(problem: Problem, size: int) -> PagedKeys:
    """Return a paged KV cache; unused rows are NaN, entries after the last page are wild.

    Sequences share pages, but most of them have their last page alone.
    """
    rng = np.random.default_rng((problem.number, size))
    used = [-(-length // size) for length in problem.keys]
    count = len(used) + max(2, sum(used) // 2)
    last, shared = np.split(rng.permutation(count), [len(used)])
    width = max(used) + 1
    table = rng.choice(_WILD, (len(used), width)).astype(np.int32)
    rows = np.zeros(count, int)
    for sequence, (pages, length) in enumerate(zip(used, problem.keys, strict=True)):
        table[sequence, :pages] = rng.choice(shared, pages)
        if pages and rng.random() < 0.7:
            table[sequence, pages - 1] = last[sequence]
        for index, page in enumerate(table[sequence, :pages]):
            rows[page] = max(rows[page], min(size, length - index * size))
    k, v = (
        problem.packed(count * size, problem.kv_heads, seed).reshape(
            count, size, problem.kv_heads, problem.head_dim
        )
        for seed in (1, 2)
    )
    for array in (k, v):
        array[np.arange(size) >= rows[:, None]] = np.nan
    return PagedKeys(k, v, table)
