"""Ragged maps over host arrays: what the map says, coordinates, whole batches, what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arrays_in_memory import aligned
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import (
    ArgumentError,
    DataType,
    Kernel,
    Pipeline,
    StaleTileError,
    Swizzle,
    TensorMapError,
    TensorMapSpec,
    create_ragged_tensor_map,
    create_ragged_tma_3d_tile,
)
from tmaasync._ragged.batch import BatchNames, checked_cu_seqlens
from tmaasync.ragged import cumulative_lengths

PACKED = aligned((149, 16, 128))


# --- the map ------------------------------------------------------------------------------------


def test_the_ragged_dimension_is_there_twice_and_the_address_lies_below() -> None:
    map_ = create_ragged_tensor_map(PACKED, (24, 1, 64), max_length=64)

    assert map_.spec == TensorMapSpec(
        PACKED.ctypes.data - 64 * 8192,
        DataType.FLOAT32,
        (150, 64, 16, 128),
        (8192, 8192, 512),
        (1, 24, 1, 64),
        l2_promotion=map_.spec.l2_promotion,
    )
    assert TensorMapSpec.decode(map_.descriptor[:128]) == map_.spec
    blank = TensorMapSpec.decode(map_.argument[128:256])
    assert blank == replace(map_.spec, address=blank.address)
    assert np.frombuffer(map_.argument[256:272], np.int32).tolist() == [128, 16, 64, 150]
    assert map_.argument[384:] == (64).to_bytes(128, "little")
    assert (map_.tile_shape, map_.box_shape, map_.tile_bytes) == ((24, 1, 64), (24, 1, 64), 6144)


def test_rows_may_lie_further_in_and_the_longest_is_all_of_them_by_default() -> None:
    array = aligned((4, 50, 64), np.float16)

    map_ = create_ragged_tensor_map(array, (1, 8, 64), ragged_dim=-2, swizzle=Swizzle.B128)

    assert (map_.ragged_dim, map_.max_length, map_.total_rows) == (1, 50, 50)
    assert map_.spec.shape == (51, 4, 50, 64)
    assert map_.spec.strides_bytes == (128, 6400, 128)
    assert map_.cuda_type == (
        "tmaasync::RaggedTensorMap<tmaasync::float16, tmaasync::Shape<1, 8, 64>, "
        "tmaasync::Box<1, 8, 64>, tmaasync::Swizzle::k128B, 1>"
    )


def test_a_wide_swizzled_tile_is_several_boxes() -> None:
    map_ = create_ragged_tensor_map(PACKED, (16, 1, 128), max_length=64, swizzle=Swizzle.B128)

    assert (map_.box_shape, map_.boxes_per_tile) == ((16, 1, 32), 4)
    assert map_.smem_alignment == 1024
    assert Pipeline(2, tiles={"packed": map_}).stage_bytes == map_.tile_bytes


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_every_rank_and_width_encodes(rank: int, dtype: Any) -> None:
    array = aligned((20, *(2,) * (rank - 2), 32), dtype)

    map_ = create_ragged_tensor_map(array, (4, *(1,) * (rank - 2), 16), max_length=7)

    assert TensorMapSpec.decode(map_.descriptor[:128]).rank == rank + 1
    assert Kernel(
        'extern "C" __global__ void k(const __grid_constant__ Map map) {}\n',
        "k",
        types={"Map": map_},
    ).compile().entries["k"].parameters[0].size_bytes == len(map_.argument)


def test_rebinding_moves_the_map_and_keeps_the_window() -> None:
    first, second = aligned((20, 64)), aligned((20, 64))
    map_ = create_ragged_tensor_map(first, (4, 32), max_length=8)

    moved = map_.rebind(second)

    assert moved.spec.address == second.ctypes.data - 8 * 256
    assert moved.array is second
    with pytest.raises(TensorMapError, match=r"array\.shape is .*; the map was made for"):
        map_.rebind(aligned((21, 64)))


def test_an_array_that_moved_is_noticed() -> None:
    array = np.zeros((64, 64), np.float32)
    map_ = create_ragged_tensor_map(array, (4, 32))
    assert map_.is_current

    array.resize((1, 64), refcheck=False)

    with pytest.raises(StaleTileError, match="map is made for an array of shape"):
        map_.check_alive()


def test_it_prints_what_it_is() -> None:
    text = repr(create_ragged_tensor_map(PACKED, (24, 1, 64), max_length=64))

    assert text.startswith("<RaggedTensorMap 24x1x64 of float32 [149x16x128] at 0x")
    assert text.endswith("sequences of up to 64 along dimension 0, Swizzle.NONE, 6144 bytes>")


# --- coordinates --------------------------------------------------------------------------------


def test_the_coordinates_of_the_worked_example() -> None:
    map_ = create_ragged_tensor_map(PACKED, (24, 1, 64), max_length=64)

    assert map_.store_coordinates(0, 43, (0, 7, 0)) == (43, 21, 7, 0)
    assert map_.store_coordinates(0, 43, (24, 7, 64)) == (43, 45, 7, 64)
    assert map_.load_coordinates(43, 32, (0, 7, 0)) == (75, 32, 7, 0)
    assert map_.load_coordinates(43, 32, (24, 7, 0)) == (75, 56, 7, 0)


@given(st.data())
def test_a_row_is_reached_if_and_only_if_it_belongs_to_the_sequence(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 60))
    max_length = data.draw(st.integers(1, rows))
    length = data.draw(st.integers(0, max_length))
    start = data.draw(st.integers(0, rows - length))
    row = data.draw(st.integers(0, max_length + 10))
    array = aligned((rows, 8))
    spec = create_ragged_tensor_map(array, (4, 8), max_length=max_length).spec
    map_ = create_ragged_tensor_map(array, (4, 8), max_length=max_length)

    placed = map_.store_coordinates(start, length, (row, 0))

    is_inside = all(0 <= at < extent for at, extent in zip(placed, spec.shape, strict=True))
    assert is_inside == (row < length)
    reached = spec.address + sum(
        at * step for at, step in zip(placed[:2], spec.strides_bytes, strict=True)
    )
    assert reached == array.ctypes.data + (start + row) * 32


@given(
    st.lists(st.integers(0, 30), max_size=12),
    st.integers(1, 9),
    st.sampled_from([0, 1]),
    st.booleans(),
)
def test_a_work_list_holds_every_row_of_a_batch_once(
    lengths: list[int], tile_rows: int, ragged_dim: int, as_sums: bool
) -> None:
    shape = (sum(lengths) + 1, 2, 8) if ragged_dim == 0 else (2, sum(lengths) + 1, 8)
    tile = (tile_rows, 1, 8) if ragged_dim == 0 else (1, tile_rows, 8)
    map_ = create_ragged_tensor_map(aligned(shape), tile, max_length=30, ragged_dim=ragged_dim)
    sums = [0, *np.cumsum(lengths).tolist()]

    work = map_.work_list(cu_seqlens=sums) if as_sums else map_.work_list(lengths)

    wanted = [
        (sequence, row)
        for sequence, length in enumerate(lengths)
        for row in range(0, length, tile_rows)
    ]
    assert [*zip(work.sequences.tolist(), work.rows.tolist(), strict=True)] == wanted
    assert work.coordinates.dtype == np.int32
    for (sequence, row), placed in zip(wanted, work.coordinates.tolist(), strict=True):
        at = (row, 0, 0) if ragged_dim == 0 else (0, row, 0)
        assert tuple(placed[::-1]) == map_.load_coordinates(sums[sequence], lengths[sequence], at)


def test_what_lies_outside_a_sequence_is_refused() -> None:
    map_ = create_ragged_tensor_map(PACKED, (24, 1, 64), max_length=64)

    with pytest.raises(ArgumentError, match="length is 65; a sequence of this map has 0 to max_le"):
        map_.store_coordinates(0, 65, (0, 0, 0))
    with pytest.raises(ArgumentError, match="start is 140; with length 10 it leaves the packed"):
        map_.load_coordinates(140, 10, (0, 0, 0))
    with pytest.raises(ArgumentError, match=r"at\[0\] is -1; the rows before a sequence"):
        map_.load_coordinates(0, 10, (-1, 0, 0))
    with pytest.raises(ArgumentError, match="the array has 3 dimensions and needs a number for"):
        map_.load_coordinates(0, 10, (0, 0))
    with pytest.raises(TensorMapError, match=r"coordinates\[3\] is 2; the innermost coordinate"):
        map_.load_coordinates(0, 10, (0, 0, 2))


# --- one head at a time -------------------------------------------------------------------------


def test_cursor_and_head_are_one_dimension() -> None:
    array = aligned((20, 3, 2, 128), np.float16)

    tile = create_ragged_tma_3d_tile(array, 8, max_length=11, swizzle=Swizzle.B128)

    assert tile.spec.shape == (63, 11, 2, 128)
    assert tile.spec.strides_bytes == (512, 1536, 256)
    assert tile.spec.box_shape == (1, 8, 2, 64)
    assert tile.spec.address == array.ctypes.data - 11 * 1536
    assert np.frombuffer(tile.argument[256:272], np.int32).tolist() == [128, 2, 11, 63]
    assert np.frombuffer(tile.argument[384:392], np.int32).tolist() == [11, 3]
    assert tile.load_coordinates(4, 9, 8, 2, 64) == ((4 + 9) * 3 + 2, 10, 0, 64)
    assert tile.store_coordinates(4, 9, 0, 0) == (39, 2, 0, 0)


def test_all_chunks_are_one_instruction() -> None:
    array = aligned((20, 3, 128), np.float16)

    tile = create_ragged_tma_3d_tile(array, 8, chunk_columns=64, swizzle=Swizzle.B128)

    assert (tile.rows, tile.max_length, tile.boxes_per_tile) == (8, 8, 1)
    assert tile.spec.shape == (63, 2, 8, 64)
    assert tile.spec.strides_bytes == (256, 128, 768)
    assert tile.load_coordinates(4, 5, 0, 1, 64) == (28, 1, 3, 0)
    assert tile.cuda_type.endswith("Box<2, 8, 64>, tmaasync::Swizzle::k128B, 1>")


def refused_head(array: Any, *sides: int, **options: Any) -> list[str]:
    with pytest.raises(TensorMapError) as caught:
        create_ragged_tma_3d_tile(array, *sides, **options)
    return [violation.argument for violation in caught.value.violations]


def test_heads_with_gaps_and_chunks_that_do_not_divide_are_refused() -> None:
    whole = aligned((20, 4, 64))

    assert refused_head(whole[:, :3], 8) == ["array.strides[0]"]
    assert refused_head(whole[:, 0], 8) == ["array.shape"]
    assert refused_head(whole, 8, chunk_columns=24) == ["chunk_columns"]
    assert refused_head(whole, 8, max_length=0) == ["max_length"]
    assert refused_head(whole, 300, chunk_columns=64, max_length=8) == ["rows and chunk_columns"]
    assert refused_head(aligned((0, 4, 64)), 8) == ["array.shape"]
    strided = np.lib.stride_tricks.as_strided(whole, (2**29, 4, 64), (1024, 256, 4))
    assert refused_head(strided, 8) == ["array.shape"]


def test_a_head_that_is_not_there_is_refused() -> None:
    tile = create_ragged_tma_3d_tile(aligned((20, 4, 64)), 8, chunk_columns=32)

    with pytest.raises(ArgumentError) as caught:
        tile.load_coordinates(19, 9, -1, 4, 8)

    assert [line.split(" is ")[0] for line in str(caught.value).splitlines()] == [
        "length", "start", "row", "head", "column",
    ]  # fmt: skip


# --- maps that cannot be ------------------------------------------------------------------------


def refused(array: Any, tile_shape: Any, **options: Any) -> list[tuple[str, object]]:
    with pytest.raises(TensorMapError) as caught:
        create_ragged_tensor_map(array, tile_shape, **options)
    assert pickle.loads(pickle.dumps(caught.value)).violations == caught.value.violations
    return [(violation.argument, violation.value) for violation in caught.value.violations]


def test_rows_that_are_the_contiguous_dimension_are_refused() -> None:
    assert refused(aligned((64,)), (8,)) == [("ragged_dim", "0 of 1 dimensions")]
    assert refused(aligned((8, 64)), (8, 8), ragged_dim=1) == [("ragged_dim", "1 of 2 dimensions")]
    assert refused(aligned((8, 64)), (8, 8), ragged_dim=-1) == [
        ("ragged_dim", "-1 of 2 dimensions")
    ]


def test_rank_and_sides_are_checked_together() -> None:
    assert refused(aligned((2, 2, 2, 2, 8)), (1, 1, 8)) == [
        ("array.shape", (2, 2, 2, 2, 8)),
        ("tile_shape", (1, 1, 8)),
    ]


@pytest.mark.parametrize("max_length", [0, -3, 2.5, True, "8"])
def test_a_window_is_a_positive_integer(max_length: Any) -> None:
    ((argument, _),) = refused(aligned((8, 64)), (8, 8), max_length=max_length)

    assert argument == "max_length"


def test_windows_beyond_32_bits_or_below_address_zero_are_refused() -> None:
    array = aligned((8, 64))

    assert refused(array, (8, 8), max_length=2**31 - 8) == [("max_length", 2**31 - 8)]
    wide = np.lib.stride_tricks.as_strided(array, (2, 8), (1 << 39, 4))
    assert refused(wide, (8, 8), max_length=1 << 20) == [("max_length", 1 << 20)]


def test_rules_of_the_map_name_the_dimensions_of_the_array() -> None:
    odd = aligned((8, 3, 10))[:, :, :8]
    assert refused(odd, (4, 1, 8)) == [("array.strides[0]", 120), ("array.strides[1]", 40)]
    assert refused(aligned((8, 64)), (4, 6)) == [("box_shape[1]", 6)]
    assert refused(aligned((8, 64, 2))[:, :, 0], (4, 8)) == [("array.strides[1]", 8)]
    assert ("tile_shape[0]", "0") in refused(aligned((8, 64)), (0, 8))


def test_an_empty_or_misaligned_array_is_refused() -> None:
    assert refused(aligned((0, 64)), (4, 8)) == [("array.shape", (0, 64))]
    array = aligned((9, 64)).reshape(-1)[1:513].reshape(8, 64)
    assert refused(array, (4, 8)) == [("array's address", f"{array.ctypes.data:#x}")]


# --- batches that cannot be ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"lengths": [3, 9, 10]}, r"lengths\[1\] is 9; .* 8 rows \(1 more like it\). Use .*=10"),
        ({"lengths": [3, -1]}, r"lengths\[1\] is -1; a sequence has 0 rows or more"),
        ({"lengths": [8, 8, 8]}, "the sum of lengths is 24; the packed array has 20 rows"),
        ({"lengths": [1.5]}, "lengths.dtype is float64; rows are counted in integers"),
        ({"lengths": [True]}, "lengths.dtype is bool; rows are counted in integers"),
        ({"lengths": [[1, 2]]}, r"lengths.shape is \(1, 2\); it holds one number per sequence"),
        ({"cu_seqlens": [1, 3]}, r"cu_seqlens\[0\] is 1; the first sequence starts at row 0"),
        ({"cu_seqlens": []}, r"cu_seqlens\[0\] is missing; the first sequence starts at row 0"),
        ({"cu_seqlens": [0, 5, 3]}, r"cu_seqlens\[2\] is 3; .* decrease, and cu_seqlens\[1\] is 5"),
        ({"cu_seqlens": [0, 9]}, r"cu_seqlens\[1\] - cu_seqlens\[0\] is 9; no sequence may have"),
        ({"cu_seqlens": [0, 8, 16, 21]}, r"cu_seqlens\[3\] is 21; the packed array has 20 rows"),
        ({}, "lengths and cu_seqlens are neither given"),
        ({"lengths": [1], "cu_seqlens": [0, 1]}, "lengths and cu_seqlens are both given"),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_is_refused(given_: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        cumulative_lengths(**given_, max_length=8, total_rows=20)


def test_violations_of_a_batch_are_in_the_callers_names() -> None:
    names = BatchNames("", "cu_seqlens_q", "max_seqlen_q", "q")
    with pytest.raises(ArgumentError) as caught:
        checked_cu_seqlens(None, [1, 40, 3], max_length=8, total_rows=2, names=names)

    assert [violation.argument for violation in caught.value.violations] == [
        "cu_seqlens_q[0]",
        "cu_seqlens_q[2]",
        "cu_seqlens_q[1] - cu_seqlens_q[0]",
        "cu_seqlens_q[2]",
    ]
    assert "more than max_seqlen_q, 8 rows. Use max_seqlen_q=39" in str(caught.value)
    assert "q has 2 rows" in str(caught.value)


def test_more_rows_than_32_bits_are_refused() -> None:
    with pytest.raises(ArgumentError, match="signed numbers of 32 bits"):
        cumulative_lengths([2**30, 2**30], max_length=2**30)


@given(st.lists(st.integers(0, 8), max_size=9))
def test_cumulative_lengths_add_the_lengths(lengths: list[int]) -> None:
    sums = cumulative_lengths(np.array(lengths, np.uint16), max_length=8)

    assert sums.dtype == np.int32
    assert sums.tolist() == [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    assert np.array_equal(cumulative_lengths(cu_seqlens=sums, max_length=8), sums)


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (8, "tile_shape is 8; it must be one integer per dimension"),
        ((8, 1, "64"), r"tile_shape\[2\] is '64'; it must be a positive integer"),
        ((8, 64), r"tile_shape is \(8, 64\); the array has 3 dimensions"),
    ],
)
def test_sides_that_are_no_integers_per_dimension_are_refused(sides: Any, said: str) -> None:
    with pytest.raises(TensorMapError, match=said):
        create_ragged_tensor_map(PACKED, sides, max_length=64)


@pytest.mark.parametrize("sides", [((8, 64),), ("8",), (8, 64.5), (None,)])
def test_rows_and_columns_of_a_head_are_two_numbers(sides: Any) -> None:
    with pytest.raises(TensorMapError, match=r"must be a positive integer. Pass the sides as two"):
        create_ragged_tma_3d_tile(PACKED, *sides, max_length=64)
