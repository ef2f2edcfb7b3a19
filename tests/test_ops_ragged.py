"""Packing and spreading out without a GPU: what is refused, and what costs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, TensorMapError, ops


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    whole = np.zeros(size + 128, np.uint8)
    start = -whole.ctypes.data % 128
    return whole[start : start + size].view(kind).reshape(shape)


def test_an_operation_refuses_what_does_not_fit() -> None:
    padded, packed = aligned((3, 8, 32)), aligned((20, 32))

    with pytest.raises(ArgumentError, match="lengths describes 2 sequences; padded has 3"):
        ops.ragged_store(padded, [1, 2])
    with pytest.raises(ArgumentError, match="no sequence may have more than max_length, 8 rows"):
        ops.ragged_store(padded, [1, 2, 9])
    with pytest.raises(ArgumentError, match="the sum of lengths is 21; the packed array has 20"):
        ops.ragged_store(padded, [7, 7, 7], packed)
    with pytest.raises(ArgumentError, match=r"out has shape \(20, 16\); it must be \(20, 32\)"):
        ops.ragged_store(padded, [1, 2, 3], aligned((20, 16)))
    with pytest.raises(ArgumentError, match="out has element float64; it must be float32"):
        ops.ragged_store(padded, [1, 2, 3], aligned((20, 32), np.float64))
    with pytest.raises(ArgumentError, match=r"out has shape \(3, 8, 32\); it must be \(2, 8, 32\)"):
        ops.ragged_load(packed, [1, 2], padded)
    with pytest.raises(ArgumentError, match="no sequence may have more than max_length, 4 rows"):
        ops.ragged_load(packed, [1, 5], max_length=4)
    with pytest.raises(ArgumentError, match="max_length is -1; it must be an integer of 0 or more"):
        ops.ragged_load(packed, [], max_length=-1)
    with pytest.raises(ArgumentError, match=r"padded\.shape is \(20, 32\); it must have the shape"):
        ops.ragged_store(packed, [1])
    with pytest.raises(ArgumentError, match="out overlaps the other array"):
        ops.ragged_load(padded.reshape(24, 32), [1, 2], padded[:2], max_length=8)


def test_an_operation_refuses_rows_that_tma_cannot_reach() -> None:
    with pytest.raises(TensorMapError, match=r"padded's rows is 12 bytes long; TMA moves rows in"):
        ops.ragged_store(aligned((2, 4, 3)), [1, 2])
    with pytest.raises(TensorMapError, match="packed's last stride is 8; the last dimension must"):
        ops.ragged_load(aligned((20, 32, 2))[:, :, 0], [1, 2])
    with pytest.raises(TensorMapError, match="packed's address is 0x"):
        ops.ragged_load(aligned((9, 32)).reshape(-1)[1:257].reshape(8, 32), [1, 2])


def test_a_read_only_output_is_refused() -> None:
    out = aligned((2, 8, 32))
    out.flags.writeable = False

    with pytest.raises(ArgumentError, match="out is read only"):
        ops.ragged_load(aligned((20, 32)), [1, 2], out)


def test_empty_batches_cost_nothing() -> None:
    assert ops.ragged_store(aligned((0, 8, 32)), []).shape == (0, 32)
    assert ops.ragged_store(aligned((2, 8, 32)), [0, 0]).shape == (0, 32)
    assert ops.ragged_load(aligned((5, 32)), []).shape == (0, 0, 32)
    assert (ops.ragged_load(aligned((0, 32)), [0, 0], max_length=3) == 0).all()
