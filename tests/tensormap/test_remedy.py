from __future__ import annotations

from dataclasses import replace
from typing import Any

from strategies import ordinary_im2col, ordinary_tiled

from tmaasync.modes import DataType, Swizzle
from tmaasync.tensormap import MAX_SHARED_BYTES, TensorMapSpec


def proposal_for(**changes: Any) -> TensorMapSpec:
    proposal = ordinary_tiled(**changes).explain().proposal
    assert proposal is not None
    assert proposal.violations() == ()
    return proposal


def test_rows_are_padded_and_outer_strides_follow() -> None:
    padded = proposal_for(shape=(4, 128, 511), strides_bytes=(128 * 1022, 1022))

    assert padded.strides_bytes == (128 * 1024, 1024)


def test_a_box_that_is_too_long_is_split_in_equal_parts() -> None:
    assert proposal_for(box_shape=(1, 300, 64)).box_shape == (1, 150, 64)


def test_a_box_wider_than_the_span_gets_the_swizzle_of_its_width() -> None:
    changed = proposal_for(swizzle=Swizzle.B32)

    assert (changed.swizzle, changed.box_shape) == (Swizzle.B128, (1, 64, 64))


def test_a_box_wider_than_any_swizzle_is_split() -> None:
    changed = proposal_for(swizzle=Swizzle.B128, box_shape=(1, 64, 128))

    assert (changed.swizzle, changed.box_shape) == (Swizzle.B128, (1, 64, 64))


def test_a_box_beyond_shared_memory_is_halved_until_it_fits_a_block() -> None:
    changed = proposal_for(box_shape=(8, 256, 64), dtype=DataType.FLOAT32)

    assert changed.box_shape == (8, 64, 64)
    assert changed.box_bytes <= MAX_SHARED_BYTES


def test_an_element_stride_that_is_too_large_is_reduced() -> None:
    assert proposal_for(element_strides=(1, 9, 1)).element_strides == (1, 8, 1)


def test_a_sixth_dimension_becomes_one_map_per_index() -> None:
    spec = TensorMapSpec(0, DataType.UINT8, (2,) * 5 + (16,), (256,) * 5, (1,) * 5 + (16,))

    proposal = spec.explain().proposal

    assert proposal is not None
    assert proposal.shape == (2, 2, 2, 2, 16)


def test_packed_elements_become_bytes() -> None:
    changed = proposal_for(dtype=DataType.PACKED_16U6_ALIGN16B, box_shape=(1, 64, 128))

    assert changed.dtype is DataType.UINT8
    assert (changed.shape[-1], changed.box_shape[-1]) == (384, 96)


def test_empty_bounding_boxes_are_opened() -> None:
    spec = ordinary_im2col(shape=(8, 2, 28, 128), upper_corner=(-5, -1))

    assert [found.argument for found in spec.violations()] == ["upper_corner[0]"]
    proposal = spec.explain().proposal
    assert proposal is not None
    assert proposal.upper_corner == (-2, -1)


def test_no_spec_is_near_one_with_the_wrong_lengths() -> None:
    explanation = ordinary_tiled(strides_bytes=(1024,)).explain()

    assert explanation.proposal is None
    assert "correct the types and lengths first" in str(explanation)


def test_an_explanation_prints_violations_changes_and_the_proposal() -> None:
    spec = ordinary_tiled(shape=(4, 128, 511), strides_bytes=(131072, 1022))

    said = str(spec.explain()).splitlines()

    assert said == [
        repr(spec),
        "illegal:",
        f"  {spec.violations()[0]}",
        "nearest legal spec:",
        "  strides_bytes: (131072, 1022) -> (131072, 1024)",
        f"  {replace(spec, strides_bytes=(131072, 1024))!r}",
    ]


def test_a_side_that_wraps_with_its_upper_corner_is_cut_below_both() -> None:
    spec = ordinary_im2col()
    shape = (*spec.shape[:-2], (1 << 32) + 1, spec.shape[-1])
    upper = (*spec.upper_corner[:-1], 127)

    proposal = replace(spec, shape=shape, upper_corner=upper).explain().proposal

    assert proposal is not None
    assert proposal.shape[-2] + 127 < 1 << 31
