"""ops.copy without a GPU: what is launched again for arrays like earlier ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import arrays_in_memory
import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray
from fake_driver import Driver

from tmaasync import DriverError, TensorMapError, _arrays, ops
from tmaasync.ops._copy import Copy
from tmaasync.ops._layouts import Layout


def aligned(size: int, fill: int) -> Any:
    return arrays_in_memory.aligned(size, np.uint8, fill=fill)


@pytest.mark.parametrize("size", [1024, 1003, 7])  # of which TMA leaves none, 11 and all
def test_a_bound_copy_has_the_last_bytes_too(size: int) -> None:
    first = aligned(size, 1), aligned(size, 0)
    operation = Copy(*(Layout.of(_arrays.view(array)) for array in first))
    addresses = [array.ctypes.data for array in first]
    assert operation.bind(addresses) is None  # nothing was launched
    operation.run(_arrays.view(first[0]), _arrays.view(first[1]), None)
    assert (first[1] == 1).all()

    whole = aligned(size + 16, 9)
    source, target = aligned(size, 5), whole[:size]
    binding = operation.bind([source.ctypes.data, target.ctypes.data])
    assert binding is not None
    launch, places = binding
    call = launch.bind(places, 0)
    for value in (5, 6):
        source[...] = value
        call()
        assert (target == value).all()
        assert (whole[size:] == 9).all()


@pytest.mark.parametrize(("source_shift", "target_shift"), [(3, 0), (0, 5), (3, 3), (7, 2)])
@pytest.mark.parametrize("size", [1, 57, 1000])
def test_contiguous_memory_is_copied_from_any_address_to_any_other(
    source_shift: int, target_shift: int, size: int
) -> None:
    source, whole = aligned(2048, 5), aligned(2048, 9)
    source[:] = np.arange(2048) % 251
    target = whole[target_shift : target_shift + size]
    ops.copy(source[source_shift : source_shift + size], target)
    assert (target == source[source_shift : source_shift + size]).all()
    assert (whole[:target_shift] == 9).all()
    assert (whole[target_shift + size :] == 9).all()


def test_rows_that_end_inside_a_sector_are_refused_with_a_remedy_that_helps() -> None:
    image = np.arange(260, dtype=np.float32).reshape(13, 20)
    with pytest.raises(TensorMapError, match=r"16 bytes, or contiguous arrays on both sides\.$"):
        ops.copy(image[:, :5])
    assert (ops.copy(np.ascontiguousarray(image[:, :5])) == image[:, :5]).all()
    with pytest.raises(TensorMapError, match=r"Pad the rows of both arrays to a multiple of 16"):
        ops.reduce_add(np.zeros((13, 5), np.float32), image[:, :5])


def test_an_overlapping_copy_is_not_bound() -> None:
    first = aligned(64, 1), aligned(64, 0)
    operation = Copy(*(Layout.of(_arrays.view(array)) for array in first))
    operation.run(_arrays.view(first[0]), _arrays.view(first[1]), None)

    assert operation.bind([4096, 4096 + 48]) is None
    assert operation.bind([4096, 4096 + 64]) is not None


def test_on_a_gpu_the_driver_copies_contiguous_memory(
    use_driver: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any address, at any size, and in later calls to other arrays and on another stream."""
    driver = Driver()
    use_driver(driver)
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    for number in range(1, 4):
        source, whole = np.arange(1000, dtype=np.uint8)[number:], np.full(1010, 9, np.uint8)
        target = CupyArray(whole[3 : 3 + source.size])
        driver.done.clear()

        assert ops.copy(CupyArray(source), target, stream=number) is target

        addresses = (target.data.ptr, source.ctypes.data)
        assert driver.done == [("cuMemcpyDtoDAsync", *addresses, source.size, number)]
        assert np.array_equal(whole[3 : 3 + source.size], source)
        assert (whole[:3] == 9).all()
        assert (whole[3 + source.size :] == 9).all()

    driver.statuses = [700]
    with pytest.raises(DriverError, match="an earlier kernel died"):
        ops.copy(CupyArray(source), target)
