from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from strategies import ordinary_im2col, ordinary_tiled, specs

from tmaasync.errors import TensorMapError
from tmaasync.modes import DataType, Interleave, Swizzle
from tmaasync.tensormap import Im2colSpec, TensorMapSpec

Spec = TensorMapSpec | Im2colSpec


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"shape": (4, 128, 466)}, "shape[2]"),
        ({"element_strides": (1, 1, 2)}, "element_strides[2]"),
        ({"element_strides": (1, 3, 1)}, "box_shape[1]"),
        ({"box_shape": (57, 32, 64)}, "box_bytes"),
        ({"interleave": Interleave.B32}, "swizzle"),
        ({"swizzle": Swizzle.B128, "box_shape": (1, 64, 32)}, "box_shape[2]"),
        ({"strides_bytes": (65536, 512)}, "strides_bytes[1]"),
    ],
)
def test_what_the_driver_lets_pass_is_a_hazard(changes: dict[str, Any], argument: str) -> None:
    spec = ordinary_tiled(**changes)

    assert spec.violations() == ()
    assert [found.argument for found in spec.hazards()] == [argument]
    assert argument in str(spec.explain())


def test_an_ordinary_spec_has_no_hazards() -> None:
    assert ordinary_tiled().hazards() == ordinary_im2col().hazards() == ()


@given(spec=specs)
def test_hazards_never_make_a_legal_spec_illegal(spec: Spec) -> None:
    spec.hazards()

    spec.check()


def test_an_illegal_spec_has_violations_and_no_hazards() -> None:
    assert ordinary_tiled(shape=(4, 128, 0)).hazards() == ()


# --- rules known only at use --------------------------------------------------------------------


def test_coordinates_of_a_load_may_be_negative_and_beyond_the_end() -> None:
    ordinary_tiled().check_coordinates((-1, -8, -16))
    ordinary_tiled().check_coordinates((1000, 1000, 1024))


@pytest.mark.parametrize(
    ("dtype", "place"),
    [(DataType.FLOAT32, 1), (DataType.FLOAT32, -2), (DataType.FLOAT16, -3), (DataType.UINT8, 5)],
)
def test_the_innermost_coordinate_is_a_multiple_of_16_bytes(dtype: DataType, place: int) -> None:
    with pytest.raises(TensorMapError, match="multiple of 16 bytes"):
        ordinary_tiled(dtype=dtype).check_coordinates((0, 0, place))


def test_a_store_starts_at_no_negative_coordinate() -> None:
    found = ordinary_tiled().coordinate_violations((0, -1, -8), store=True)

    assert [violation.argument for violation in found] == ["coordinates[1]", "coordinates[2]"]


def test_coordinates_are_32_bits_and_one_per_dimension() -> None:
    assert ordinary_tiled().coordinate_violations((1 << 31, 0, 0))[0].argument == "coordinates[0]"
    assert ordinary_tiled().coordinate_violations((0, 0))[0].argument == "coordinates"


@pytest.mark.parametrize("coordinates", [(0, 0, 1.5), (0, "a", 0), 7, None, (0, True, 0)])
def test_coordinates_that_are_no_integers_are_violations(coordinates: Any) -> None:
    assert ordinary_tiled().coordinate_violations(coordinates)


def test_a_spatial_extent_that_overflows_the_drivers_sum_is_a_hazard() -> None:
    spec = Im2colSpec(
        0x7F0000000000,
        DataType.FLOAT16,
        (1, 1 << 31, 64),
        (128, 128),
        lower_corner=(0,),
        upper_corner=(-2,),
        channels_per_pixel=64,
        pixels_per_column=16,
    )

    assert spec.violations() == ()
    assert [hazard.argument for hazard in spec.hazards()] == ["shape[1]"]
