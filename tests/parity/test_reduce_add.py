"""Reductions by TMA add to every element once, and touch nothing else, on either back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, ArrayTypeError, TensorMapError, ops

SHAPES = [(8,), (1000,), (2, 3, 5, 8)]
TYPES = ["float16", "int32", "int64"]


def draw(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Any:
    """Small integers: their sums are exact in every type, in any order."""
    return np.random.default_rng([*shape, seed]).integers(0, 50, shape).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_contiguous_arrays_of_every_rank_are_added(backend: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    target = backend.array(x)

    assert ops.reduce_add(target, backend.array(y)) is target

    wanted = (x.astype(np.float64) + y).astype(np.float32)
    assert np.array_equal(backend.host(target), wanted)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_that_tma_adds(backend: Any, dtype: str) -> None:
    x, y = draw((3, 520), dtype), draw((3, 520), dtype, 1)
    if dtype.startswith(("int", "uint")):
        x = x - np.array(25, dtype)  # wraps around
    target = backend.array(x)

    ops.reduce_add(target, backend.array(y))

    assert np.array_equal(backend.host(target), x + y)


@pytest.mark.parametrize("shape", [(40, 56), (2, 3, 5, 8)])
def test_windows_are_added_to_windows(backend: Any, shape: tuple[int, ...]) -> None:
    x, y = draw((*shape[:-1], 2 * shape[-1])), draw((*shape[:-1], 3 * shape[-1]), seed=1)
    whole, half = backend.array(x), shape[-1]

    ops.reduce_add(whole[..., half:], backend.array(y)[..., :half])

    wanted = x.copy()
    wanted[..., half:] += y[..., :half]
    assert np.array_equal(backend.host(whole), wanted)


@pytest.mark.parametrize(("count", "shape"), [(5, (1000,)), (40, (2, 24)), (1, (2, 24))])
def test_a_stack_of_arrays_is_added_to_one(
    backend: Any, count: int, shape: tuple[int, ...]
) -> None:
    x, y = draw(shape), draw((count, *shape), seed=1)
    whole = backend.array(np.stack([x, x]))

    ops.reduce_add(whole[0], backend.array(y))

    got = backend.host(whole)
    assert np.array_equal(got[0], x + y.sum(0))
    assert np.array_equal(got[1], x)


def test_windows_of_a_stack_are_added_again(backend: Any) -> None:
    x, y = draw((12, 40)), draw((6, 12, 64), seed=1)
    target, source = backend.array(x), backend.array(y)[::2, :, 8:48]

    for _ in range(3):
        ops.reduce_add(target, source)

    assert np.array_equal(backend.host(target), x + 3 * y[::2, :, 8:48].sum(0))


def test_empty_arrays_are_left_alone(backend: Any) -> None:
    target = backend.array(np.zeros((0, 8), np.float32))
    assert ops.reduce_add(target, backend.array(np.zeros((3, 0, 8), np.float32))) is target


def test_what_tma_cannot_add_is_refused(backend: Any) -> None:
    x = backend.array(np.zeros((4, 8), np.float32))
    for source, error, message in [
        (np.zeros((4, 8), np.int32), ArrayTypeError, "target holds float32 and source int32"),
        (np.zeros((4, 9), np.float32), ArgumentError, r"target has shape \(4, 8\); the source"),
        (np.zeros((2, 2, 4, 8), np.float32), ArgumentError, "or the source a stack of arrays"),
    ]:
        with pytest.raises(error, match=message):
            ops.reduce_add(x, backend.array(source))
    small = backend.array(np.zeros((4, 16), np.uint8))
    with pytest.raises(ArrayTypeError, match="target holds uint8"):
        ops.reduce_add(small, backend.array(np.zeros((4, 16), np.uint8)))
    with pytest.raises(ArgumentError, match="overlaps"):
        ops.reduce_add(x[1:], x[:-1])
    odd = backend.array(np.zeros((4, 8), np.float32))[:, :7]
    with pytest.raises(TensorMapError, match="16-byte sectors"):
        ops.reduce_add(odd, backend.array(np.zeros((4, 8), np.float32))[:, :7])
    nine = backend.array(np.zeros(9, np.float32))
    with pytest.raises(TensorMapError, match="16-byte sectors"):
        ops.reduce_add(nine, backend.array(np.zeros(9, np.float32)))
