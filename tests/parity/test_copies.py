"""Copies are exact on either back end, and touch nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import ops

SHAPES = [(1000,), (40, 56), (7, 8, 16), (3, 4, 5, 16), (2, 3, 2, 5, 8)]


def values(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(len(shape)).random(shape, np.float32)


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 2, 4)
@pytest.mark.parametrize("shape", SHAPES)
def test_contiguous_arrays_of_every_rank(backend: Any, shape: tuple[int, ...]) -> None:
    x = values(shape)

    y = ops.copy(backend.array(x))

    assert np.array_equal(backend.host(y), x)


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(1, 3)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_windows_of_every_rank(backend: Any, shape: tuple[int, ...]) -> None:
    x = values(shape)
    whole = backend.array(np.full((*shape[:-1], shape[-1] * 2), -1, np.float32))

    ops.copy(backend.array(x), whole[..., : shape[-1]])

    got = backend.host(whole)
    assert np.array_equal(got[..., : shape[-1]], x)
    assert (got[..., shape[-1] :] == -1).all()


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(1, 3, 4)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 32769, 1_000_003])
def test_contiguous_memory_of_any_size(backend: Any, size: int) -> None:
    x = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    whole = backend.array(np.full(size + 64, 0xA5, np.uint8))

    ops.copy(backend.array(x), whole[:size])

    got = backend.host(whole)
    assert np.array_equal(got[:size], x)
    assert (got[size:] == 0xA5).all()
