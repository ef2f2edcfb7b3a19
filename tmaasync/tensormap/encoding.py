"""The bits of a tensor map, as driver 580.159 (CUDA 13.0) writes them for an H200.

Found by comparing specs with what the driver made of them: 30,876 maps, tiled and im2col, every
bit. The 128 bytes are one little-endian number. Dimensions run innermost first. Extents, sides and
element strides are stored less one, byte strides in units of 16.

| bits | holds | bits | holds |
|---|---|---|---|
| 0-63 | address | 256-415 | extents, 32 bits each |
| 64 | 1 for im2col | 416-430 | element strides, 3 bits each |
| 68-70 | rank | 440-447 | innermost side, or channels per pixel |
| 71-74, 80 | element type; 80 marks TF32 | 448-479 | other sides, 8 bits each |
| 75-76 | interleave | 448-463 | im2col: lower corner |
| 77-78 | swizzle | 464-479 | im2col: upper corner |
| 79 | NaN fill | 480-489 | im2col: pixels per column |
| 81-82 | L2 promotion | 512-543 | bytes of the box |
| 96-223 | strides, lower 32 bits each | 576-607 | bytes after which the swizzle repeats |
| 224-239 | strides, upper 4 bits each | | |

A corner takes 16, 8 or 5 bits at rank 3, 4 or 5. All other bits are zero.

The bits of sm_100a are not published. Maps of its packed types, 13 to 15 at bits 71-74, and of its
swizzles, whose number above 128B is at bits 83-84, are for the emulator alone; so are maps of
wide im2col, which bits 65 and, for mode w128, 66 mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tmaasync._hardware import SWIZZLE_CHUNK_BYTES, TMA_ALIGNMENT, WIDE_MAP_ARCHS
from tmaasync.errors import TensorMapError
from tmaasync.modes import DataType, Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import form, rules
from tmaasync.tensormap.fields import Im2colFields, MapFields

TENSOR_MAP_BYTES = 128
_WORD_BYTES = 8
_STRIDE_LOW_BITS = 32


@dataclass(frozen=True, slots=True)
class _Run:
    """Equal fields, one after the other, of numbers stored less ``bias``."""

    bit: int
    width: int
    bias: int = 0

    def pack(self, *values: int) -> int:
        """Return the values at their bits."""
        mask = (1 << self.width) - 1
        return sum(
            ((value - self.bias) & mask) << (self.bit + index * self.width)
            for index, value in enumerate(values)
        )

    def unpack(self, bits: int, count: int = 1) -> tuple[int, ...]:
        """Return the values at these bits."""
        mask = (1 << self.width) - 1
        return tuple(
            ((bits >> (self.bit + index * self.width)) & mask) + self.bias for index in range(count)
        )


_ADDRESS = _Run(0, 64)
_IS_IM2COL = _Run(64, 1)
_WIDE = _Run(65, 2)
_RANK = _Run(68, 3, bias=1)
_TYPE = _Run(71, 4)
_INTERLEAVE = _Run(75, 2)
_SWIZZLE = _Run(77, 2)
_OOB_FILL = _Run(79, 1)
_IS_TF32 = _Run(80, 1)
_L2_PROMOTION = _Run(81, 2)
_SWIZZLE_ATOM = _Run(83, 2)
_STRIDES_LOW = _Run(96, 32)
_STRIDES_HIGH = _Run(224, 4)
_SHAPE = _Run(256, 32, bias=1)
_ELEMENT_STRIDES = _Run(416, 3, bias=1)
_INNER_SIDE = _Run(440, 8, bias=1)
_OUTER_SIDES = _Run(448, 8, bias=1)
_LOWER_CORNER_BIT, _UPPER_CORNER_BIT = 448, 464
_PIXELS = _Run(480, 10, bias=1)
_BOX_BYTES = _Run(512, 32)
_PATTERN_BYTES = _Run(576, 32)

_TYPE_CODE = {
    DataType.UINT8: (0, 0),
    DataType.UINT16: (1, 0),
    DataType.UINT32: (2, 0),
    DataType.INT32: (3, 0),
    DataType.UINT64: (4, 0),
    DataType.INT64: (5, 0),
    DataType.FLOAT16: (6, 0),
    DataType.FLOAT32: (7, 0),
    DataType.TFLOAT32: (7, 1),
    DataType.FLOAT32_FTZ: (8, 0),
    DataType.TFLOAT32_FTZ: (8, 1),
    DataType.FLOAT64: (9, 0),
    DataType.BFLOAT16: (10, 0),
    DataType.PACKED_16U4_ALIGN8B: (13, 0),
    DataType.PACKED_16U4_ALIGN16B: (14, 0),
    DataType.PACKED_16U6_ALIGN16B: (15, 0),
}
_WIDE_CODES = {"": 0, "w": 1, "w128": 3}
_TYPE_OF_CODE = {code: dtype for dtype, code in _TYPE_CODE.items()}


def encode(spec: MapFields) -> bytes:
    """Return the 128 bytes of a spec, which must be legal."""
    bits = _pack_common(spec) | (_pack_im2col(spec) if form.is_im2col(spec) else _pack_tiled(spec))
    return bits.to_bytes(TENSOR_MAP_BYTES, "little")


def encode_words(spec: MapFields) -> tuple[int, ...]:
    """Return the bytes as the 16 words of 64 bits that ``CUtensorMap.opaque`` holds."""
    return _words(encode(spec))


def decode(data: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether the bytes are an im2col map, and the arguments of their spec.

    Raises:
        TensorMapError: Wrong length, or a type or rank that sm_90 does not have.
    """
    bits = int.from_bytes(_as_bytes(data), "little")
    (rank,), (type_code,), (is_tf32,) = (run.unpack(bits) for run in (_RANK, _TYPE, _IS_TF32))
    (is_im2col,) = _IS_IM2COL.unpack(bits)
    known = rules.CORNER_BITS if is_im2col else range(1, 6)
    if rank not in known or (type_code, is_tf32) not in _TYPE_OF_CODE:
        raise _not_a_map(f"its rank is {rank}, its element type {type_code}")
    own = _unpack_im2col(bits, rank) if is_im2col else _unpack_tiled(bits, rank)
    try:
        common = _unpack_common(bits, rank)
    except ValueError as error:
        raise _not_a_map(str(error)) from None
    dtype = _TYPE_OF_CODE[type_code, is_tf32]
    if dtype.needs_sm_100 or common["swizzle"].needs_sm_100 or own.get("wide"):
        common["arch"] = WIDE_MAP_ARCHS[0]
    return bool(is_im2col), {**common, "dtype": dtype, **own}


