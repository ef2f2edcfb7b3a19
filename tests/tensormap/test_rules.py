from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import im2col_specs, ordinary_im2col, ordinary_tiled, specs, tiled_specs

from tmaasync.errors import TensorMapError
from tmaasync.modes import DataType, Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import TENSOR_MAP_BYTES, Im2colSpec, TensorMapSpec

Spec = Any
"""Either kind; the breakers below touch what both have, or say which they need."""


def with_item(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


# --- each rule, broken alone --------------------------------------------------------------------

Break = Callable[[st.DataObject, Any], tuple[Any, str]]


def misaligned_address(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, address=spec.address + data.draw(st.integers(1, 15))), "address"


def address_out_of_range(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, address=data.draw(st.sampled_from([-32, 1 << 64]))), "address"


def extent_out_of_range(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    dim = data.draw(st.integers(0, spec.rank - 1))
    extent = data.draw(st.sampled_from([0, -1, (1 << 32) + 1, 1 << 40]))
    return replace(spec, shape=with_item(spec.shape, dim, extent)), f"shape[{dim}]"


def misaligned_stride(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    dim = data.draw(st.integers(0, spec.rank - 2))
    stride = spec.strides_bytes[dim] + data.draw(st.integers(1, 15))
    changed = with_item(spec.strides_bytes, dim, stride)
    return replace(spec, strides_bytes=changed), f"strides_bytes[{dim}]"


def stride_out_of_range(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    dim = data.draw(st.integers(0, spec.rank - 2))
    stride = data.draw(st.sampled_from([-64, 1 << 40, 1 << 41]))
    changed = with_item(spec.strides_bytes, dim, stride)
    return replace(spec, strides_bytes=changed), f"strides_bytes[{dim}]"


def element_stride_out_of_range(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    dim = data.draw(st.integers(0, spec.rank - 1))
    changed = with_item(spec.element_strides, dim, data.draw(st.sampled_from([-1, 0, 9, 255])))
    return replace(spec, element_strides=changed), f"element_strides[{dim}]"


def type_of_sm_100(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    packed = [dtype for dtype in DataType if dtype.needs_sm_100]
    return replace(spec, dtype=data.draw(st.sampled_from(packed))), "dtype"


def swizzle_of_sm_100(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    atoms = [swizzle for swizzle in Swizzle if swizzle.needs_sm_100]
    return replace(spec, swizzle=data.draw(st.sampled_from(atoms))), "swizzle"


def nan_fill_of_integers(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    same_size = {
        1: DataType.UINT8,
        2: DataType.UINT16,
        4: data.draw(st.sampled_from([DataType.UINT32, DataType.INT32])),
        8: data.draw(st.sampled_from([DataType.UINT64, DataType.INT64])),
    }
    dtype = same_size[spec.dtype.itemsize]
    return replace(spec, dtype=dtype, oob_fill=OOBFill.NAN), "oob_fill"


def inner_side_off_16_bytes(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    argument, side, _ = spec.sides[-1]
    off = data.draw(st.integers(1, 16 // spec.dtype.itemsize - 1))
    sides = [one.value for one in spec.sides]
    return spec.with_sides([*sides[:-1], side - off]), argument


def inner_side_beyond_the_span(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    swizzle = data.draw(st.sampled_from([Swizzle.B32, Swizzle.B64]))
    outer = [1] * (len(spec.sides) - 1)
    itemsize = spec.dtype.itemsize
    inner_bytes = swizzle.span_bytes + 16 * data.draw(st.integers(1, 8))
    changed = replace(spec, swizzle=swizzle, interleave=Interleave.NONE)
    if isinstance(spec, Im2colSpec):  # with another interleave other dimensions are spatial
        changed = replace(changed, shape=(1 << 20,) * spec.rank)
    return changed.with_sides([*outer, inner_bytes // itemsize]), spec.sides[-1].argument


def wrong_type_of_an_extent(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    dim = data.draw(st.integers(0, spec.rank - 1))
    value = data.draw(st.sampled_from([1.5, 64.0, True, np.True_, "64", None, Swizzle.B32]))
    return replace(spec, shape=with_item(spec.shape, dim, value)), f"shape[{dim}]"


def wrong_type_of_the_address(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, address=data.draw(st.sampled_from([1.0, None, "0x10", False]))), "address"


def wrong_number_of_strides(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, strides_bytes=(*spec.strides_bytes, 64)), "strides_bytes"


def wrong_number_of_element_strides(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    return replace(spec, element_strides=(*spec.element_strides, 1)), "element_strides"


def wrong_mode(data: st.DataObject, spec: Spec) -> tuple[Spec, str]:
    wrong: dict[str, Any] = {
        "dtype": np.float16,
        "interleave": 0,
        "swizzle": L2Promotion.B128,
        "l2_promotion": None,
        "oob_fill": "ONE",
    }
    argument = data.draw(st.sampled_from(sorted(wrong)))
    return replace(spec, **{argument: wrong[argument]}), argument


ANY_SPEC: list[Break] = [
    misaligned_address,
    address_out_of_range,
    extent_out_of_range,
    misaligned_stride,
    stride_out_of_range,
    element_stride_out_of_range,
    type_of_sm_100,
    swizzle_of_sm_100,
    inner_side_off_16_bytes,
    inner_side_beyond_the_span,
    nan_fill_of_integers,
    wrong_type_of_an_extent,
    wrong_type_of_the_address,
    wrong_number_of_strides,
    wrong_number_of_element_strides,
    wrong_mode,
]


def box_side_out_of_range(data: st.DataObject, spec: TensorMapSpec) -> tuple[Spec, str]:
    dim = data.draw(st.integers(0, spec.rank - 2))
    side = data.draw(st.sampled_from([0, -1, 257, 1 << 16]))
    return replace(spec, box_shape=with_item(spec.box_shape, dim, side)), f"box_shape[{dim}]"


def box_beyond_shared_memory(data: st.DataObject, spec: TensorMapSpec) -> tuple[Spec, str]:
    bytes_ = data.draw(st.integers(233473, 1 << 19))
    inner = 128 // spec.dtype.itemsize
    rows = -(-bytes_ // 128)
    outer = min(256, rows)
    box = (*(1,) * (spec.rank - 3), -(-rows // outer), outer, inner)
    strides = (1,) * spec.rank
    changed = replace(spec, box_shape=box, element_strides=strides, swizzle=Swizzle.B128)
    return changed, "box_shape"


def wrong_number_of_box_sides(data: st.DataObject, spec: TensorMapSpec) -> tuple[Spec, str]:
    return replace(spec, box_shape=spec.box_shape[1:]), "box_shape"


def too_many_dimensions(data: st.DataObject, spec: TensorMapSpec) -> tuple[Spec, str]:
    more = 6 - spec.rank
    return replace(
        spec,
        shape=(2,) * more + spec.shape,
        strides_bytes=(1 << 20,) * more + spec.strides_bytes,
        box_shape=(1,) * more + spec.box_shape,
        element_strides=(1,) * more + spec.element_strides,
    ), "shape"


TILED: list[Break] = [
    box_side_out_of_range,
    box_beyond_shared_memory,
    wrong_number_of_box_sides,
    too_many_dimensions,
]


def pixels_out_of_range(data: st.DataObject, spec: Im2colSpec) -> tuple[Spec, str]:
    pixels = data.draw(st.sampled_from([0, -1, 1025, 1 << 20]))
    return replace(spec, pixels_per_column=pixels), "pixels_per_column"


def channels_out_of_range(data: st.DataObject, spec: Im2colSpec) -> tuple[Spec, str]:
    channels = data.draw(st.sampled_from([0, -16, 272, 1 << 16]))
    return replace(spec, channels_per_pixel=channels, swizzle=Swizzle.NONE), "channels_per_pixel"


def columns_beyond_shared_memory(data: st.DataObject, spec: Im2colSpec) -> tuple[Spec, str]:
    changed = replace(spec, dtype=DataType.FLOAT32, swizzle=Swizzle.NONE, oob_fill=OOBFill.ZERO)
    pixels = data.draw(st.integers(229, 1024))
    argument = "pixels_per_column x channels_per_pixel"
    return replace(changed, pixels_per_column=pixels, channels_per_pixel=256), argument


def corner_out_of_range(data: st.DataObject, spec: Im2colSpec) -> tuple[Spec, str]:
    reach = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}[spec.rank]
    index = data.draw(st.integers(0, spec.rank - 3))
    argument, corner = data.draw(
        st.sampled_from([("lower_corner", -reach - 1), ("upper_corner", reach)])
    )
    changes: Any = {argument: with_item(getattr(spec, argument), index, corner)}
    return replace(spec, **changes), f"{argument}[{index}]"


def empty_bounding_box(data: st.DataObject, spec: Im2colSpec) -> tuple[Spec, str]:
    index = data.draw(st.integers(0, spec.rank - 3))
    dim = spec.spatial_dims[index]
    extent = data.draw(st.integers(1, 8))
    short = data.draw(st.integers(0, 4))
    changed = replace(
        spec,
        shape=with_item(spec.shape, dim, extent),
        lower_corner=with_item(spec.lower_corner, index, 2),
        upper_corner=with_item(spec.upper_corner, index, 2 - extent - short),
    )
    return changed, f"upper_corner[{index}]"


def spatial_extent_of_2_to_the_31(data: st.DataObject, spec: Im2colSpec) -> tuple[Spec, str]:
    index = data.draw(st.integers(0, spec.rank - 3))
    dim = spec.spatial_dims[index]
    extent = data.draw(st.sampled_from([1 << 31, 3 << 30]))
    # With an upper corner below zero the driver's sum may wrap around, and it accepts.
    changed = replace(
        spec,
        shape=with_item(spec.shape, dim, extent),
        upper_corner=with_item(spec.upper_corner, index, 0),
    )
    return changed, f"shape[{dim}]"


def wrong_number_of_corners(data: st.DataObject, spec: Im2colSpec) -> tuple[Spec, str]:
    argument = data.draw(st.sampled_from(["lower_corner", "upper_corner"]))
    changes: Any = {argument: (0,) * (spec.rank - 1)}
    return replace(spec, **changes), argument


IM2COL: list[Break] = [
    pixels_out_of_range,
    channels_out_of_range,
    columns_beyond_shared_memory,
    corner_out_of_range,
    empty_bounding_box,
    spatial_extent_of_2_to_the_31,
    wrong_number_of_corners,
]


def check_that_one_rule_is_broken(broken: Spec, argument: str) -> None:
    found = broken.violations()

    assert [violation.argument for violation in found] == [argument]
    assert all((found[0].rule, found[0].remedy))
    with pytest.raises(TensorMapError) as caught:
        broken.encode()
    assert caught.value.violations == found
    assert repr(broken) in str(broken.explain())


@pytest.mark.parametrize("break_rule", ANY_SPEC)
@given(data=st.data(), spec=st.one_of(tiled_specs(ranks=(3, 5)), im2col_specs()))
def test_one_broken_rule_is_the_one_reported(
    break_rule: Break, data: st.DataObject, spec: Spec
) -> None:
    check_that_one_rule_is_broken(*break_rule(data, spec))


@pytest.mark.parametrize("break_rule", TILED)
@given(data=st.data(), spec=tiled_specs(ranks=(3, 5)))
def test_one_broken_rule_of_tiled_maps_is_the_one_reported(
    break_rule: Break, data: st.DataObject, spec: Spec
) -> None:
    check_that_one_rule_is_broken(*break_rule(data, spec))


@pytest.mark.parametrize("break_rule", IM2COL)
@given(data=st.data(), spec=im2col_specs())
def test_one_broken_rule_of_im2col_maps_is_the_one_reported(
    break_rule: Break, data: st.DataObject, spec: Spec
) -> None:
    check_that_one_rule_is_broken(*break_rule(data, spec))


@given(data=st.data(), spec=specs)
def test_however_many_rules_of_values_are_broken_the_proposal_is_legal(
    data: st.DataObject, spec: Spec
) -> None:
    own = IM2COL if isinstance(spec, Im2colSpec) else TILED
    of_form = {"wrong_number", "wrong_type", "wrong_mode"}
    rules = [
        rule
        for rule in ANY_SPEC + own
        if not any(rule.__name__.startswith(name) for name in of_form)
    ]
    for break_rule in data.draw(st.lists(st.sampled_from(rules), min_size=1, max_size=4)):
        if spec.rank >= 3 and not spec.dtype.needs_sm_100:
            spec, _ = break_rule(data, spec)

    proposal = spec.explain().proposal

    assert proposal is not None
    assert proposal.violations() == ()


@given(spec=specs)
def test_a_legal_spec_is_its_own_proposal(spec: Spec) -> None:
    explanation = spec.explain()

    assert explanation.is_legal
    assert explanation.proposal is spec
    assert explanation.changes == ()


@given(spec=tiled_specs(ranks=(1, 2)), interleave=st.sampled_from([Interleave.B16, Interleave.B32]))
def test_an_interleave_needs_three_dimensions(spec: Spec, interleave: Interleave) -> None:
    aligned = replace(spec, address=0x1000, strides_bytes=(64,) * (spec.rank - 1))

    check_that_one_rule_is_broken(replace(aligned, interleave=interleave), "interleave")


def test_the_wider_interleave_needs_multiples_of_32() -> None:
    spec = ordinary_tiled(interleave=Interleave.B32, address=0x1010, strides_bytes=(131088, 1040))

    assert [found.argument for found in spec.violations()] == [
        "address",
        "strides_bytes[0]",
        "strides_bytes[1]",
    ]


def test_an_interleaved_box_is_not_held_against_the_span() -> None:
    wide = ordinary_tiled(swizzle=Swizzle.B32)

    assert wide.violations()[0].argument == "box_shape[2]"
    assert replace(wide, interleave=Interleave.B16).violations() == ()


# --- all at once, in words ----------------------------------------------------------------------


def test_every_broken_rule_is_reported_at_once() -> None:
    spec = ordinary_tiled(
        address=3,
        shape=(0, 128, 512),
        strides_bytes=(131072, 1022),
        box_shape=(1, 300, 64),
        swizzle=Swizzle.B128_ATOM_64B,
        oob_fill=OOBFill.NAN,
        dtype=DataType.INT32,
    )

    assert [found.argument for found in spec.violations()] == [
        "address",
        "shape[0]",
        "strides_bytes[1]",
        "box_shape[1]",
        "swizzle",
        "oob_fill",
    ]


def test_a_value_is_judged_although_another_has_the_wrong_type() -> None:
    spec = ordinary_tiled(shape=(1.5, 0, 512), strides_bytes=(131072, 1022))

    assert [found.argument for found in spec.violations()] == [
        "shape[0]",
        "shape[1]",
        "strides_bytes[1]",
    ]


@pytest.mark.parametrize("shape", [7, None, 2.5, "77", np.float32(3)])
def test_a_shape_that_is_no_sequence_is_a_violation(shape: Any) -> None:
    spec = ordinary_tiled(shape=shape)

    assert spec.violations()[0].argument == "shape"
    assert spec.explain().proposal is None


def test_a_message_names_argument_value_rule_and_remedy() -> None:
    (found,) = ordinary_tiled(strides_bytes=(131072, 1022)).violations()

    assert str(found) == (
        "strides_bytes[1] is 1022; it must be a multiple of 16 bytes. "
        "Pad that dimension to 1024 bytes."
    )


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"swizzle": Swizzle.B128_ATOM_32B}, "Swizzle.B128_ATOM_32B"),
        ({"dtype": DataType.PACKED_16U4_ALIGN16B}, "DataType.PACKED_16U4_ALIGN16B"),
    ],
)
def test_what_only_sm_100_has_is_refused_by_name(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(
        TensorMapError, match="exists on sm_100a and sm_103a; this is sm_90a"
    ) as caught:
        ordinary_tiled(**changes).check()

    assert name in str(caught.value)


def test_the_box_may_take_228_kib_and_no_more() -> None:
    full = ordinary_tiled(box_shape=(57, 32, 64), swizzle=Swizzle.B128)

    assert full.violations() == ()
    assert full.box_bytes == 228 * 1024
    assert replace(full, box_shape=(58, 32, 64)).violations()[0].argument == "box_shape"


NONSENSE = [
    *(None, 1.5, float("nan"), True, "12", b"12", (), (1, 2, 3), {1: 2}, {1}, object(), int, -1, 0),
    *(np.True_, np.float32(2), np.array(2.5), np.arange(3), np.zeros(0), np.zeros((2, 2)), np.int8),
    *(1 << 70, Swizzle.B32, DataType.PACKED_16U4_ALIGN8B, OOBFill.NAN, range(3), iter([1])),
]


@given(data=st.data(), spec=st.sampled_from([ordinary_tiled(), ordinary_im2col()]))
def test_nonsense_is_explained_and_never_crashes(data: st.DataObject, spec: Spec) -> None:
    names = st.sampled_from([item.name for item in fields(spec)])
    changes: Any = data.draw(st.dictionaries(names, st.sampled_from(NONSENSE), max_size=3))
    changed = replace(spec, **changes)

    explanation = changed.explain()

    assert str(explanation)
    assert explanation.violations or len(changed.encode()) == TENSOR_MAP_BYTES
    assert explanation.proposal is None or explanation.proposal.violations() == ()
