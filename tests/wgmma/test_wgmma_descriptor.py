"""Matrix descriptors, against the PTX ISA written out by hand and against where TMA puts a tile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync._elements import element
from tmaasync.errors import ArgumentError
from tmaasync.modes import Swizzle
from tmaasync.swizzle import shared_offset, tile_offset
from tmaasync.wgmma import (
    MatrixDescriptor,
    SwizzleMode,
    WGMMADescriptorParams,
    compute_a_descriptor_params,
    compute_b_descriptor_params,
    increase_descriptor_offset,
    instruction_n,
    mma_form,
)

SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
sixteenths = st.integers(0, 2**14 - 1)

# --- the 64 bits ----------------------------------------------------------------------------------


@given(address=sixteenths, leading=sixteenths, stride=sixteenths)
def test_every_field_lands_in_its_own_bits(address: int, leading: int, stride: int) -> None:
    descriptor = MatrixDescriptor(
        address=16 * address,
        leading_bytes=16 * leading,
        stride_bytes=16 * stride,
        swizzle=Swizzle.B128,
    )

    bits = f"{descriptor.encode():064b}"[::-1]

    assert int(bits[0:14][::-1], 2) == address
    assert int(bits[16:30][::-1], 2) == leading
    assert int(bits[32:46][::-1], 2) == stride
    assert bits[62:64] == "10"


@pytest.mark.parametrize(
    ("swizzle", "layout"),
    [(Swizzle.NONE, 0), (Swizzle.B128, 1), (Swizzle.B64, 2), (Swizzle.B32, 3)],
)
def test_wgmma_numbers_swizzles_from_the_widest(swizzle: Swizzle, layout: int) -> None:
    descriptor = MatrixDescriptor(address=0, leading_bytes=0, stride_bytes=0, swizzle=swizzle)

    assert descriptor.encode() >> 62 == layout


@pytest.mark.parametrize("field", ["address", "leading_bytes", "stride_bytes"])
@pytest.mark.parametrize("value", [8, -16, 16 << 14])
def test_a_field_that_does_not_fit_is_named(field: str, value: int) -> None:
    fields = {"address": 0, "leading_bytes": 16, "stride_bytes": 1024} | {field: value}

    with pytest.raises(ArgumentError, match=f"{field} is {value}; .* multiple of 16"):
        MatrixDescriptor(**fields, swizzle=Swizzle.B128).encode()


def test_a_swizzle_of_sm_100_is_refused_by_name() -> None:
    descriptor = MatrixDescriptor(
        address=0, leading_bytes=0, stride_bytes=0, swizzle=Swizzle.B128_ATOM_32B
    )

    with pytest.raises(ArgumentError, match=r"B128_ATOM_32B; it exists on sm_100"):
        descriptor.encode()


@given(address=sixteenths, offset=sixteenths)
def test_an_offset_moves_the_address_and_nothing_else(address: int, offset: int) -> None:
    fields: Any = {"leading_bytes": 16, "stride_bytes": 512, "swizzle": Swizzle.B64}
    whole = MatrixDescriptor(address=16 * address, **fields).encode()

    if address + offset >= 1 << 14:
        with pytest.raises(ArgumentError, match=r"multiple of 16 in \[0, 262144\)"):
            increase_descriptor_offset(whole, 16 * offset)
    else:
        moved = MatrixDescriptor(address=16 * (address + offset), **fields).encode()
        assert increase_descriptor_offset(whole, 16 * offset) == moved


def test_the_two_numberings_of_a_swizzle_are_each_other_back() -> None:
    for swizzle in SWIZZLES:
        mode = SwizzleMode.from_swizzle(swizzle)
        assert mode.name == swizzle.name
        assert mode.swizzle is swizzle
        assert mode.swizzle_byte_size == (swizzle.span_bytes if swizzle else 1)
        assert mode.swizzle_atom_size == swizzle.span_bytes // 16
    assert [mode.value for mode in SwizzleMode] == [0, 1, 2, 3]


# --- operands -------------------------------------------------------------------------------------

BASE = 3 * 1024


def hardware_addresses(
    descriptor: int, extent: int, depth: int, itemsize: int, *, is_k_major: bool
) -> npt.NDArray[np.int64]:
    """Where the instruction finds element (mn, k): the canonical layouts, then the XOR."""
    start, leading, stride = (16 * (descriptor >> bit & 0x3FFF) for bit in (0, 16, 32))
    span = {0: 16, 1: 128, 2: 64, 3: 32}[descriptor >> 62]
    mn, k = np.arange(extent)[:, None], np.arange(depth)[None, :]
    swizzle = {16: Swizzle.NONE, 32: Swizzle.B32, 64: Swizzle.B64, 128: Swizzle.B128}[span]
    if is_k_major:
        along = k * itemsize
        if span == 16:  # core matrices of 8 rows of 16 bytes
            place = mn % 8 * 16 + mn // 8 * stride + along // 16 * leading + along % 16
        else:
            place = mn // 8 * stride + mn % 8 * span + along
    elif span == 16:
        place = mn % 8 * 2 + mn // 8 * stride + k % 8 * 16 + k // 8 * leading
    else:
        width = span // 2
        place = mn // width * leading + mn % width * 2 + k % 8 * span + k // 8 * stride
    return shared_offset(start + place, swizzle)


def tma_addresses(
    shape: tuple[int, int], itemsize: int, swizzle: Swizzle, *, is_k_major: bool
) -> npt.NDArray[np.int64]:
    """Where a load puts element (mn, k) of a matrix, in boxes one span wide."""
    rows, columns = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    box = (shape[0], swizzle.span_bytes // itemsize)
    places = BASE + tile_offset((rows, columns), shape, box, itemsize, swizzle)
    return places if is_k_major else places.T


def assert_descriptors_find(
    params: WGMMADescriptorParams,
    wanted: npt.NDArray[np.int64],
    extent: int,
    parts: tuple[slice, slice],
) -> int:
    """Every instruction of a slice of an operand; returns how many there are."""
    part = wanted[parts]
    deep = 32 // params.elems_in_bytes
    count = 0
    for first in range(0, part.shape[0], extent):
        for step in range(part.shape[1] // deep):
            found = hardware_addresses(
                params.descriptor(BASE, step, first).encode(),
                extent,
                deep,
                params.elems_in_bytes,
                is_k_major=params.is_k_major,
            )
            there = part[first : first + extent, step * deep : (step + 1) * deep]
            assert np.array_equal(found, there)
            count += 1
    return count


def slices(whole: int, starts: tuple[int, ...], multiple: int) -> Iterator[slice]:
    for start in starts:
        count = (whole - start) // multiple * multiple
        if count > 0:
            yield slice(start, start + count)


@pytest.mark.parametrize("swizzle", SWIZZLES, ids=str)
@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "tfloat32"])
def test_descriptors_of_k_major_operands_find_what_tma_loaded(dtype: str, swizzle: Swizzle) -> None:
    itemsize = element(dtype).itemsize
    deep = 32 // itemsize
    panel = max(swizzle.span_bytes, 32) // itemsize
    count = 0
    for rows, panels in itertools.product((64, 136, 192), (1, 2, 3)):
        shape = (rows, panels * panel)
        wanted = tma_addresses(shape, itemsize, swizzle, is_k_major=True)
        for k in slices(shape[1], (0, deep, 3 * deep), deep):
            for m in slices(rows, (0, 8, 72), 64):
                a = compute_a_descriptor_params(shape, dtype, swizzle=swizzle, m=m, k=k)
                count += assert_descriptors_find(a, wanted, 64, (m, k))
            for n in slices(rows, (0, 56), 8):
                b = compute_b_descriptor_params(shape, dtype, swizzle=swizzle, n=n, k=k)
                width = instruction_n(n.stop - n.start, mma_form(dtype))
                count += assert_descriptors_find(b, wanted, width, (n, k))
    assert count > 80


@pytest.mark.parametrize("swizzle", SWIZZLES, ids=str)
def test_descriptors_of_mn_major_operands_find_what_tma_loaded(swizzle: Swizzle) -> None:
    panel = swizzle.span_bytes // 2
    count = 0
    for rows, panels in itertools.product((16, 48, 80), (4, 8, 12, 16)):
        columns = panels * panel
        shape = (rows, columns)
        wanted = tma_addresses(shape, 2, swizzle, is_k_major=False)
        options: Any = {"swizzle": swizzle, "is_k_major": False}
        for k in slices(rows, (0, 32), 16):
            for m in slices(columns, (0, panel), 64):
                a = compute_a_descriptor_params(shape, "float16", m=m, k=k, **options)
                count += assert_descriptors_find(a, wanted, 64, (m, k))
            for width in (8, 16, 24, 32, 64, 72, 128, 256):
                for start in range(0, columns - width + 1, 8):
                    if start % panel and start % panel + width > panel:
                        continue
                    n = slice(start, start + width)
                    b = compute_b_descriptor_params(
                        shape, "float16", n=n, k=k, columns=width, **options
                    )
                    count += assert_descriptors_find(b, wanted, width, (n, k))
    assert count > 500


def test_what_a_slice_says_of_itself() -> None:
    params = compute_b_descriptor_params(
        (256, 128), "float16", swizzle=Swizzle.B128, n=slice(64, 192), k=slice(32, 128)
    )

    assert params == WGMMADescriptorParams(
        swizzle_mode=SwizzleMode.B128,
        leading_byte_offset=16,
        stride_byte_offset=1024,
        swizzle_atom_elems=64,
        k_atom_size=4,
        elems_in_bytes=2,
        is_k_major=True,
        panel_bytes=256 * 128,
        slice_start=(64, 32),
    )
    assert params.slice_byte_offset == 64 * 128 + 2 * 32
    # Two steps on the slice leaves the panel of 256 rows, not one of the slice's 128.
    assert params.start_bytes(step=2) == 64 * 128 + 256 * 128


A_AT_FAULT: list[tuple[tuple[int, ...], str, dict[str, Any], str]] = [
    ((128, 64), "int8", {"is_k_major": False}, r"only 16-bit operands .* transpose it"),
    ((128, 64), "tf32", {"is_k_major": False}, r"tfloat32 has 32 bits"),
    (
        (128, 48),
        "bfloat16",
        {},
        r"shape\[1\] is 48; .* panels of 64 .* Pad it to 64, or use a narr",
    ),
    ((100, 64), "bfloat16", {}, r"shape\[0\] is 100; .* groups of 8. Pad it to 104"),
    ((128, 64), "bfloat16", {"m": slice(4, 68)}, r"m.start is 4; .* unaligned .* Start at 0, or"),
    ((128, 64), "bfloat16", {"m": slice(0, 40)}, r"m is 0 to 40, 40 of 128; .* Take 64"),
    ((128, 64), "bfloat16", {"m": slice(64, 192)}, r"m is slice\(64, 192, None\); .* <= 128"),
    ((128, 64), "bfloat16", {"m": slice(0, 128, 2)}, r"contiguous part"),
    ((128, 64), "bfloat16", {"k": slice(8, 24)}, r"k.start is 8; .* multiple of 16"),
    ((128, 64), "bfloat16", {"k": slice(0, 24)}, r"k is 0 to 24, 24 of 64; .* Take 32"),
    ((64, 128), "bfloat16", {"is_k_major": False, "m": slice(8, 72)}, r"leaves it. Start at a mul"),
    ((128, 64), "float64", {}, r"dtype is float64; wgmma multiplies"),
    ((128,), "bfloat16", {}, r"shape is \(128,\); an operand has two sides"),
]


@pytest.mark.parametrize(("shape", "dtype", "options", "said"), A_AT_FAULT)
def test_an_operand_that_cannot_be_described_is_refused(
    shape: tuple[int, ...], dtype: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        compute_a_descriptor_params(shape, dtype, swizzle=Swizzle.B128, **options)


@pytest.mark.parametrize(
    ("dtype", "options", "said"),
    [
        ("bfloat16", {"n": slice(0, 60)}, r"n is 0 to 60, 60 of 128; .* Take 64"),
        ("bfloat16", {"columns": 48}, r"columns is 48; .* cover the 128 columns"),
        ("bfloat16", {"columns": 12}, r"columns is 12; one instruction .* Use 8 or 16"),
        ("int8", {"n": slice(0, 40), "columns": 40}, r"columns is 40; .* Use 32 or 48"),
    ],
)
def test_columns_that_cannot_be_described_are_refused(
    dtype: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        compute_b_descriptor_params((128, 128), dtype, swizzle=Swizzle.B128, **options)


def test_a_swizzle_starts_where_its_pattern_does() -> None:
    params = compute_a_descriptor_params((64, 64), "bfloat16", swizzle=Swizzle.B128)

    with pytest.raises(ArgumentError, match=r"address is 512; .* multiple of 1024"):
        params.descriptor(512)


def test_all_that_is_wrong_with_an_operand_is_said_at_once() -> None:
    with pytest.raises(ArgumentError) as caught:
        compute_a_descriptor_params((100, 72), "int8", swizzle=Swizzle.B64, is_k_major=False)

    assert len(str(caught.value).splitlines()) == 5


@pytest.mark.parametrize("shape", [64, (64,), ("64", 64), (0, 64), None])
def test_a_shape_that_is_no_two_sides_is_refused(shape: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^shape is .*; an operand has two sides"):
        compute_a_descriptor_params(shape, "float16", swizzle="128B")


def test_a_swizzle_that_is_no_mode_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(ArgumentError, match=r"^swizzle is 3; it must be a member of Swizzle"):
        compute_a_descriptor_params((64, 64), "float16", swizzle=wrong)
