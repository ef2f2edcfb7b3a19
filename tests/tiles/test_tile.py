"""Tiles over host arrays: shapes, boxes, bytes, types, the cache, and all that is refused."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_in_memory import aligned
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import (
    ArrayTypeError,
    BulkTile,
    DataType,
    L2Promotion,
    StaleTileError,
    Swizzle,
    TensorMapError,
    TensorMapSpec,
    TMAError,
    create_tma_tile,
    create_tma_tile_template,
)

DRIVER_TYPES = {
    np.uint8: DataType.UINT8, np.uint16: DataType.UINT16, np.uint32: DataType.UINT32,
    np.int32: DataType.INT32, np.uint64: DataType.UINT64, np.int64: DataType.INT64,
    np.float16: DataType.FLOAT16, np.float32: DataType.FLOAT32, np.float64: DataType.FLOAT64,
    ml_dtypes.bfloat16: DataType.BFLOAT16,
}  # fmt: skip
CARRIED_TYPES = {
    np.int8: DataType.UINT8, np.int16: DataType.UINT16, np.bool_: DataType.UINT8,
    ml_dtypes.float8_e4m3fn: DataType.UINT8, ml_dtypes.float8_e5m2: DataType.UINT8,
}  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("dtype", "data_type"), [*DRIVER_TYPES.items(), *CARRIED_TYPES.items()])
def test_every_type_at_every_rank(rank: int, dtype: Any, data_type: DataType) -> None:
    array = aligned((4,) * (rank - 1) + (32,), dtype)

    tile = create_tma_tile(array, (2,) * (rank - 1) + (16,))

    decoded = TensorMapSpec.decode(tile.descriptor)
    assert decoded == tile.spec
    assert decoded.dtype is data_type
    assert decoded.shape == array.shape
    assert decoded.address == array.ctypes.data
    assert decoded.strides_bytes == array.strides[:-1]
    assert tile.tile_bytes == 2 ** (rank - 1) * 16 * np.dtype(dtype).itemsize


@pytest.mark.parametrize(
    ("dtype", "data_type"),
    [("tf32", DataType.TFLOAT32), ("f32_ftz", DataType.FLOAT32_FTZ), ("uint32", DataType.UINT32)],
)
def test_a_dtype_says_how_the_same_bits_are_read(dtype: str, data_type: DataType) -> None:
    tile = create_tma_tile(aligned((64, 64)), (8, 32), dtype=dtype)

    assert tile.spec.dtype is data_type


@given(
    rows=st.integers(1, 4),
    chunks=st.integers(1, 4),
    swizzle=st.sampled_from([Swizzle.B32, Swizzle.B64, Swizzle.B128]),
)
def test_a_swizzled_box_is_as_wide_as_the_swizzle(rows: int, chunks: int, swizzle: Swizzle) -> None:
    width = swizzle.span_bytes // 2
    tile = create_tma_tile(
        aligned((64, 1024), np.float16), (8 * rows, width * chunks), swizzle=swizzle
    )

    assert tile.box_shape == (8 * rows, width)
    assert tile.boxes_per_tile == chunks
    assert tile.tile_bytes == 8 * rows * width * chunks * 2
    assert tile.smem_alignment == 8 * swizzle.span_bytes


@given(side=st.integers(1, 1000))
def test_without_swizzle_a_side_is_cut_into_equal_parts_of_at_most_256(side: int) -> None:
    box = create_tma_tile(aligned((1000, 128), np.uint8), (side, 128)).box_shape[0]

    assert box <= 256
    assert side % box == 0
    assert all(side % larger for larger in range(box + 1, 257))


def test_the_type_in_cuda_names_element_sides_and_swizzle() -> None:
    array = aligned((64, 256), ml_dtypes.bfloat16)

    assert create_tma_tile(array, (64, 128), swizzle=Swizzle.B128).cuda_type == (
        "tmaasync::TMATensorTile<tmaasync::bfloat16, tmaasync::Shape<64, 128>, "
        "tmaasync::Box<64, 64>, tmaasync::Swizzle::k128B>"
    )
    assert create_tma_tile(array, (8, 64), element_strides=(2, 1)).cuda_type == (
        "tmaasync::TMATensorTile<tmaasync::bfloat16, tmaasync::Shape<8, 64>, "
        "tmaasync::Box<8, 64>, tmaasync::Swizzle::kNone, tmaasync::Shape<2, 1>>"
    )


def test_padded_rows_and_windows_are_described_as_they_lie() -> None:
    window = aligned((100, 256))[10:90, 16:80]

    spec = create_tma_tile(window, (8, 64)).spec

    assert spec.address == window.ctypes.data
    assert spec.shape == (80, 64)
    assert spec.strides_bytes == (1024,)


def test_element_strides_widen_the_box_of_the_map_not_of_shared_memory() -> None:
    tile = create_tma_tile(aligned((64, 32)), (8, 32), element_strides=(3, 1))

    assert tile.spec.box_shape == (24, 32)
    assert tile.tile_bytes == 8 * 32 * 4
    assert tile.tiles_per_side == (3, 1)


def test_l2_fetches_lines_by_default() -> None:
    array = aligned((64, 64))

    assert create_tma_tile(array, (8, 32)).spec.l2_promotion == L2Promotion.B128
    wide = create_tma_tile(array, (8, 32), l2_promotion=L2Promotion.B256)
    assert wide.spec.l2_promotion == L2Promotion.B256


def test_asking_again_encodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    array = aligned((72, 64))
    first = create_tma_tile(array, (8, 32))
    monkeypatch.setattr(TensorMapSpec, "encode", lambda _: pytest.fail("encoded again"))

    again = create_tma_tile(array, (8, 32))
    elsewhere = create_tma_tile(aligned((72, 64)), (8, 32))

    assert again.descriptor == first.descriptor
    assert elsewhere.descriptor[8:] == first.descriptor[8:]
    assert elsewhere.spec.address != first.spec.address


def test_the_cache_keeps_no_array_alive_but_a_tile_does() -> None:
    class Watched(np.ndarray[Any, Any]):
        pass

    array = aligned((80, 64)).view(Watched)
    gone = weakref.ref(array)
    tile = create_tma_tile(array, (8, 32))
    del array
    gc.collect()
    assert gone() is not None

    del tile
    gc.collect()
    assert gone() is None


def test_rebind_gives_the_same_tile_over_another_array() -> None:
    first, second = aligned((64, 64)), aligned((64, 64))
    tile = create_tma_tile(first, (8, 32), swizzle=Swizzle.B128)

    other = tile.rebind(second)

    assert other.array is second
    assert other.descriptor == create_tma_tile(second, (8, 32), swizzle=Swizzle.B128).descriptor
    assert tile.array is first


@pytest.mark.parametrize(
    ("other", "argument"),
    [
        (aligned((64, 32)), "array.shape"),
        (aligned((64, 128))[:, :64], "array.strides"),
        (aligned((64, 65)).reshape(-1)[1:4097].reshape(64, 64), "address"),
        (aligned((64, 64)).view(np.int32), "array.dtype"),
        (np.zeros((64, 64), np.float64), "array.dtype"),
    ],
)
def test_rebind_to_an_array_that_differs_says_in_what(other: Any, argument: str) -> None:
    tile = create_tma_tile(aligned((64, 64)), (8, 32))

    with pytest.raises(TensorMapError) as caught:
        tile.rebind(other)

    assert argument in {violation.argument for violation in caught.value.violations}


def test_a_tile_that_reads_another_type_is_rebound_to_arrays_of_both() -> None:
    tile = create_tma_tile(aligned((64, 64)).view(np.uint32), (8, 32), dtype="fp32")
    assert tile.rebind(aligned((64, 64)).view(np.uint32)).element.name == "float32"
    assert tile.rebind(aligned((64, 64))).element.name == "float32"


EQUAL: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"tile_shape": (1, 32)}, {"tile_shape": (1.0, 32)}),
    ({"tile_shape": (1, 32)}, {"tile_shape": (True, 32)}),
    ({"element_strides": (1, 1)}, {"element_strides": (1.0, 1)}),
    ({"box_shape": (8, 32)}, {"box_shape": (8.0, 32)}),
    ({"swizzle": Swizzle.NONE}, {"swizzle": 0}),
    ({"oob_fill": "zero"}, {"oob_fill": False}),
    ({}, {"l2_promotion": 2}),
    ({}, {"interleave": 0}),
)


@pytest.mark.parametrize(("legal", "equal"), EQUAL)
def test_an_equal_value_of_another_type_is_refused_after_a_legal_call_too(
    legal: dict[str, Any], equal: dict[str, Any]
) -> None:
    array = aligned((64, 64))
    for _ in range(2):
        create_tma_tile(array, **{"tile_shape": (8, 32), **legal})
        with pytest.raises(
            TMAError, match=rf"^{next(iter(equal))}.* is (1\.0|8\.0|True|False|0|2); "
        ):
            create_tma_tile(array, **{"tile_shape": (8, 32), **legal, **equal})


def test_a_template_without_sides_is_refused() -> None:
    with pytest.raises(TensorMapError, match=r"tile_shape is \(\); a tile has 1 to 5 sides"):
        create_tma_tile_template((), "fp32")


def refused(array: Any, tile_shape: Any, **options: Any) -> dict[str, str]:
    with pytest.raises(TensorMapError) as caught:
        create_tma_tile(array, tile_shape, **options)
    return {violation.argument: str(violation) for violation in caught.value.violations}


def test_a_0_dimensional_array_is_refused() -> None:
    assert "tile has 1 to 5 sides" in refused(aligned((1,)).reshape(()), ())["array"]


@pytest.mark.parametrize("array", [aligned((0, 64)), np.zeros((0, 16), np.float32)])
def test_an_empty_array_is_refused_and_nothing_else_said_of_it(array: Any) -> None:
    assert {*refused(array, (8, array.shape[1]))} == {"shape[0]"}


@pytest.mark.parametrize("side", [0, -1, 2.5, True, "8"])
def test_a_side_that_is_no_positive_integer_is_refused(side: Any) -> None:
    assert "positive integer" in refused(aligned((64, 64)), (side, 32))["tile_shape[0]"]


def test_a_transposed_array_is_refused_with_what_to_do() -> None:
    found = refused(aligned((64, 32)).T, (8, 32))

    assert "is 256; the last dimension must be contiguous" in found["array.strides[1]"] or (
        "is 128; the last dimension must be contiguous" in found["array.strides[1]"]
    )
    assert "ascontiguousarray" in found["array.strides[1]"]


def test_a_tile_larger_than_shared_memory_is_refused() -> None:
    found = refused(aligned((1024, 1024)), (256, 256))

    assert "it takes 262144 bytes and a block has" in found["tile_shape"]


def test_all_broken_rules_are_reported_at_once() -> None:
    array = aligned((64, 511), np.float16)

    found = refused(array, (300, 64), swizzle=Swizzle.B32, box_shape=(300, 64))

    assert {"strides_bytes[0]", "box_shape[0]", "box_shape[1]"} <= set(found)


@pytest.mark.parametrize("dtype", [np.complex64, np.dtype("V3"), object])
def test_an_element_type_that_tma_cannot_read_is_refused(dtype: Any) -> None:
    with pytest.raises(ArrayTypeError):
        create_tma_tile(np.zeros((64, 64), dtype), (8, 32))


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(ArrayTypeError, match="a list; it is no array"):
        create_tma_tile([[1, 2], [3, 4]], (1, 2))


def test_a_resized_array_leaves_its_tile_stale() -> None:
    array = np.zeros(1 << 20, np.uint8)
    tile = BulkTile(array, 4096)
    array.resize(16, refcheck=False)

    with pytest.raises(StaleTileError, match="tile is made for an array"):
        tile.check_alive()


def test_a_bulk_tile_shows_its_array_and_sizes() -> None:
    array = np.zeros((10, 100), np.float32)

    shown = repr(BulkTile(array, 256))

    assert shown.startswith("<BulkTile 256 bytes of float32 [10x100] at 0x")
    assert shown.endswith(", 4000 bytes>")


def test_a_bulk_tile_covers_whole_granules() -> None:
    array = aligned((1001,), np.uint8)
    with pytest.raises(TensorMapError, match=r"array is 1001 bytes.* the last 9.* allow_tail=True"):
        BulkTile(array, 256)

    tile = BulkTile(array, 256, allow_tail=True)

    assert tile.size_bytes == 992
    address, size = np.frombuffer(tile.descriptor, "<u8").tolist()
    assert (address, size) == (array.ctypes.data, 992)


@pytest.mark.parametrize(
    ("array", "tile_bytes", "argument"),
    [
        (aligned((64, 64))[:, :32], 256, "array.strides"),
        (aligned((64,), np.uint8)[1:33], 16, "array's address"),
        (aligned((64,)), 24, "tile_bytes"),
        (aligned((64,)), 0, "tile_bytes"),
    ],
)
def test_a_bulk_tile_that_breaks_a_rule_names_it(
    array: Any, tile_bytes: int, argument: str
) -> None:
    with pytest.raises(TensorMapError) as caught:
        BulkTile(array, tile_bytes)

    assert [violation.argument for violation in caught.value.violations] == [argument]
