"""Views of arrays: bounds, overlap, equality, and memory that was freed or moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays_in_memory import Array, addresses, device_array, sliced_arrays
from fake_arrays import Exporter, Tensor
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import ArgumentError, StaleTileError
from tmaasync._arrays import (
    common_device,
    current_address,
    is_contiguous,
    may_overlap,
    require_current,
    require_writable,
    view,
)

# --- what a launch asks ---------------------------------------------------------------------------


@given(sliced_arrays())
def test_byte_bounds_hold_every_element_and_no_more(array: Array) -> None:
    seen = view(array)

    found = addresses(seen)

    assert seen.byte_bounds == (min(found), max(found) + seen.element.itemsize)


@given(sliced_arrays())
def test_contiguous_is_what_numpy_calls_c_contiguous(array: Array) -> None:
    assert is_contiguous(view(array)) == array.flags.c_contiguous


@given(st.tuples(*[st.integers(0, 12)] * 4))
def test_arrays_overlap_when_their_address_ranges_do(ends: tuple[int, ...]) -> None:
    base = np.zeros(12, np.int8)
    first, second = (base[slice(*sorted(pair))] for pair in (ends[:2], ends[2:]))

    assert may_overlap(view(first), view(second)) == np.may_share_memory(first, second)


def test_equal_addresses_on_two_devices_are_two_places() -> None:
    first = view(Exporter(data=0x1000, shape=(4,), device=(2, 0)))
    second = view(Exporter(data=0x1000, shape=(4,), device=(2, 1)))

    assert not may_overlap(first, second)


def test_a_view_cannot_be_changed() -> None:
    seen: Any = view(np.ones(3))

    with pytest.raises(AttributeError):
        seen.address = 0
    with pytest.raises(AttributeError):
        seen.note = "x"


def test_views_of_one_array_are_equal_and_views_of_its_twin_differ() -> None:
    array = np.ones((2, 3))

    assert view(array) == view(array)
    assert hash(view(array)) == hash(view(array))
    assert view(array) != view(array[:])
    assert view(array) != "something else"


def test_a_view_prints_where_it_is_and_not_what_it_holds() -> None:
    seen = view(Exporter(data=0x1000, shape=(2, 4), device=(2, 1), version=(1, 0), flags=1))

    assert repr(seen) == (
        "ArrayView(other float32 (2, 4) at 0x1000 on cuda:1, strides_bytes=(16, 4), read only)"
    )


def test_a_read_only_array_is_refused_as_a_target() -> None:
    array = np.ones(4)
    require_writable(view(array), "target")
    array.flags.writeable = False

    with pytest.raises(ArgumentError, match=r"^target is read only; .* Pass a writable array"):
        require_writable(view(array), "target")


@pytest.mark.parametrize(
    ("shape", "strides", "is_refused"),
    [
        ((33, 24), (16, 2), True),
        ((3, 33, 24), (48, 48, 2), True),
        ((4, 4), (-6, 2), True),
        ((4, 4), (2, 8), False),
        ((1, 4), (0, 2), False),
        ((4, 1, 3), (6, 2, 2), False),
        ((3, 4), (8, -2), False),
    ],
)
def test_a_target_whose_rows_overlap_is_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], is_refused: bool
) -> None:
    memory = np.zeros(4096, np.float16)[1000:]
    array = np.lib.stride_tricks.as_strided(memory, shape, strides)
    if is_refused:
        with pytest.raises(ArgumentError, match=r"target is of shape .* one place in memory"):
            require_writable(view(array), "target")
    else:
        require_writable(view(array), "target")


def test_arrays_of_one_device_agree_on_it() -> None:
    on_device = view(Exporter(data=0x1000, shape=(4,), device=(2, 1)))

    assert common_device({"a": on_device, "b": on_device}) == 1
    assert common_device({"a": view(np.ones(2))}) is None


def test_arrays_of_several_devices_are_named_by_argument() -> None:
    views = {"a": view(Exporter(data=0x1000, shape=(4,), device=(2, 1))), "b": view(np.ones(2))}

    with pytest.raises(
        ArgumentError, match=r"a on cuda:1, b in host memory; one launch works on one"
    ):
        common_device(views)


def test_a_numpy_array_that_was_resized_is_noticed() -> None:
    array = np.ones(8)
    seen = view(array)
    assert current_address(seen) == array.ctypes.data

    array.resize(4, refcheck=False)

    with pytest.raises(StaleTileError, match=r"^tile is made for an array of shape \(8,\) at 0x"):
        require_current(seen, "tile")


def test_a_slice_of_a_numpy_array_that_was_resized_is_noticed() -> None:
    array = np.ones(4096)
    seen = view(array[2048:])
    require_current(seen, "tile")

    array.resize(16, refcheck=False)

    assert current_address(seen) is None


def test_an_array_that_was_only_reshaped_is_still_where_it_was() -> None:
    array = np.ones((4, 8))
    seen = view(array)

    reshaped = seen._replace(shape=(32,), strides_bytes=(8,))

    require_current(reshaped, "tile")


def test_a_cupy_array_is_where_it_was() -> None:
    seen = view(device_array(at=0x10000))

    assert current_address(seen) == 0x10000


def test_a_torch_tensor_whose_storage_was_freed_is_noticed() -> None:
    tensor = Tensor(np.ones(8))
    seen = view(tensor)
    require_current(seen, "tile")

    tensor.is_freed = True

    with pytest.raises(StaleTileError, match="that memory is gone"):
        require_current(seen, "tile")
