"""Packed and spread out on either back end: rows as they were, zeros after them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import ops

POISON = 0xA5
ROWS = [(64,), (3, 32), (2, 3, 16), (1040,)]
LENGTHS = [[5, 0, 1, 37, 36, 37, 0], [0], [1], [37] * 3, [0, 0, 0]]
LONGEST = 37


def random_bits(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    kind = np.dtype(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, kind.itemsize))
    return raw.astype(np.uint8).view(kind)[..., 0]


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(np.uint8)


def poisoned(backend: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    raw = np.full((*shape, np.dtype(dtype).itemsize), POISON, np.uint8)
    return backend.array(raw.view(dtype)[..., 0])


@pytest.mark.sampled(3)
@pytest.mark.on_the_cpu(0, 1, 2, 3, 5, 10, 15)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_packing_keeps_rows_and_leaves_the_rows_after_them(
    backend: Any, row: tuple[int, ...], lengths: list[int]
) -> None:
    padded = random_bits((len(lengths), LONGEST, *row), np.float16, 3)
    total = sum(lengths)
    out = poisoned(backend, (total + 3, *row), np.float16)

    ops.ragged_store(backend.array(padded), lengths, out)

    got = backend.host(out)
    wanted = [padded[index, :length] for index, length in enumerate(lengths)]
    assert np.array_equal(bits(got[:total]), bits(np.concatenate(wanted)))
    assert (bits(got[total:]) == POISON).all()


@pytest.mark.sampled(3)
@pytest.mark.on_the_cpu(0, 1, 2, 3, 5, 10, 15)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_spreading_out_fills_zeros_though_the_neighbours_are_nan(
    backend: Any, row: tuple[int, ...], lengths: list[int]
) -> None:
    sums = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    packed = random_bits((int(sums[-1]) + 3, *row), np.float16, 4)
    packed[sums[-1] :] = np.nan
    whole = poisoned(backend, (len(lengths) + 1, LONGEST, *row), np.float16)

    ops.ragged_load(backend.array(packed), cu_seqlens=sums, out=whole[:-1])

    got = backend.host(whole)
    for index, length in enumerate(lengths):
        assert np.array_equal(
            bits(got[index, :length]), bits(packed[sums[index] : sums[index] + length])
        )
        assert (bits(got[index, length:]) == 0).all()
    assert (bits(got[-1]) == POISON).all()


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 4, 5, 6)
@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "float8_e4m3fn", "int16", "bfloat16", "float32", "int64", "float64"]
)
def test_every_width_comes_back_as_it_was(backend: Any, dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    lengths, last = [3, 0, 11, 5], 64 // kind.itemsize
    packed = random_bits((19, 2, last), kind, 5)
    array = backend.array(packed.view(f"u{kind.itemsize}"))

    padded = ops.ragged_load(array, lengths)
    back = ops.ragged_store(padded, lengths)

    assert padded.shape == (4, 11, 2, last)
    assert np.array_equal(bits(backend.host(back)), bits(packed))


def test_windows_of_larger_arrays_touch_nothing_outside_them(backend: Any) -> None:
    lengths = [4, 9, 1]
    padded_whole = backend.array(random_bits((3, 9, 5, 48), np.float32, 6))
    out = poisoned(backend, (14, 6, 64), np.float32)

    ops.ragged_store(padded_whole[:, :, 1:4, 16:], lengths, out[:, 2:5, :32])

    got, padded = backend.host(out), backend.host(padded_whole)[:, :, 1:4, 16:]
    wanted = np.concatenate([padded[index, :length] for index, length in enumerate(lengths)])
    assert np.array_equal(bits(got[:, 2:5, :32]), bits(wanted))
    untouched = np.ones(got.shape, bool)
    untouched[:, 2:5, :32] = False
    assert (bits(got[untouched]) == POISON).all()


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 2, 3, 5)
@pytest.mark.parametrize("batch", [1, 31, 32, 33, 100, 1025])
def test_a_block_finds_its_sequence_in_batches_of_any_size(backend: Any, batch: int) -> None:
    lengths = np.random.default_rng(batch).integers(0, 4, batch)
    padded = random_bits((batch, 4, 64), np.float16, batch)

    packed = backend.host(ops.ragged_store(backend.array(padded), lengths))

    inside = np.arange(4) < lengths[:, None]
    assert np.array_equal(bits(packed), bits(padded[inside]))
