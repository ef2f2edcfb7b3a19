"""Arrays that operations return: allocated again like earlier ones."""

from __future__ import annotations

import sys
from typing import Any

import fake_arrays
import numpy as np
import pytest
from fake_arrays import ByDlpack, Tensor

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._ragged.batch import on_host
from tmaasync.ops._allocation import (
    allocator,
    contiguous_copy,
    empty_rows,
    fill,
    indexable,
    int32_on_device,
    rows_allocator,
)


@pytest.mark.parametrize("columns", [24, 21])
def test_rows_are_made_again_with_the_padding_of_the_first(columns: int) -> None:
    like = _arrays.view(np.zeros((4, 8), np.float16))
    first = empty_rows(like, (3, columns), element(np.float16))
    make = rows_allocator(like, _arrays.view(first))

    made = [make() for _ in range(2)]

    assert len({array.ctypes.data for array in (first, *made)}) == 3
    for array in made:
        assert (array.shape, array.strides) == ((3, columns), (48, 2))
        assert array.dtype == np.float16


class Torch(fake_arrays.Torch):
    """Notes what it is asked for in words that everybody knows."""

    def __init__(self, *, has_guards: bool) -> None:
        super().__init__(has_guards=has_guards)
        self.asked: list[str] = []

    def empty(self, shape: tuple[int, ...], *, dtype: Any, device: str) -> Any:
        self.asked.append(device)
        return super().empty(shape, dtype=dtype, device=device)


def on_device(array: Any, device: int) -> ArrayView:
    """A view that says so, of memory of the host."""
    owner = Tensor(array, device=f"cuda:{device}")
    return _arrays.view(array)._replace(framework="torch", device=device, owner=owner)


@pytest.mark.parametrize("has_guards", [True, False])
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("shape", [(), (7,), (3, 24), (2, 1, 0, 5), (2, 3, 1, 8)])
def test_torch_makes_contiguous_tensors_on_the_device_of_the_first(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], device: int, has_guards: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch(has_guards=has_guards))
    first = on_device(np.zeros((4, 16), np.float16)[:, :8], device)
    make = allocator(first, shape, element(np.float32))

    one, other = make(), make()

    assert one.array is not other.array
    assert (one.shape, str(one.dtype), one.get_device()) == (shape, "torch.float32", device)
    assert one.is_contiguous()


def test_a_device_that_is_no_longer_the_current_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = Torch(has_guards=True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    view = on_device(np.zeros((3, 24), np.float16), 1)
    make = rows_allocator(view, view)

    for torch.device in (1, 0, 1):
        assert make().get_device() == 1

    assert torch.asked == ["cuda:1"]


def test_an_array_that_offers_dlpack_only_is_read_and_written() -> None:
    whole = np.arange(40, dtype=np.float16).reshape(4, 10)
    part = _arrays.view(ByDlpack(whole[::2, 1:8]))

    assert np.array_equal(indexable(contiguous_copy(part, 0)), whole[::2, 1:8])
    fill(part, 9)

    assert (whole[::2, 1:8] == 9).all()
    assert whole[:, 0].tolist() == [0, 10, 20, 30]
    assert whole[1].tolist() == [*range(10, 20)]
    assert on_host(ByDlpack(np.array([3, 4])), "lengths").tolist() == [3, 4]


# --- numbers beyond int32 -------------------------------------------------------------------------

MOST = 2**31 - 1
BEYOND = {
    "int64": ([0, 60, 2**32 + 60, -(2**40)], [0, 60, MOST, -MOST - 1]),
    "uint64": ([0, 60, 2**32 + 60, 2**63 + 60], [0, 60, MOST, MOST]),
    "uint32": ([0, 60, 2**31 + 60, 2**32 - 1], [0, 60, MOST, MOST]),
}


@pytest.mark.parametrize("dtype", BEYOND)
def test_numbers_beyond_int32_are_the_nearest_in_cupy(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_arrays.Cupy())
    given, wanted = BEYOND[dtype]

    found = int32_on_device(fake_arrays.CupyArray(np.array(given, dtype)), "cupy", 0, 7)

    assert found.array.tolist() == wanted
    assert found.dtype == np.int32


def test_sums_of_lengths_do_not_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_arrays.Cupy())
    lengths = fake_arrays.CupyArray(np.array([5, 2**32 + 1, 9, -4], np.int64))

    found = int32_on_device(lengths, "cupy", 0, 7, cumulative=True)

    assert found.array.tolist() == [0, 5, MOST, MOST, MOST]
