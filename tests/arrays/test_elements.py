from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_arrays import Named
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import ArrayTypeError, DataType
from tmaasync._elements import ELEMENTS, Element, element

# The sizes of NVRTC's types, written down by hand.
_SIZEOF = {
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
    "tmaasync::float8_e4m3": 1,
    "tmaasync::float8_e5m2": 1,
    "unsigned short": 2,
    "short": 2,
    "tmaasync::float16": 2,
    "tmaasync::bfloat16": 2,
    "unsigned int": 4,
    "int": 4,
    "float": 4,
    "tmaasync::tfloat32": 4,
    "unsigned long long": 8,
    "long long": 8,
    "double": 8,
}


@pytest.mark.parametrize("row", ELEMENTS, ids=str)
def test_one_element_has_the_same_size_everywhere(row: Element) -> None:
    assert (row.itemsize, row.data_type.itemsize) == (_SIZEOF[row.cuda_type],) * 2


def test_every_data_type_of_hopper_has_one_element_that_is_just_that() -> None:
    exact = [row.data_type for row in ELEMENTS if row.is_exact]

    assert sorted(exact) == [kind for kind in DataType if not kind.needs_sm_100]


def test_no_two_elements_share_a_name() -> None:
    assert len({row.name for row in ELEMENTS}) == len(ELEMENTS)


@pytest.mark.parametrize(
    ("asked", "data_type", "cuda_type"),
    [
        ("uint8", DataType.UINT8, "unsigned char"),
        (np.int8, DataType.UINT8, "signed char"),
        (bool, DataType.UINT8, "bool"),
        (ml_dtypes.float8_e4m3fn, DataType.UINT8, "tmaasync::float8_e4m3"),
        ("float8_e5m2", DataType.UINT8, "tmaasync::float8_e5m2"),
        (np.dtype("u2"), DataType.UINT16, "unsigned short"),
        ("i2", DataType.UINT16, "short"),
        ("half", DataType.FLOAT16, "tmaasync::float16"),
        ("bfloat16", DataType.BFLOAT16, "tmaasync::bfloat16"),
        ("bf16", DataType.BFLOAT16, "tmaasync::bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), DataType.BFLOAT16, "tmaasync::bfloat16"),
        ("uint32", DataType.UINT32, "unsigned int"),
        (np.intc, DataType.INT32, "int"),
        (np.float32, DataType.FLOAT32, "float"),
        ("<f4", DataType.FLOAT32, "float"),
        (DataType.FLOAT32_FTZ, DataType.FLOAT32_FTZ, "float"),
        ("tf32", DataType.TFLOAT32, "tmaasync::tfloat32"),
        (DataType.TFLOAT32_FTZ, DataType.TFLOAT32_FTZ, "tmaasync::tfloat32"),
        ("tf32_ftz", DataType.TFLOAT32_FTZ, "tmaasync::tfloat32"),
        (np.ulonglong, DataType.UINT64, "unsigned long long"),
        (np.longlong, DataType.INT64, "long long"),
        (float, DataType.FLOAT64, "double"),
    ],
)
def test_a_type_is_found_under_each_of_its_names(
    asked: object, data_type: DataType, cuda_type: str
) -> None:
    found = element(asked)

    assert (found.data_type, found.cuda_type) == (data_type, cuda_type)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "bfloat16", "float64", "bool"])
def test_a_torch_type_is_found_by_its_name(name: str) -> None:
    assert element(Named(f"torch.{name}")).name == name


def test_real_torch_types_are_found() -> None:
    torch = pytest.importorskip("torch")

    shared = [row.name for row in ELEMENTS if hasattr(torch, row.name)]

    assert {"bfloat16", "float8_e4m3fn", "float64"} <= set(shared)
    assert [element(getattr(torch, name)).name for name in shared] == shared


@given(st.sampled_from(ELEMENTS))
def test_an_element_and_its_name_lead_back_to_it(row: Element) -> None:
    assert element(row) is row
    assert element(row.name) is row


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("fp32", "float32"),
        ("float", "float32"),
        ("fp64", "float64"),
        ("double", "float64"),
        ("fp8", "float8_e4m3fn"),
        ("e4m3", "float8_e4m3fn"),
        ("e5m2", "float8_e5m2"),
        ("tf32", "tfloat32"),
    ],
)
def test_a_short_name_means_the_long_one(short: str, name: str) -> None:
    assert element(short) is element(name)


def test_integers_that_travel_as_unsigned_are_not_exact() -> None:
    assert [row.name for row in ELEMENTS if not row.is_exact] == [
        "int8",
        "bool",
        "float8_e4m3fn",
        "float8_e5m2",
        "int16",
    ]


def test_an_element_cannot_be_changed() -> None:
    row: Any = element("int8")

    with pytest.raises(dataclasses.FrozenInstanceError):
        row.cuda_type = "int"


@pytest.mark.parametrize(
    ("asked", "reason", "remedy"),
    [
        (np.complex64, "no complex numbers", r'array\.view\("f4"\)'),
        ("complex128", "no complex numbers", r'array\.view\("f8"\)'),
        (">f4", "bytes are in the other order", "newbyteorder"),
        (">f8", "bytes are in the other order", "newbyteorder"),
        (">i8", "bytes are in the other order", "newbyteorder"),
        (np.dtype("M8[ns]"), "do not have this element type", 'dtype="uint64"'),
        (ml_dtypes.float8_e4m3fnuz, "do not have this element type", 'dtype="uint8"'),
        ("float8_e8m0fnu", "do not have this element type", 'dtype="uint8"'),
        (ml_dtypes.int4, "no integers below 8 bits", "Pack them into bytes"),
        ("uint4", "no integers below 8 bits", "Pack them into bytes"),
        (ml_dtypes.float4_e2m1fn, "need sm_100", "Pack them into bytes"),
        ("float6_e3m2fn", "need sm_100", "Pack them into bytes"),
        (DataType.PACKED_16U4_ALIGN8B, "need sm_100", "Pack them into bytes"),
        (object, "Python objects", "astype"),
        (np.longdouble, "no type of a tensor map has 16 bytes", "Convert the array"),
        (np.dtype("U3"), "no type of a tensor map has 12 bytes", "Convert the array"),
        (np.dtype("V1"), "does not say what its elements are", 'dtype="float8_e4m3fn"'),
        (np.dtype("V2"), "does not say what its elements are", 'dtype="bfloat16"'),
        (np.dtype([("x", "f4"), ("y", "f4")]), "do not have this element type", 'dtype="uint64"'),
        ("flaot32", "names no element type", "Pass bf16, fp16, fp32, fp64, tf32, e4m3, e5m2"),
        (None, "names no element type", "or a NumPy dtype"),
        (0, "names no element type", "or a NumPy dtype"),
        (["f4"], "names no element type", "or a NumPy dtype"),
    ],
    ids=str,
)
def test_what_hopper_cannot_move_is_refused_with_reason_and_remedy(
    asked: object, reason: str, remedy: str
) -> None:
    with pytest.raises(ArrayTypeError, match=rf"^weights\.dtype is .*; .*{reason}.*\. .*{remedy}"):
        element(asked, argument="weights.dtype")
