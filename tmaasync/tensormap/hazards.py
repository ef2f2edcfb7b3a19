"""Hazards of maps that the driver accepts, and rules about the coordinates of copies.

Sources: measured on an H200 (docs/hardware.md), cuda.h where it states what the driver lets pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tmaasync._hardware import (
    INT32_LIMIT,
    MAX_BOX_SIDE,
    MAX_SHARED_BYTES,
    STORE_SECTOR_BYTES,
    TMA_ALIGNMENT,
)
from tmaasync.errors import Violation
from tmaasync.modes import Interleave, Swizzle
from tmaasync.tensormap import form, rules
from tmaasync.tensormap.fields import MapFields, normalised


def hazards(spec: MapFields) -> tuple[Violation, ...]:
    """Return every hazard of a legal spec."""
    if rules.violations(spec) or spec.dtype.needs_sm_100:
        return ()
    return tuple(found for hazard in _HAZARDS for found in hazard(spec))


def _store_sectors(spec: MapFields) -> Iterator[Violation]:
    """Measured: a uint8 map of 466 columns and pitch 480 wrote bytes 464 to 479 of each row."""
    spill = -spec.shape[-1] * spec.dtype.itemsize % STORE_SECTOR_BYTES
    if spill and spec.interleave is Interleave.NONE:
        yield Violation(
            f"shape[{spec.rank - 1}]",
            spec.shape[-1],
            f"a store writes whole sectors of {STORE_SECTOR_BYTES} bytes, and so {spill} bytes "
            "beyond each row",
            "Only load through this map, or leave that padding to it",
        )


def _ignored_stride(spec: MapFields) -> Iterator[Violation]:
    """Measured: box 8 x 4 with stride 2 wrote all 32 floats. cuda.h: ignored without interleave."""
    if spec.element_strides[-1] != 1 and spec.interleave is Interleave.NONE:
        yield Violation(
            f"element_strides[{spec.rank - 1}]",
            spec.element_strides[-1],
            "the hardware ignores the innermost element stride, while the driver divides the "
            "box by it: byte counts would disagree",
            "Pass 1 there and pick the elements in the kernel",
        )


def _overflowing_extent(spec: MapFields) -> Iterator[Violation]:
    """Measured: with an upper corner below zero the driver's 32-bit sum wraps, and it accepts."""
    if not form.is_im2col(spec):
        return
    for dim in spec.spatial_dims:
        if spec.shape[dim] >= INT32_LIMIT:
            yield Violation(
                f"shape[{dim}]",
                spec.shape[dim],
                "the driver counts spatial extents in signed 32 bits",
                "Split the tensor into several maps of less than 2**31 pixels a side",
            )


