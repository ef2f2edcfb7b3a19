"""The remedy that an operation's error gives is possible, and ends the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tmaasync import TMAError, ops


def zeros(*shape: int, dtype: Any = np.float16) -> Any:
    return np.zeros(shape, dtype)


def attention(columns: int, **options: Any) -> Any:
    heads = zeros(1, 8, 1, columns)
    return ops.attention(heads, heads, heads, return_lse=True, **options)


def grouped(offsets: Any) -> Any:
    return ops.grouped_matmul(zeros(12, 16), zeros(2, 16, 8), offsets)


IMAGES, FILTERS = zeros(1, 8, 8, 16), zeros(8, 3, 3, 16)
# The call, what its message proposes, and the call that follows the proposal.
CASES: dict[str, tuple[Callable[[], Any], str, Callable[[], Any] | None]] = {
    "narrow head": (
        lambda: attention(100),
        r"Pad q, k and v with zeros to 104, and pass scale=100\*\*-0\.5\.$",
        lambda: attention(104, scale=100**-0.5),
    ),
    "wide head": (
        lambda: attention(300),
        "no kernel for larger heads: compute softmax.* with two calls of ops.matmul for each head",
        lambda: ops.matmul(zeros(1, 8, 300), zeros(1, 300, 8)),
    ),
    "no columns": (lambda: attention(0), r"Skip the call\.$", None),
    "lengths above the rows": (
        lambda: ops.ragged_store(zeros(2, 8, 8), [3, 9]),
        r"may have more than padded\.shape\[1\], 8 rows\. Use padded with 9 rows for each",
        lambda: ops.ragged_store(zeros(2, 9, 8), [3, 9]),
    ),
    "lengths above the output's": (
        lambda: ops.ragged_load(zeros(12, 8), [3, 9], zeros(2, 8, 8)),
        r"may have more than out\.shape\[1\], 8 rows\. Use out with 9 rows for each sequence",
        lambda: ops.ragged_load(zeros(12, 8), [3, 9], zeros(2, 9, 8)),
    ),
    "lengths above max_length": (
        lambda: ops.ragged_load(zeros(12, 8), [3, 9], max_length=8),
        r"Use max_length=9, or cut the sequence\.$",
        lambda: ops.ragged_load(zeros(12, 8), [3, 9], max_length=9),
    ),
    "narrow rows": (
        lambda: ops.ragged_store(zeros(2, 8, 7), [3, 8]),
        "a row of padded is 14 bytes long; .* Pad the last dimension to a multiple of 16 bytes",
        lambda: ops.ragged_store(zeros(2, 8, 8), [3, 8]),
    ),
    "offsets of floats": (
        lambda: grouped(np.array([4.0, 12.0])),
        r"Convert it to int32\.$",
        lambda: grouped(np.array([4, 12], np.int32)),
    ),
    "offsets with a 0": (
        lambda: grouped([0, 4, 12]),
        r"Leave out the 0 at the start\.$",
        lambda: grouped([4, 12]),
    ),
    "one offset": (
        lambda: grouped([12]),
        r"Pass numpy\.cumsum of the groups' rows\.$",
        lambda: grouped(np.cumsum([4, 8])),
    ),
    "columns with gaps": (
        lambda: ops.copy(zeros(8, 16)[:, ::2]),
        r"^source\.strides\[1\] is 4; .* copy it \(numpy\.ascontiguousarray\)\.$",
        lambda: ops.copy(np.ascontiguousarray(zeros(8, 16)[:, ::2])),
    ),
    "negative padding": (
        lambda: ops.conv2d(IMAGES, FILTERS, padding=-1),
        r"To crop, slice the images\.$",
        lambda: ops.conv2d(IMAGES[:, 1:-1, 1:-1], FILTERS),
    ),
    "output of another type": (
        lambda: ops.matmul(zeros(8, 8), zeros(8, 8), out=zeros(8, 8, dtype=np.float64)),
        r"Convert it, or leave out out=\.$",
        lambda: ops.matmul(zeros(8, 8), zeros(8, 8)),
    ),
    "output of another type than asked for": (
        lambda: ops.matmul(zeros(8, 8), zeros(8, 8), out=zeros(8, 8), dtype="fp32"),
        r"Leave out dtype= or out=\.$",
        lambda: ops.matmul(zeros(8, 8), zeros(8, 8), dtype="fp32"),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_following_the_remedy_ends_the_error(name: str) -> None:
    wrong, proposal, right = CASES[name]
    with pytest.raises(TMAError, match=proposal):
        wrong()
    if right is not None:
        right()
