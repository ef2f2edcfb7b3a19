"""Batched matmul: exact, whatever either side of the batch looks like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parity.exact_matmul import Array, exact, integers

from tmaasync import ops


def stored(backend: Any, matrices: Array, layout: str) -> Any:
    """On the back end, each matrix as it is or with its columns contiguous."""
    if layout == "n":
        return backend.array(matrices)
    return backend.array(np.ascontiguousarray(matrices.swapaxes(-1, -2))).swapaxes(-1, -2)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 1)
@pytest.mark.parametrize(("m", "n", "layout"), [(150, 72, "nt"), (9, 200, "tn"), (150, 72, "tt")])
def test_batches_in_every_layout(backend: Any, m: int, n: int, layout: str) -> None:
    """NaN around every matrix of the operands and of the output, which stays there."""
    a, b = integers(3, m, 72, seed=1), integers(3, 72, n, seed=2)
    given = []
    for matrices, letter in zip((a, b), layout, strict=True):
        rows = matrices if letter == "n" else matrices.swapaxes(1, 2)
        whole = np.full((3, rows.shape[1] + 3, -(-rows.shape[2] // 8) * 8 + 8), np.nan, a.dtype)
        whole[:, : rows.shape[1], : rows.shape[2]] = rows
        part = backend.array(whole)[:, : rows.shape[1], : rows.shape[2]]
        given.append(part if letter == "n" else part.swapaxes(1, 2))
    whole = backend.array(np.full((3, m + 5, n + 8), np.nan, np.float32))

    for _ in range(2):  # the second time by the plan of the first
        ops.matmul(*given, out=whole[:, :m, :n])

    got = np.asarray(backend.host(whole))
    assert np.array_equal(got[:, :m, :n], exact(a, b))
    assert np.isnan(got[:, m:]).all()
    assert np.isnan(got[:, :, n:]).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("left", "right"), [((), (3,)), ((1,), (1,)), ((0,), (0,)), ((3,), (1,))])
def test_one_matrix_goes_with_a_batch(
    backend: Any, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = integers(*left, 70, 40, seed=3), integers(*right, 40, 96, seed=4)

    c = np.asarray(backend.host(ops.matmul(backend.array(a), backend.array(b), dtype=np.float32)))

    assert c.shape == exact(a, b).shape
    assert np.array_equal(c, exact(a, b))


def test_a_batch_that_is_one_matrix_again_and_again(backend: Any) -> None:
    a, b = integers(66, 64, seed=5), integers(3, 64, 80, seed=6)
    again = backend.module.broadcast_to(backend.array(a), (3, 66, 64))

    c = backend.host(ops.matmul(again, stored(backend, b, "t"), dtype=np.float32))

    assert np.array_equal(c, exact(a, b))


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("right", [(2,), ()])
def test_what_tma_cannot_reach_is_copied(backend: Any, right: tuple[int, ...]) -> None:
    """Batches whose rows are no multiple of 16 bytes apart, on all three sides."""
    a, b = integers(2, 67, 33, seed=7), integers(*right, 33, 15, seed=8)
    out = backend.array(np.full((2, 67, 15), np.nan, np.float32))

    ops.matmul(backend.array(a), backend.array(b), out=out)

    assert np.array_equal(backend.host(out), exact(a, b))


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(2))
def test_random_batches(backend: Any, number: int) -> None:
    drawn = np.random.default_rng(number)
    batch, m, n, k = (int(drawn.integers(1, most)) for most in (6, 300, 300, 150))
    a, b = integers(batch, m, k, seed=number), integers(batch, k, n, seed=number + 1)
    layout = ("nn", "nt")[number]
    given = [stored(backend, *side) for side in zip((a, b), layout, strict=True)]

    c = backend.host(ops.matmul(*given, dtype=np.float32))

    assert np.array_equal(c, exact(a, b))
