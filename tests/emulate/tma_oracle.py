"""The effect of TMA, element by element, in Python's integers and fractions: slow and plain.

Written from the rules, not from the engine. ``memory`` is all of global memory, one byte per item,
and ``base`` is the address of its first byte. Dimensions run outermost first here, as in the
spec; coordinates too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from tmaasync.modes import DataType, Interleave, OOBFill, ReduceOp, Swizzle
from tmaasync.tensormap import Im2colSpec, TensorMapSpec

Bytes = npt.NDArray[np.uint8]
Place = tuple[int, ...]

TF32 = (DataType.TFLOAT32, DataType.TFLOAT32_FTZ)
FLOAT32 = (DataType.FLOAT32, DataType.FLOAT32_FTZ, *TF32)
# Bits of the fraction, and the least exponent of a normal number.
FORMS = {
    DataType.FLOAT16: (10, -14),
    DataType.BFLOAT16: (7, -126),
    **dict.fromkeys(FLOAT32, (23, -126)),
    DataType.FLOAT64: (52, -1022),
}
TF32_FORM = (10, -126)
QUIET_NAN = {2: 0x7FFF, 4: 0x7FFFFFFF}


# --- places -------------------------------------------------------------------------------------


def address_of(spec: TensorMapSpec | Im2colSpec, place: Place) -> int | None:
    """Return the address of an element in global memory; None out of bounds."""
    if not all(0 <= index < extent for index, extent in zip(place, spec.shape, strict=True)):
        return None
    strides = (*spec.strides_bytes, spec.dtype.itemsize)
    return spec.address + sum(index * step for index, step in zip(place, strides, strict=True))


def box_places(spec: TensorMapSpec, start: Sequence[int]) -> Iterator[Place]:
    """Yield the elements of the box, in the order of shared memory."""
    strides = (*spec.element_strides[:-1], 1)  # the innermost is ignored
    sides = [
        range(first, first + side, stride)
        for first, side, stride in zip(start, spec.box_shape, strides, strict=True)
    ]
    return itertools.product(*sides)


def column_places(
    spec: Im2colSpec, start: Sequence[int], offsets: Sequence[int]
) -> Iterator[Place]:
    """Return the elements of an im2col column, from a list of all pixels of the bounding boxes.

    The start must be one of them.
    """
    batch, *first, channel = start
    sides = [
        range(lower, extent + upper, stride)
        for lower, extent, upper, stride in zip(
            spec.lower_corner,
            spec.shape[1:-1],
            spec.upper_corner,
            spec.element_strides[1:-1],
            strict=True,
        )
    ]
    images = itertools.count(batch, spec.element_strides[0])
    pixels = ((image, *pixel) for image in images for pixel in itertools.product(*sides))
    from_start = itertools.dropwhile(lambda pixel: pixel != (batch, *first), pixels)
    for image, *pixel in itertools.islice(from_start, spec.pixels_per_column):
        moved = [place + offset for place, offset in zip(pixel, offsets, strict=True)]
        for one in range(channel, channel + spec.channels_per_pixel):
            yield (image, *moved, one)


def in_shared(spec: TensorMapSpec | Im2colSpec, byte: int, shared_offset: int) -> int:
    """Return the offset of byte number ``byte`` of a box: unit u of line n is at u XOR n.

    Swizzled rows lie a whole span apart; rows of interleaved maps are taken to be dense.
    """
    pitch = row_bytes = spec.box_shape_moved[-1] * spec.dtype.itemsize
    row, place = divmod(byte, row_bytes)
    if spec.swizzle is not Swizzle.NONE and spec.interleave is Interleave.NONE:
        pitch = spec.swizzle.span_bytes
    line, rest = divmod(shared_offset + row * pitch + place, 128)
    unit, low = divmod(rest, 16)
    turn = line % (spec.swizzle.span_bytes // 16)
    return line * 128 + (unit ^ turn) * 16 + low


# --- numbers ------------------------------------------------------------------------------------


def nearest(value: Fraction, form: tuple[int, int]) -> float:
    """Return the nearest number of a binary format, ties to even; infinity beyond its range."""
    fraction_bits, least = form
    if value == 0:
        return 0.0
    exponent = max(_floor_log2(abs(value)), least)
    unit = Fraction(2) ** (exponent - fraction_bits)
    rounded = round(value / unit) * unit
    if abs(rounded) >= Fraction(2) ** (2 - least):  # 2**128 for an exponent of 8 bits
        return math.copysign(math.inf, value)
    return float(rounded)


def _floor_log2(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def number(bits: int, dtype: DataType) -> Any:
    """Return the number that an element's bits represent."""
    if dtype is DataType.BFLOAT16:
        return float(np.uint32(bits << 16).view(np.float32))
    if dtype in FORMS:
        unsigned = np.dtype(f"u{dtype.itemsize}")
        return float(np.array(bits, unsigned).view(f"f{dtype.itemsize}"))
    is_negative = dtype in (DataType.INT32, DataType.INT64) and bits >> 8 * dtype.itemsize - 1
    return bits - (1 << 8 * dtype.itemsize) if is_negative else bits


