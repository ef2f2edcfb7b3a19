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
