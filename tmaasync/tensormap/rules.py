"""The rules that the driver enforces, each with its remedy.

They decide as driver 580.159 (CUDA 13.0) on an H200 decided: 40,000 tiled and 20,000 im2col specs,
legal and illegal, without one exception. A rule marked "measured" is not in cuda.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from tmaasync._hardware import (
    INT32_LIMIT,
    INTERLEAVED_ALIGNMENT,
    MAX_BOX_SIDE,
    MAX_IM2COL_PIXELS,
    MAX_SHARED_BYTES,
    TMA_ALIGNMENT,
    WIDE_MAP_ARCHS,
    WIDE_PIXELS,
)
from tmaasync.errors import Violation
from tmaasync.modes import DataType, Interleave, OOBFill, Swizzle
from tmaasync.tensormap import packed
from tmaasync.tensormap.fields import Im2colFields, MapFields
from tmaasync.tensormap.form import is_im2col, is_integer, malformed, rank_of

MAX_ELEMENT_STRIDE = 8
MAX_EXTENT = 1 << 32
STRIDE_LIMIT = 1 << 40
CORNER_BITS = {3: 16, 4: 8, 5: 5}
"""Bits of one signed corner, by rank."""

ENCODED_BYTES_LIMIT = 228 * 1024
"""The driver compares a box with the whole SM's shared memory (measured)."""

_ADDRESS_LIMIT = 1 << 64


def violations(spec: MapFields) -> tuple[Violation, ...]:
    """Return every broken rule. Rules that join arguments wait until each is well formed."""
    wrong_form = [*malformed(spec)]
    applied = _RULES_OF_ONE_ARGUMENT if wrong_form else _RULES_OF_ONE_ARGUMENT + _RULES_THAT_JOIN
    return (*wrong_form, *(found for rule in applied for found in rule(spec)))


# --- values derived from several arguments ----------------------------------------------------


def granule_bytes(spec: MapFields) -> int:
    """Return the alignment of addresses and strides in bytes."""
    is_coarse = spec.interleave is Interleave.B32 or _has_gaps(spec)
    return INTERLEAVED_ALIGNMENT if is_coarse else TMA_ALIGNMENT


def _has_gaps(spec: MapFields) -> bool:
    dtype: object = spec.dtype
    return spec.has_wide_maps and isinstance(dtype, DataType) and dtype.has_gaps


def corner_bits(spec: Im2colFields) -> int:
    """Return the bits of one signed corner; in a wide mode there is the width's alone."""
    return CORNER_BITS[3 if spec.wide else spec.rank]


