"""Batch-invariant calls give rows and sequences the same bits, whatever else is in the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import ops

# `make test` has the plain attention of test_attention.py.
pytestmark = pytest.mark.slow

HEADS, HEAD_DIM, PAGE = 2, 64, 64
KEYS = 1000
OTHERS: tuple[list[int], ...] = ([], [40, 2500], [KEYS] * 9)
"""Key counts of the sequences after the first."""


def drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def check(found: list[Any], expected: Any, tolerance: float) -> None:
    np.testing.assert_allclose(found[0], expected, atol=tolerance)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def softmax_of(q: Any, k: Any, v: Any) -> Any:
    """Attention of one query [heads, head_dim], in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, len(q) // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("hd,nhd->hn", q, k) / np.sqrt(HEAD_DIM)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("hn,nhd->hd", weights / weights.sum(axis=1, keepdims=True), v)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("k", [4096, 500])
def test_rows_of_matmul_do_not_depend_on_m(k: int, backend: Any) -> None:
    rows, matrix = drawn(0, 700, k), drawn(1, k, 64)
    a, b = backend.array(rows), backend.array(matrix)

    found = [
        backend.host(ops.matmul(a[:m], b, dtype="float32", batch_invariant=True))[:3]
        for m in (3, 8, 64, 700)
    ]

    expected = rows[:3].astype(np.float64) @ matrix.astype(np.float64)
    check(found, expected, 1e-3 * np.abs(expected).max())


def test_groups_of_matmul_do_not_depend_on_the_others(backend: Any) -> None:
    rows, matrices = drawn(0, 700, 2048), drawn(1, 3, 2048, 64)
    a, b = backend.array(rows), backend.array(matrices)

    found = [
        backend.host(ops.grouped_matmul(a[:total], b, [3, 3, total], dtype="float32"))[:3]
        for total in (3, 70, 700)
    ]

    expected = rows[:3].astype(np.float64) @ matrices[0].astype(np.float64)
    check(found, expected, 1e-3 * np.abs(expected).max())


def test_a_decoded_sequence_does_not_depend_on_the_others(backend: Any) -> None:
    heads_per_kv_head, found = 4, []
    for others in OTHERS:
        lengths = [KEYS, *others]
        pages = [-(-length // PAGE) for length in lengths]
        k, v = (drawn(seed, sum(pages), PAGE, HEADS, HEAD_DIM) for seed in (1, 2))
        q = drawn(3, len(lengths), heads_per_kv_head * HEADS, HEAD_DIM)
        table = np.zeros((len(lengths), max(pages)), np.int32)
        for row, count in zip(table, pages, strict=True):
            row[:count] = np.arange(count) + table.max() + (table.max() > 0)
        ends_q, ends_k = np.arange(len(lengths) + 1), np.cumsum([0, *lengths])
        out, lse = ops.varlen_attention(
            backend.array(q),
            backend.array(k),
            backend.array(v),
            ends_q,
            ends_k,
            1,
            max(lengths),
            page_table=backend.array(table),
            batch_invariant=True,
            return_lse=True,
        )
        found.append((backend.host(out)[0], backend.host(lse)[:, 0]))

    keys, values = (drawn(seed, KEYS // PAGE + 1, PAGE, HEADS, HEAD_DIM) for seed in (1, 2))
    flat = (-1, HEADS, HEAD_DIM)
    expected = softmax_of(q[0], keys.reshape(flat)[:KEYS], values.reshape(flat)[:KEYS])
    check([out for out, _ in found], expected, 2e-3)
    check([lse for _, lse in found], found[0][1], 0)


def test_an_entry_of_padded_attention_does_not_depend_on_the_batch(backend: Any) -> None:
    batches = (1, 2, 20)
    arrays = [drawn(seed, max(batches), 1000, HEADS, HEAD_DIM) for seed in (1, 2, 3)]
    arrays[0] = arrays[0][:, :1]
    found = []
    for batch in batches:
        q, k, v = (backend.array(array[:batch].copy()) for array in arrays)
        out, lse = ops.attention(q, k, v, batch_invariant=True, return_lse=True)
        found.append((backend.host(out)[0, 0], backend.host(lse)[0]))

    expected = softmax_of(arrays[0][0, 0], arrays[1][0], arrays[2][0])
    check([out for out, _ in found], expected, 2e-3)
    check([lse for _, lse in found], found[0][1], 0)
