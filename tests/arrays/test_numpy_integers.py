"""Integers of NumPy as arguments, which overflow at their own width, are taken as ints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tmaasync import (
    Pipeline,
    create_ragged_tensor_map,
    create_ragged_tma_3d_tile,
    create_tma_tile,
    create_tma_tile_im2col,
)
from tmaasync._arrays import view
from tmaasync.barrier import BarrierWord
from tmaasync.ops._flash.operands import Operands, Scores
from tmaasync.ops._flash.sequences import Lengths

MATRIX = np.zeros((256, 256), np.float16)
TILE = create_tma_tile(MATRIX, (64, 64))
HEADS = np.zeros((300, 2, 64), np.float16)
IMAGES = np.zeros((1, 200, 200, 16), np.float16)
FILTER: Any = {"filter_shape": (3, 3), "swizzle": "32B"}


def longest(max_seqlen: Any) -> Any:
    q = view(HEADS)
    return Lengths([0, 200, 300], None, max_seqlen, None, False).of(Operands(q, q, q))[1]


def tx_count(size_bytes: Any) -> int:
    word = BarrierWord.for_count(3)
    for _ in range(2):
        word = word.expect_bytes(size_bytes)
    return word.tx_count


@pytest.mark.parametrize(
    ("call", "small", "number"),
    [
        (lambda n: create_tma_tile(MATRIX, (128, 128), box_shape=(n, n)).tile_bytes, "int16", 128),
        (lambda n: create_tma_tile(MATRIX, (n, n)).tile_bytes, "int8", 64),
        (lambda n: Pipeline(n, tiles={"a": TILE}, extra_bytes=n).shared_bytes, "int8", 4),
        (tx_count, "int16", 20000),
        (lambda n: create_ragged_tensor_map(MATRIX, (64, 64), max_length=n).spec, "int32", 200),
        (lambda n: create_ragged_tma_3d_tile(HEADS, n, max_length=n).spec, "int16", 200),
        (longest, "uint8", 200),
        (lambda n: Scores.of(64, False, None, (n, n), None), "int8", 100),
        (lambda n: create_tma_tile_im2col(IMAGES, (64, 16), padding=n, **FILTER).spec, "uint8", 1),
        (lambda n: create_tma_tile_im2col(IMAGES, (64, 16), stride=n, **FILTER).spec, "uint64", 2),
    ],
    ids=range(10),
)
def test_a_small_integer_gives_what_an_int_gives(
    call: Callable[[Any], Any], small: str, number: int
) -> None:
    first = call(np.dtype(small).type(number))

    assert first == call(number)
    assert repr(first) == repr(call(number))