def _uneven_stride(spec: MapFields) -> Iterator[Violation]:
    """cuda.h: N elements need a side of N * stride. Measured: the driver encodes them floored."""
    if form.is_im2col(spec):
        return
    for dim, stride in enumerate(spec.element_strides[:-1]):
        side = spec.sides[dim].value
        if side % stride:
            count = -(-side // stride)
            fitting = count * stride if count * stride <= MAX_BOX_SIDE else side - side % stride
            yield Violation(
                f"box_shape[{dim}]",
                side,
                f"with element stride {stride} the hardware takes {count} elements, the driver "
                f"encodes {side // stride}",
                f"Use {fitting}, a multiple of the stride",
            )


def _too_large_for_a_block(spec: MapFields) -> Iterator[Violation]:
    if spec.box_bytes > MAX_SHARED_BYTES:
        yield Violation(
            "box_bytes",
            spec.box_bytes,
            f"a block has at most {MAX_SHARED_BYTES} bytes of shared memory",
            "Use a smaller box",
        )


def _interleave_swizzle(spec: MapFields) -> Iterator[Violation]:
    """cuda.h demands it; driver 580.159 does not look (measured)."""
    if spec.interleave is Interleave.B32 and spec.swizzle is not Swizzle.B32:
        rule = "cuda.h requires Swizzle.B32 with Interleave.B32, and the driver does not check it"
        yield Violation("swizzle", spec.swizzle, rule, "Use Swizzle.B32")


def _narrow_rows(spec: MapFields) -> Iterator[Violation]:
    """Measured: the box's rows lie a whole span apart, and only their own bytes are credited."""
    argument, value, _ = spec.sides[-1]
    inner_bytes, span = value * spec.dtype.itemsize, spec.swizzle.span_bytes
    if (
        spec.interleave is Interleave.NONE
        and inner_bytes < span
        and spec.swizzle is not Swizzle.NONE
    ):
        yield Violation(
            argument,
            value,
            f"it takes {inner_bytes} bytes, less than the {span} of {spec.swizzle}: rows lie "
            f"{span} bytes apart in shared memory all the same, so the box spans more than "
            "`box_bytes` there",
            f"Use {span // spec.dtype.itemsize} elements, or the swizzle of that width",
        )


def _overlapping_rows(spec: MapFields) -> Iterator[Violation]:
    row_bytes = spec.shape[-1] * spec.dtype.itemsize
    is_short = spec.strides_bytes and spec.strides_bytes[-1] < row_bytes and spec.shape[-2] > 1
    if is_short and spec.interleave is Interleave.NONE:
        yield Violation(
            f"strides_bytes[{spec.rank - 2}]",
            spec.strides_bytes[-1],
            f"rows of {row_bytes} bytes overlap, so that stores write the same bytes twice",
            f"Only load through this map; if the stride was counted in elements, pass bytes: "
            f"{spec.strides_bytes[-1] * spec.dtype.itemsize}",
        )


_HAZARDS: tuple[Callable[[MapFields], Iterator[Violation]], ...] = (
    _store_sectors,
    _ignored_stride,
    _overflowing_extent,
    _uneven_stride,
    _too_large_for_a_block,
    _interleave_swizzle,
    _narrow_rows,
    _overlapping_rows,
)


# --- known only at use ------------------------------------------------------------------------


def coordinate_violations(
    spec: MapFields, coordinates: Sequence[int], *, store: bool
) -> tuple[Violation, ...]:
    """Return what kills the kernel (CUDA_ERROR_ILLEGAL_INSTRUCTION) when a copy starts there."""
    broken = rules.violations(spec)
    if broken:
        return broken
    places = normalised(coordinates)
    if not isinstance(places, tuple) or len(places) != spec.rank:
        rule = f"the map has {spec.rank} dimensions and needs a coordinate for each"
        remedy = f"Pass {spec.rank} numbers, outermost first"
        return (Violation("coordinates", repr(places), rule, remedy),)
    found = tuple(
        one
        for dim, place in enumerate(places)
        for one in form.not_an_integer(f"coordinates[{dim}]", place)
    )
    return found or (*_out_of_range(places, store=store), *_unaligned(spec, places[-1]))


def _out_of_range(places: tuple[int, ...], *, store: bool) -> Iterator[Violation]:
    for dim, place in enumerate(places):
        if store and place < 0:
            yield Violation(
                f"coordinates[{dim}]",
                place,
                "a store must not start at a negative coordinate (measured)",
                "Start at 0 or more; a store past the end is clipped",
            )
        if not -INT32_LIMIT <= place < INT32_LIMIT:
            rule, remedy = "it is a signed number of 32 bits", "Move the map's address instead"
            yield Violation(f"coordinates[{dim}]", place, rule, remedy)


def _unaligned(spec: MapFields, place: int) -> Iterator[Violation]:
    """Measured for tiled maps without interleave; for the others it is not established."""
    is_measured = not form.is_im2col(spec) and spec.interleave is Interleave.NONE
    step = 128 if spec.dtype.has_gaps else TMA_ALIGNMENT * 8 // spec.dtype.bits
    if is_measured and place % step:
        yield Violation(
            f"coordinates[{spec.rank - 1}]",
            place,
            f"the innermost coordinate must be a multiple of {TMA_ALIGNMENT} bytes (measured)",
            f"Use a multiple of {step} elements, such as {place - place % step}",
        )
