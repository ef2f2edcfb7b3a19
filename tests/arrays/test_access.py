"""What a pointer to a slice reaches, against the addresses of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import ArgumentError, ArrayAccess, ArrayTypeError


def slices(extent: int) -> st.SearchStrategy[slice]:
    bounds = st.integers(0, extent)
    return st.builds(slice, bounds, bounds, st.sampled_from([1, 1, 1, 2, 3, -1]))


def element_addresses(array: Any) -> np.ndarray[Any, Any]:
    """Of every element, in row-major order."""
    places = np.full(array.shape, array.ctypes.data, np.int64)
    for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        places += steps.reshape(*[1] * axis, size, *[1] * (array.ndim - axis - 1))
    return places.reshape(-1)


@given(
    st.tuples(slices(5), slices(6), slices(16)),
    st.sampled_from([np.uint8, np.float16, np.float32, np.int64]),
    st.integers(0, 40),
)
def test_a_slice_reaches_from_its_first_to_its_last_element(
    index: tuple[slice, ...], dtype: Any, shift: int
) -> None:
    room = np.zeros(5 * 6 * 16 + 64, dtype)
    array = room[shift : shift + 5 * 6 * 16].reshape(5, 6, 16)[index]
    seen = ArrayAccess.from_array(array, "rw")

    assert (seen.shape, seen.address) == (array.shape, array.ctypes.data)
    assert seen.size_bytes == array.size * array.itemsize
    assert seen.address % seen.alignment == 0
    assert seen.alignment == 4096 or seen.address % (2 * seen.alignment)
    if array.size == 0:
        assert (seen.extent_bytes, seen.run_bytes, seen.is_contiguous) == (0, 0, True)
        return
    places = element_addresses(array)
    assert seen.extent_bytes == places.max() - places.min() + array.itemsize
    # One piece of memory, in order, as far as it goes in whole dimensions.
    steps = np.diff(places, append=places[-1] - 1)
    run = int(np.argmax(steps != array.itemsize)) + 1
    assert seen.run_bytes <= run * array.itemsize
    assert seen.is_contiguous == (seen.run_bytes == seen.size_bytes) == (run == array.size)


@given(st.integers(0, 64), st.integers(1, 300))
def test_a_bulk_copy_takes_multiples_of_16_bytes(start: int, length: int) -> None:
    room = np.zeros(512, np.uint8)
    first = -room.ctypes.data % 16
    seen = ArrayAccess.from_array(room[first + start : first + start + length])
    broken = {"address": start % 16 != 0, "size": length % 16 != 0}

    said = ""
    try:
        seen.check_bulk()
    except ArgumentError as error:
        said = str(error)

    assert {rule: f"array's {rule} is" in said for rule in broken} == broken
    assert bool(said) == any(broken.values())


def test_a_slice_in_pieces_is_refused_with_its_remedy() -> None:
    seen = ArrayAccess.from_array(np.zeros((8, 64), np.float32)[:, :32])

    assert (seen.run_bytes, seen.size_bytes, seen.extent_bytes) == (128, 1024, 7 * 256 + 128)
    with pytest.raises(ArgumentError, match=r"array.strides is .*Use create_tma_tile"):
        seen.check_bulk()


def test_what_is_written_must_be_writable() -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False

    assert ArrayAccess.from_array(array).size_bytes == 16
    with pytest.raises(ArgumentError, match="target is read only"):
        ArrayAccess.from_array(array, "rw", argument="target")


def test_other_modes_and_other_things_are_refused() -> None:
    mode: Any = "x"
    with pytest.raises(ArgumentError, match="mode is 'x'; an access reads, writes, or does both"):
        ArrayAccess.from_array(np.zeros(4), mode)
    with pytest.raises(ArrayTypeError):
        ArrayAccess.from_array([1, 2, 3])
