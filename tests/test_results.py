"""Arrays that operations return: made again like earlier ones."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from fake_arrays import Tensor, Torch

from tmaasync import _arrays
from tmaasync._elements import element
from tmaasync.ops._results import empty_rows, rows_maker


@pytest.mark.parametrize("columns", [24, 21])
def test_rows_are_made_again_with_the_padding_of_the_first(columns: int) -> None:
    like = _arrays.view(np.zeros((4, 8), np.float16))
    first = empty_rows(like, (3, columns), element(np.float16))
    make = rows_maker(like, _arrays.view(first))

    made = [make() for _ in range(2)]

    assert len({array.ctypes.data for array in (first, *made)}) == 3
    for array in made:
        assert (array.shape, array.strides) == ((3, columns), (48, 2))
        assert array.dtype == np.float16


def test_torch_is_asked_for_contiguous_rows_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def empty(shape: tuple[int, ...], **options: Any) -> str:
        asked.append((shape, options))
        return "rows"

    torch = Torch()
    monkeypatch.setattr(torch, "empty", empty, raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    rows = Tensor(np.zeros((3, 24), np.float16), device="cuda:1")
    view = _arrays.view(np.zeros((3, 24), np.float16))
    view = view._replace(framework="torch", device=1, owner=rows)
    make = rows_maker(view, view)

    assert [make(), make()] == ["rows", "rows"]
    assert asked == [((3, 24), {"dtype": rows.dtype, "device": rows.device})] * 2
