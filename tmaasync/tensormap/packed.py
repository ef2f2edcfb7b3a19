"""The rules of what came with sm_100a: packed types, and swizzles of larger atoms.

Sources: cuda.h on ``cuTensorMapEncodeTiled``; PTX ISA, "Tensors". Not run on a chip.
"""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.errors import Violation
from tmaasync.modes import DataType, Interleave, Swizzle
from tmaasync.tensormap.fields import MapFields

_GAP_SIDE = 128  # elements of a row of a type with gaps: 128 bytes of shared memory
_STEP = 32  # packed elements of 4 bits in 16 bytes
_GAP_SWIZZLES: tuple[Swizzle, ...] = (Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B)


def violations(spec: MapFields) -> Iterator[Violation]:
    """Yield the broken rules of a spec whose architecture has these modes."""
    if not spec.has_wide_maps:
        return
    is_interleaved = spec.interleave is not Interleave.NONE
    if is_interleaved and (spec.swizzle.needs_sm_100 or spec.dtype.needs_sm_100):
        rule = "packed types and swizzles of larger atoms are not interleaved"
        yield Violation("interleave", spec.interleave, rule, "Use Interleave.NONE")
    if spec.dtype is DataType.PACKED_16U4_ALIGN8B:
        yield from _packed(spec)
    if spec.dtype.has_gaps:
        yield from _gaps(spec)


def _packed(spec: MapFields) -> Iterator[Violation]:
    extent, dim = spec.shape[-1], spec.rank - 1
    if extent % 2:
        rule = "two elements of 4 bits share a byte"
        yield Violation(f"shape[{dim}]", extent, rule, f"Pad the dimension to {extent + 1}")
    argument, side, _ = spec.sides[-1]
    if side % _STEP:
        rounded = -(-side // _STEP) * _STEP
        rule = f"the innermost side takes {side / 2:g} bytes, which must be a multiple of 16"
        yield Violation(argument, side, rule, f"Use {rounded} elements")
    if spec.swizzle is not Swizzle.NONE and side // 2 > spec.swizzle.span_bytes:
        rule = (
            f"the innermost side takes {side // 2} bytes, above the {spec.swizzle.span_bytes} of "
        )
        remedy = f"Use {2 * spec.swizzle.span_bytes} elements and several boxes"
        yield Violation(argument, side, f"{rule}{spec.swizzle}", remedy)


def _gaps(spec: MapFields) -> Iterator[Violation]:
    extent, dim = spec.shape[-1], spec.rank - 1
    if extent % _GAP_SIDE:
        rounded = -(-extent // _GAP_SIDE) * _GAP_SIDE
        rule = f"the innermost extent of {spec.dtype} must be a multiple of {_GAP_SIDE}"
        yield Violation(f"shape[{dim}]", extent, rule, f"Pad the dimension to {rounded}")
    argument, side, _ = spec.sides[-1]
    if side != _GAP_SIDE:
        rule = f"the innermost side of {spec.dtype} is {_GAP_SIDE} elements"
        yield Violation(argument, side, rule, f"Use {_GAP_SIDE}, and several boxes")
    allowed = _GAP_SWIZZLES
    if spec.dtype is DataType.PACKED_16U6_ALIGN16B:  # the last one for stores alone
        allowed = (*_GAP_SWIZZLES, Swizzle.B128_ATOM_64B)
    if spec.swizzle not in allowed:
        names = ", ".join(mode.short_name for mode in allowed)
        rule = f"{spec.dtype} takes the swizzles {names}"
        yield Violation("swizzle", spec.swizzle, rule, "Use Swizzle.B128")
