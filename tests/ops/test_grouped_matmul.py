"""Grouped GEMMs without a GPU: what is refused, and what is launched again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stubs import LaunchStub

from tmaasync import ArgumentError, ArrayTypeError, _arrays, ops
from tmaasync.ops._grouped_matmul import GroupedMatmul, Offsets
from tmaasync.ops._layouts import Layout

A, B = np.zeros((12, 16), np.float16), np.zeros((3, 16, 24), np.float16)
ENDS = [4, 4, 12]


def refused(error: type[Exception], said: str, **changes: Any) -> None:
    options = {"a": A, "b": B, "offsets": ENDS, **changes}
    with pytest.raises(error, match=said):
        ops.grouped_matmul(options.pop("a"), options.pop("b"), options.pop("offsets"), **options)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a": B}, r"a has shape \(3, 16, 24\); it must be \[T, K\]"),
        ({"b": B[0]}, r"b has shape \(16, 24\); it must be \[G, K, N\]"),
        ({"b": B.swapaxes(1, 2)}, r"b must be \[G, 16, N\].* pass b\.swapaxes\(1, 2\)"),
        ({"out": np.zeros((12, 16), np.float16)}, r"out has shape \(12, 16\) .* \(12, 24\)"),
        ({"b": np.zeros((3, 16, 16), np.float16), "out": A}, "out overlaps a .* of its own"),
    ],
)
def test_groups_of_shapes_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArgumentError, said, **changes)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([4, 12], r"offsets has shape \(2,\) .* 3 matrices, so it must have shape \(3,\)"),
        ([0, 4, 4, 12], r"Leave out the 0 at the start"),
        ([[4, 4, 12]], r"offsets has shape \(1, 3\)"),
        ([4.0, 4.0, 12.0], r"offsets has shape \(3,\) of float64; .* of integers"),
        (
            [4, 3, 12],
            r"offsets\[1\] is 3; group 1 starts at row 4, and no group ends before .* numpy.cumsum",
        ),
        ([-1, 3, 12], r"offsets\[0\] is -1; group 0 starts at row 0"),
        (np.array([4, 4, 13], np.uint8), r"offsets\[-1\] is 13; a has 12 rows"),
    ],
)
def test_offsets_that_describe_no_groups_are_refused(offsets: Any, said: str) -> None:
    refused(ArgumentError, said, offsets=offsets)


def test_offsets_off_16_bytes_are_read_in_place() -> None:
    after_the_zero = np.zeros(8, np.int32)[1:]

    assert Offsets(after_the_zero, is_on_device=True).is_in_place


@pytest.mark.parametrize(
    ("a", "b", "is_apart"),
    [
        (4096 + 576, 4096 - 2304, True),
        (4096 + 575, 0, False),
        (0, 4096 - 2303, False),
        (4096 - 384, 4096 + 576, True),
        (4096 - 383, 8192, False),
    ],
)
def test_an_output_over_what_is_read_finds_no_launch(a: int, b: int, is_apart: bool) -> None:
    out = np.zeros((12, 24), np.float16)
    operation = GroupedMatmul(*(Layout.of(_arrays.view(array)) for array in (A, B, out)))
    operation.prepared(LaunchStub)

    binding = operation.bind((a, b, 16384, 4096))

    assert (binding is not None) == is_apart
    if binding is not None:
        *operands, c, ends = binding[1]
        assert (sorted(operands), c, ends) == (sorted((a, b)), 4096, 16384)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a": A.astype(np.float32)}, "a holds float32; the kernel multiplies .* with astype"),
        ({"dtype": np.int32}, "dtype is int32; the output can be"),
        (
            {"out": np.zeros((12, 24), np.float64)},
            "out holds float64; it must hold bfloat16 or float16 or float32",
        ),
        (
            {"out": np.zeros((12, 24), np.float16), "dtype": "float32"},
            "out holds float16; it must hold float32. Leave out dtype= or out=",
        ),
    ],
)
def test_types_that_the_kernel_does_not_have_are_refused(
    changes: dict[str, Any], said: str
) -> None:
    refused(ArrayTypeError, said, **changes)


def test_no_columns_give_zeros_in_the_groups_alone() -> None:
    a, b = np.zeros((7, 0), np.float16), np.zeros((2, 0, 24), np.float16)
    out = np.full((7, 24), 5, np.float16)

    assert ops.grouped_matmul(a, b, [2, 6], out=out) is out

    assert (out[:6] == 0).all()
    assert (out[6:] == 5).all()
    assert (ops.grouped_matmul(a, b, [3, 7], dtype="float32") == 0).all()
