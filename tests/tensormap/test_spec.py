from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import specs

from tmaasync import modes
from tmaasync.errors import TensorMapError
from tmaasync.modes import DataType, Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import TENSOR_MAP_BYTES, Im2colSpec, TensorMapSpec, encode_words

Spec = TensorMapSpec | Im2colSpec

MEASURED = json.loads((Path(__file__).parents[1] / "data" / "driver_580_h200.json").read_text())
"""Verdicts of driver 580.159 on an H200 about specs, and the bytes of the accepted ones."""


_MODES = {
    "dtype": DataType,
    "interleave": Interleave,
    "swizzle": Swizzle,
    "l2_promotion": L2Promotion,
    "oob_fill": OOBFill,
}


def from_values(kind: str, values: list[Any]) -> Spec:
    arguments = dict(zip(MEASURED[f"{kind}_arguments"], values, strict=True))
    for name, mode in _MODES.items():
        arguments[name] = mode(arguments[name])
    return TensorMapSpec(**arguments) if kind == "tiled" else Im2colSpec(**arguments)


ROWS = [
    pytest.param(from_values(kind, values), encoded, id=f"{kind}-{number}")
    for kind in ("tiled", "im2col")
    for number, (*values, encoded) in enumerate(MEASURED[kind])
]


def spec_2d(**changes: Any) -> TensorMapSpec:
    spec = TensorMapSpec(0x7F0000000000, DataType.FLOAT16, (128, 512), (1024,), (64, 64))
    return replace(spec, **changes)


# --- what the driver did ------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "encoded"), ROWS)
def test_verdict_and_bytes_are_the_drivers(spec: Spec, encoded: str | None) -> None:
    assert (spec.violations() == ()) == (encoded is not None)
    if encoded is not None:
        data = bytes.fromhex(encoded).ljust(TENSOR_MAP_BYTES, b"\0")
        assert spec.encode() == data
        assert TensorMapSpec.decode(data) == spec


# --- there and back -----------------------------------------------------------------------------


@given(spec=specs)
def test_a_legal_spec_encodes_and_decodes_to_itself(spec: Spec) -> None:
    data = spec.encode()

    assert len(data) == TENSOR_MAP_BYTES
    assert TensorMapSpec.decode(data) == spec
    assert Im2colSpec.decode(data) == spec


@given(spec=specs)
def test_the_words_are_the_bytes(spec: Spec) -> None:
    words = np.frombuffer(spec.encode(), dtype="<u8")

    assert tuple(words.tolist()) == encode_words(spec)


@given(spec=specs)
def test_repr_is_source_text_of_the_spec(spec: Spec) -> None:
    names = {"TensorMapSpec": TensorMapSpec, "Im2colSpec": Im2colSpec, **vars(modes)}

    assert eval(repr(spec), names) == spec


@given(spec=specs, bit=st.integers(0, 8 * TENSOR_MAP_BYTES - 1))
def test_bytes_with_one_bit_changed_are_refused_or_are_another_map(spec: Spec, bit: int) -> None:
    number = int.from_bytes(spec.encode(), "little") ^ 1 << bit
    data = number.to_bytes(TENSOR_MAP_BYTES, "little")

    try:
        other = TensorMapSpec.decode(data)
    except TensorMapError:
        return

    assert other != spec
    assert b"".join(word.to_bytes(8, "little") for word in encode_words(other)) == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\1" * 64, "64 bytes long"),
        (b"", "0 bytes long"),
        (bytes(TENSOR_MAP_BYTES), "not a tensor map"),
        (b"\xff" * TENSOR_MAP_BYTES, "not a tensor map"),
        ("x" * TENSOR_MAP_BYTES, "a str"),
        (None, "a NoneType"),
    ],
)
def test_what_is_no_tensor_map_is_refused(data: Any, why: str) -> None:
    with pytest.raises(TensorMapError, match=why):
        TensorMapSpec.decode(data)


