"""ops.copy without a GPU: what is launched again for arrays like earlier ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import _arrays
from tmaasync.ops._copy import Copy
from tmaasync.ops._layouts import Layout


def aligned(size: int, fill: int) -> Any:
    whole = np.full(size + 128, fill, np.uint8)
    start = -whole.ctypes.data % 128
    return whole[start : start + size]


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


def test_an_overlapping_copy_is_not_bound() -> None:
    first = aligned(64, 1), aligned(64, 0)
    operation = Copy(*(Layout.of(_arrays.view(array)) for array in first))
    operation.run(_arrays.view(first[0]), _arrays.view(first[1]), None)

    assert operation.bind([4096, 4096 + 48]) is None
    assert operation.bind([4096, 4096 + 64]) is not None