def bits_of(value: Any, dtype: DataType) -> int:
    """Return the bits of a number that the type can hold."""
    size = dtype.itemsize
    if dtype not in FORMS:
        return int(value) % (1 << 8 * size)
    if math.isnan(value) and size in QUIET_NAN:
        return QUIET_NAN[size]
    if dtype is DataType.BFLOAT16:
        return int(np.float32(value).view(np.uint32)) >> 16
    return int(np.array(value, f"f{size}").view(f"u{size}"))


def as_tf32(bits: int) -> int:
    """Return a word after a load through a TF32 map."""
    value = number(bits, DataType.FLOAT32)
    if math.isnan(value):
        return 0x7FFFE000
    if math.isinf(value):
        return bits
    value = _flushed(value)
    rounded = nearest(Fraction(value), TF32_FORM)
    return bits_of(math.copysign(rounded, value), DataType.FLOAT32)


def _flushed(value: float) -> float:
    return math.copysign(0.0, value) if abs(value) < 2.0**-126 else value


def reduced(op: ReduceOp, old_bits: int, given_bits: int, dtype: DataType) -> int:
    """Return the bits after a reduction."""
    if op in (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR):
        logic = {ReduceOp.AND: int.__and__, ReduceOp.OR: int.__or__, ReduceOp.XOR: int.__xor__}
        return int(logic[op](old_bits, given_bits))
    old, given = number(old_bits, dtype), number(given_bits, dtype)
    if op is ReduceOp.INC:
        return 0 if old >= given else int(old + 1)
    if op is ReduceOp.DEC:
        return int(given if old == 0 or old > given else old - 1)
    if op is ReduceOp.ADD:
        return bits_of(_sum(old, given, dtype), dtype)
    return bits_of(_extreme(op, old, given), dtype)


def _sum(old: Any, given: Any, dtype: DataType) -> Any:
    if dtype not in FORMS:
        return old + given
    if dtype in FLOAT32:
        old, given = _flushed(old), _flushed(given)
    if not (math.isfinite(old) and math.isfinite(given)) or old == -given:
        return old + given
    total = nearest(Fraction(old) + Fraction(given), FORMS[dtype])
    return _flushed(total) if dtype in FLOAT32 else total


def _extreme(op: ReduceOp, old: Any, given: Any) -> Any:
    numbers = [value for value in (old, given) if not math.isnan(value)]
    if not numbers:
        return math.nan
    pick = min if op is ReduceOp.MIN else max
    return pick(numbers, key=lambda value: (value, math.copysign(1, value)))


# --- instructions -------------------------------------------------------------------------------


def load(
    spec: TensorMapSpec | Im2colSpec,
    places: Iterator[Place],
    memory: Bytes,
    base: int,
    shared: Bytes,
    shared_offset: int,
) -> Bytes:
    """Return shared memory after a load of these elements."""
    after = shared.copy()
    size = spec.dtype.itemsize
    fill = b"\xf7\x7f" * 4 if spec.oob_fill is OOBFill.NAN else bytes(8)
    for count, place in enumerate(places):
        address = address_of(spec, place)
        element = fill[:size]
        if address is not None:
            element = memory[address - base : address - base + size].tobytes()
            if spec.dtype in TF32:
                element = as_tf32(int.from_bytes(element, "little")).to_bytes(4, "little")
        target = in_shared(spec, count * size, shared_offset)
        after[target : target + size] = np.frombuffer(element, np.uint8)
    return after


def store(
    spec: TensorMapSpec,
    start: Sequence[int],
    memory: Bytes,
    base: int,
    shared: Bytes,
    shared_offset: int,
    op: ReduceOp | None = None,
) -> Bytes:
    """Return global memory after a store or a reduction."""
    after = memory.copy()
    size = spec.dtype.itemsize
    for count, place in enumerate(box_places(spec, start)):
        # The 16-byte sector decides: an element beyond the row goes with the sector's first.
        per_sector = 16 // size
        address = address_of(spec, (*place[:-1], place[-1] - place[-1] % per_sector))
        if address is None:
            continue
        target = address - base + place[-1] % per_sector * size
        source = in_shared(spec, count * size, shared_offset)
        given = int.from_bytes(shared[source : source + size].tobytes(), "little")
        old = int.from_bytes(memory[target : target + size].tobytes(), "little")
        result = given if op is None else reduced(op, old, given, spec.dtype)
        after[target : target + size] = np.frombuffer(result.to_bytes(size, "little"), np.uint8)
    return after