def check_round_trip(spec: MapFields, data: Any) -> None:
    """Check that the bytes hold nothing but the spec.

    Raises:
        TensorMapError: Some words differ.
    """
    expected, actual = encode_words(spec), _words(_as_bytes(data))
    wrong = [index for index in range(len(actual)) if expected[index] != actual[index]]
    if wrong:
        first = wrong[0]
        raise _not_a_map(
            f"word {first} is {actual[first]:#x} where {type(spec).__name__} writes "
            f"{expected[first]:#x} (words that differ: {wrong})"
        )


# --- the fields -------------------------------------------------------------------------------


def _pack_common(spec: MapFields) -> int:
    type_code, is_tf32 = _TYPE_CODE[spec.dtype]
    strides = [stride // TMA_ALIGNMENT for stride in reversed(spec.strides_bytes)]
    return (
        _ADDRESS.pack(spec.address)
        | _IS_IM2COL.pack(spec.IS_IM2COL)
        | _RANK.pack(spec.rank)
        | _TYPE.pack(type_code)
        | _INTERLEAVE.pack(spec.interleave)
        | _SWIZZLE.pack(min(spec.swizzle, Swizzle.B128))
        | _SWIZZLE_ATOM.pack(max(spec.swizzle - Swizzle.B128, 0))
        | _OOB_FILL.pack(spec.oob_fill)
        | _IS_TF32.pack(is_tf32)
        | _L2_PROMOTION.pack(spec.l2_promotion)
        | _STRIDES_LOW.pack(*strides)
        | _STRIDES_HIGH.pack(*(stride >> _STRIDE_LOW_BITS for stride in strides))
        | _SHAPE.pack(*reversed(spec.shape))
        | _ELEMENT_STRIDES.pack(*reversed(spec.element_strides))
        | _INNER_SIDE.pack(spec.sides[-1].value)
        | _BOX_BYTES.pack(rules.encoded_bytes(spec))
        | _PATTERN_BYTES.pack(_pattern_bytes(spec.swizzle))
    )


def _unpack_common(bits: int, rank: int) -> dict[str, Any]:
    lows, highs = (run.unpack(bits, rank - 1) for run in (_STRIDES_LOW, _STRIDES_HIGH))
    strides = (
        (low | high << _STRIDE_LOW_BITS) * TMA_ALIGNMENT
        for low, high in zip(lows, highs, strict=True)
    )
    return {
        "address": _ADDRESS.unpack(bits)[0],
        "shape": _outermost_first(_SHAPE.unpack(bits, rank)),
        "strides_bytes": _outermost_first(strides),
        "element_strides": _outermost_first(_ELEMENT_STRIDES.unpack(bits, rank)),
        "interleave": Interleave(*_INTERLEAVE.unpack(bits)),
        "swizzle": Swizzle(_SWIZZLE.unpack(bits)[0] + _SWIZZLE_ATOM.unpack(bits)[0]),
        "l2_promotion": L2Promotion(*_L2_PROMOTION.unpack(bits)),
        "oob_fill": OOBFill(*_OOB_FILL.unpack(bits)),
    }


def _pack_tiled(spec: MapFields) -> int:
    return _OUTER_SIDES.pack(*(side.value for side in reversed(spec.sides[:-1])))


def _unpack_tiled(bits: int, rank: int) -> dict[str, Any]:
    sides = _INNER_SIDE.unpack(bits) + _OUTER_SIDES.unpack(bits, rank - 1)
    return {"box_shape": _outermost_first(sides)}


def _pack_im2col(spec: Im2colFields) -> int:
    lower, upper = _corner_runs(rules.corner_bits(spec))
    return (
        _WIDE.pack(_WIDE_CODES[spec.wide])
        | lower.pack(*reversed(spec.lower_corner))
        | upper.pack(*reversed(spec.upper_corner))
        | _PIXELS.pack(spec.pixels_per_column)
    )


def _unpack_im2col(bits: int, rank: int) -> dict[str, Any]:
    (code,) = _WIDE.unpack(bits)
    wide = next((name for name, one in _WIDE_CODES.items() if one == code), "")
    width, count = (rules.CORNER_BITS[3], 1) if wide else (rules.CORNER_BITS[rank], rank - 2)
    reach, others = 1 << width - 1, (0,) * (rank - 2 - count)
    lower, upper = (
        (*others, *_outermost_first((value ^ reach) - reach for value in run.unpack(bits, count)))
        for run in _corner_runs(width)
    )
    return {
        "wide": wide,
        "lower_corner": lower,
        "upper_corner": upper,
        "pixels_per_column": _PIXELS.unpack(bits)[0],
        "channels_per_pixel": _INNER_SIDE.unpack(bits)[0],
    }


def _corner_runs(width: int) -> tuple[_Run, _Run]:
    return _Run(_LOWER_CORNER_BIT, width), _Run(_UPPER_CORNER_BIT, width)


def _pattern_bytes(swizzle: Swizzle) -> int:
    return SWIZZLE_CHUNK_BYTES if swizzle is Swizzle.NONE else swizzle.alignment


def _outermost_first(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)[::-1]


# --- bytes ------------------------------------------------------------------------------------


def _as_bytes(data: Any) -> bytes:
    try:
        raw = memoryview(data).tobytes()
    except TypeError:
        raise _refused(f"a {type(data).__name__}", "it must be bytes") from None
    if len(raw) != TENSOR_MAP_BYTES:
        raise _refused(f"{len(raw)} bytes long", f"a tensor map has {TENSOR_MAP_BYTES} bytes")
    return raw


def _words(data: bytes) -> tuple[int, ...]:
    return tuple(
        int.from_bytes(data[start : start + _WORD_BYTES], "little")
        for start in range(0, len(data), _WORD_BYTES)
    )


def _not_a_map(why: str) -> TensorMapError:
    return _refused(
        f"not a tensor map of sm_90: {why}", "the bits must be of a tiled or im2col map"
    )


def _refused(value: str, rule: str) -> TensorMapError:
    remedy = (
        "Pass the 128 bytes of a CUtensorMap as the driver wrote them; maps of other architectures "
        "(im2col-wide, gather, packed types) cannot be read"
    )
    return TensorMapError.broken("data", value, rule, remedy)