def test_bits_of_another_architecture_name_the_word() -> None:
    data = bytearray(spec_2d().encode())
    data[127] = 0x40

    with pytest.raises(TensorMapError, match="word 15 is 0x40"):
        TensorMapSpec.decode(bytes(data))


@pytest.mark.parametrize(
    "wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, "<u8")]
)
def test_anything_with_a_buffer_is_decoded(wrap: Any) -> None:
    assert TensorMapSpec.decode(wrap(spec_2d().encode())) == spec_2d()


# --- the value ----------------------------------------------------------------------------------


def test_numpy_integers_and_sequences_become_int_and_tuple() -> None:
    spec = TensorMapSpec(
        np.uint64(0x7F0000000000),  # type: ignore[arg-type]
        DataType.FLOAT16,
        np.array([128, 512]),  # type: ignore[arg-type]
        [np.int32(1024)],  # type: ignore[arg-type]
        [64, np.uint8(64)],  # type: ignore[arg-type]
        element_strides=None,  # type: ignore[arg-type]
    )

    assert spec == spec_2d()
    assert {type(number) for number in (spec.address, *spec.shape, *spec.box_shape)} == {int}
    assert hash(spec) == hash(spec_2d())


@pytest.mark.parametrize(
    "names",
    [
        {"dtype": "bf16", "swizzle": "128B", "l2_promotion": "256B", "oob_fill": "nan"},
        {"dtype": "bfloat16", "swizzle": "B128", "l2_promotion": "B256", "oob_fill": "NAN"},
        {"swizzle": "k128B", "interleave": "kNone", "oob_fill": "kNan"},  # as in C++
    ],
)
def test_modes_and_types_are_taken_by_name(names: Any) -> None:
    members = TensorMapSpec(
        0x7F0000000000,
        DataType.BFLOAT16,
        (8, 64),
        (128,),
        (8, 64),
        swizzle=Swizzle.B128,
        l2_promotion=L2Promotion.B256,
        oob_fill=OOBFill.NAN,
    )

    assert replace(members, **names) == members
    assert str(replace(members, **names)) == str(members)


def test_a_spec_is_frozen_and_slotted() -> None:
    spec = spec_2d()

    with pytest.raises(FrozenInstanceError):
        spec.address = 0  # type: ignore[misc]
    assert not hasattr(spec, "__dict__")


def test_repr_leaves_out_what_is_default() -> None:
    assert repr(spec_2d(swizzle=Swizzle.B128)) == (
        "TensorMapSpec(address=0x7f0000000000, dtype=DataType.FLOAT16, shape=(128, 512), "
        "strides_bytes=(1024,), box_shape=(64, 64), swizzle=Swizzle.B128)"
    )


def test_rank_bytes_and_alignment_follow_from_the_arguments() -> None:
    spec = spec_2d(swizzle=Swizzle.B128)

    assert (spec.rank, spec.box_bytes) == (2, 8192)
    assert (spec.smem_alignment, spec.swizzle_span_bytes) == (1024, 128)
    assert spec_2d().smem_alignment == 128


def test_box_bytes_count_what_lands_and_not_what_is_spanned() -> None:
    every_other_row = spec_2d(element_strides=(2, 1))
    ignored = spec_2d(element_strides=(1, 2))

    assert every_other_row.box_bytes == 32 * 64 * 2
    assert ignored.box_bytes == 64 * 64 * 2


def test_a_map_of_rank_1_has_no_strides() -> None:
    spec = TensorMapSpec(0, DataType.UINT8, (1000,), (), (256,))

    assert TensorMapSpec.decode(spec.encode()) == spec


@pytest.mark.parametrize(
    ("interleave", "dims"), [(Interleave.NONE, (1, 2)), (Interleave.B16, (2, 3))]
)
def test_the_spatial_dimensions_follow_the_layout(
    interleave: Interleave, dims: tuple[int, ...]
) -> None:
    spec = Im2colSpec(
        0, DataType.FLOAT16, (1, 9, 9, 9), (0, 0, 0), (0, 0), (0, 0), 8, 1, interleave=interleave
    )

    assert spec.spatial_dims == dims