def encoded_bytes(spec: MapFields) -> int:
    """Return the bytes of a box as the driver encodes them: sides divided *downwards*.

    The hardware rounds up (cuda.h) and ignores the innermost element stride; `box_bytes` counts
    what it moves. The two agree when every side is a multiple of its element stride.
    """
    elements = math.prod(side.value for side in spec.sides)
    if not is_im2col(spec):
        pairs = zip(spec.sides, spec.element_strides, strict=True)
        elements = math.prod(side.value // stride for side, stride in pairs)
    return elements * (8 if spec.dtype.has_gaps else spec.dtype.bits) // 8


def bounding_box(spec: Im2colFields) -> Iterator[tuple[int, int, int]]:
    """Per spatial dimension: its index among them, its index in the shape, pixels between corners.

    The driver adds extent and upper corner in signed 32 bits (measured), so extents of 2**31 and
    more turn negative, and with an upper corner below zero positive again.
    """
    for index, dim in enumerate(spec.spatial_dims):
        end = spec.shape[dim] + spec.upper_corner[index]
        wrapped = (end + INT32_LIMIT) % (2 * INT32_LIMIT) - INT32_LIMIT
        yield index, dim, wrapped - spec.lower_corner[index]


# --- rules of one argument --------------------------------------------------------------------


def _integers(spec: MapFields, argument: str) -> Iterator[tuple[str, int]]:
    """Yield the well-formed numbers of an argument, each with its name."""
    values: Any = getattr(spec, argument, None)
    if is_integer(values):
        yield argument, values
    if isinstance(values, tuple):
        for index, value in enumerate(values):
            if is_integer(value):
                yield f"{argument}[{index}]", value


def _outside(argument: str, value: int, low: int, high: int, remedy: str) -> Iterator[Violation]:
    if not low <= value <= high:
        yield Violation(argument, value, f"it must be {low} to {_power(high)}", remedy)


def _power(value: int) -> str:
    return f"2**{value.bit_length() - 1}" if value >= 1 << 16 else str(value)


def _rank(spec: MapFields) -> Iterator[Violation]:
    if rank_of(spec) is None or spec.rank in spec.RANKS:
        return
    kind = "an im2col map" if is_im2col(spec) else "a tensor map"
    few, many = spec.RANKS[0], spec.RANKS[-1]
    remedy = (
        "Fold dimensions that are contiguous with each other, or make one map per outer index"
        if spec.rank > many
        else f"Add leading dimensions of extent 1 to reach {few}"
    )
    yield Violation("shape", spec.shape, f"{kind} has {few} to {many} dimensions", remedy)


def _address(spec: MapFields) -> Iterator[Violation]:
    granule = granule_bytes(spec)
    for argument, value in _integers(spec, "address"):
        if not 0 <= value < _ADDRESS_LIMIT:
            rule = "it must be an address of 64 bits"
            yield Violation(argument, hex(value), rule, "Pass the array's device pointer")
        elif value % granule:
            yield Violation(
                argument,
                hex(value),
                f"it must be a multiple of {granule}{_because(spec)}",
                f"Copy the data to an aligned buffer, or start {value % granule} bytes earlier, at "
                f"{hex(value - value % granule)}, and skip what then leads each row",
            )


def _because(spec: MapFields) -> str:
    if _has_gaps(spec):
        return f" for {spec.dtype}"
    return " under Interleave.B32" if spec.interleave is Interleave.B32 else ""


def _shape(spec: MapFields) -> Iterator[Violation]:
    for argument, value in _integers(spec, "shape"):
        remedy = (
            "An empty tensor has nothing to copy: skip the launch"
            if value < 1
            else "Split the tensor into several maps"
        )
        yield from _outside(argument, value, 1, MAX_EXTENT, remedy)


def _strides(spec: MapFields) -> Iterator[Violation]:
    granule = granule_bytes(spec)
    for argument, value in _integers(spec, "strides_bytes"):
        if not 0 <= value < STRIDE_LIMIT:
            remedy = (
                "Reverse that dimension in the array, or copy it"
                if value < 0
                else "Make one map per index of that dimension"
            )
            yield Violation(argument, value, "it must be 0 or more and below 2**40", remedy)
        if value % granule:
            padded = -(-value // granule) * granule
            rule = f"it must be a multiple of {granule} bytes{_because(spec)}"
            remedy = f"Pad that dimension to {padded} bytes"
            yield Violation(argument, value, rule, remedy)


def _element_strides(spec: MapFields) -> Iterator[Violation]:
    remedy = "Pass 1, or multiply that dimension's strides_bytes instead"
    for argument, value in _integers(spec, "element_strides"):
        yield from _outside(argument, value, 1, MAX_ELEMENT_STRIDE, remedy)


def _box(spec: MapFields) -> Iterator[Violation]:
    limits = {"box_shape": MAX_BOX_SIDE}
    if is_im2col(spec):
        limits = {"pixels_per_column": MAX_IM2COL_PIXELS, "channels_per_pixel": MAX_BOX_SIDE}
    for name, limit in limits.items():
        for argument, value in _integers(spec, name):
            parts = -(-value // limit)
            remedy = "Pass 1 or more"
            if value > limit:
                remedy = f"Split it into {parts} boxes of {-(-value // parts)}"
            yield from _outside(argument, value, 1, limit, remedy)
    if is_im2col(spec) and spec.wide == "w128" and spec.pixels_per_column != WIDE_PIXELS["w128"]:
        rule = "mode w128 takes 128 pixels"
        yield Violation("pixels_per_column", spec.pixels_per_column, rule, "Use 128")


def _corners(spec: MapFields) -> Iterator[Violation]:
    if not is_im2col(spec) or rank_of(spec) not in CORNER_BITS:
        return
    reach = 1 << corner_bits(spec) - 1
    for name in ("lower_corner", "upper_corner"):
        for argument, value in _integers(spec, name):
            if not -reach <= value < reach:
                yield Violation(
                    argument,
                    value,
                    f"at rank {spec.rank} it must be {-reach} to {reach - 1}",
                    "Use a smaller padding or filter, or move the difference into the coordinates",
                )
            elif spec.wide and value and argument != f"{name}[{spec.rank - 3}]":
                rule = f"a wide map of mode {spec.wide} has corners of the width alone"
                yield Violation(argument, value, rule, "Use 0, and move the coordinates")


def _sm_100_modes(spec: MapFields) -> Iterator[Violation]:
    if spec.has_wide_maps:
        return
    for argument, remedy in (
        ("dtype", "Unpack the elements, or move them as DataType.UINT8"),
        ("swizzle", "Use Swizzle.B128"),
        ("wide", "Leave it out"),
    ):
        value = getattr(spec, argument, "")
        is_newer = isinstance(value, str) and value in WIDE_PIXELS
        if isinstance(value, (DataType, Swizzle)):
            is_newer = value.needs_sm_100
        if is_newer:
            rule = f"it exists on {' and '.join(WIDE_MAP_ARCHS)}; this is {spec.arch}"
            yield Violation(argument, value, rule, f'{remedy}, or pass arch="sm_100a"')


_RULES_OF_ONE_ARGUMENT: tuple[Callable[[Any], Iterator[Violation]], ...] = (
    _rank,
    _address,
    _shape,
    _strides,
    _box,
    _corners,
    _element_strides,
    _sm_100_modes,
)


# --- rules that join arguments ----------------------------------------------------------------


def _interleave_rank(spec: MapFields) -> Iterator[Violation]:
    if spec.interleave is not Interleave.NONE and spec.rank in (1, 2):
        yield Violation(
            "interleave",
            spec.interleave,
            f"it needs 3 to 5 dimensions and the shape has {spec.rank}",
            "Use Interleave.NONE",
        )


def _oob_fill(spec: MapFields) -> Iterator[Violation]:
    is_refused = spec.dtype.needs_sm_100 and not spec.has_wide_maps
    if spec.oob_fill is OOBFill.NAN and not spec.dtype.is_float and not is_refused:
        rule = f"only floating-point types have a NaN, and dtype is {spec.dtype}"
        yield Violation("oob_fill", spec.oob_fill, rule, "Use OOBFill.ZERO")


def _inner_side(spec: MapFields) -> Iterator[Violation]:
    if not spec.sides or spec.dtype.needs_sm_100:
        return
    argument, value, _ = spec.sides[-1]
    itemsize = spec.dtype.itemsize
    inner_bytes = value * itemsize
    if inner_bytes % TMA_ALIGNMENT:
        step = TMA_ALIGNMENT // itemsize
        rule = (
            f"the innermost side takes {inner_bytes} bytes, which must be a multiple of "
            f"{TMA_ALIGNMENT}"
        )
        remedy = f"Use a multiple of {step} elements, such as {-(-value // step) * step}"
        yield Violation(argument, value, rule, remedy)
    # The span does not limit an interleaved box (measured, and so cuda.h).
    is_known = spec.has_wide_maps or not spec.swizzle.needs_sm_100
    is_swizzled = spec.swizzle is not Swizzle.NONE and is_known
    span = spec.swizzle.span_bytes
    if is_swizzled and spec.interleave is Interleave.NONE and inner_bytes > span:
        rule = f"the innermost side takes {inner_bytes} bytes, above the {span} of {spec.swizzle}"
        wider = "" if spec.swizzle >= Swizzle.B128 else ", or a wider swizzle"
        remedy = f"Use {span // itemsize} elements and several boxes{wider}"
        yield Violation(argument, value, rule, remedy)


def _shared_memory(spec: MapFields) -> Iterator[Violation]:
    sides = spec.sides
    is_legal = all(1 <= side.value <= side.limit for side in sides) and all(
        1 <= stride <= MAX_ELEMENT_STRIDE for stride in spec.element_strides
    )
    if not is_legal or (spec.dtype.needs_sm_100 and not spec.has_wide_maps):
        return  # another rule names the side that is wrong
    size = encoded_bytes(spec)
    if size > ENCODED_BYTES_LIMIT:
        arguments = sides if is_im2col(spec) else sides[:1]
        yield Violation(
            " x ".join(side.argument.partition("[")[0] for side in arguments),
            tuple(side.value for side in sides),
            f"it takes {size} bytes of shared memory, and there are {ENCODED_BYTES_LIMIT} "
            f"({MAX_SHARED_BYTES} in one block)",
            "Halve the longest side and use several boxes",
        )


def _bounding_box(spec: MapFields) -> Iterator[Violation]:
    if not is_im2col(spec) or spec.rank not in CORNER_BITS:
        return
    for index, dim, pixels in bounding_box(spec):
        extent = spec.shape[dim]
        if pixels > 0 or not 1 <= extent <= MAX_EXTENT:
            continue
        if extent >= INT32_LIMIT:
            rule = "the driver counts spatial extents in signed 32 bits"
            remedy = "Split the tensor into several maps of less than 2**31 pixels a side"
            yield Violation(f"shape[{dim}]", extent, rule, remedy)
        else:
            lower, upper = spec.lower_corner[index], spec.upper_corner[index]
            rule = (
                f"with lower_corner[{index}] {lower} and shape[{dim}] {extent} it leaves {pixels} "
                "pixels in the bounding box, which needs at least 1"
            )
            remedy = f"Use {lower - extent + 1} or more"
            yield Violation(f"upper_corner[{index}]", upper, rule, remedy)


_RULES_THAT_JOIN: tuple[Callable[[Any], Iterator[Violation]], ...] = (
    _interleave_rank,
    _oob_fill,
    _inner_side,
    _shared_memory,
    _bounding_box,
    packed.violations,
)
