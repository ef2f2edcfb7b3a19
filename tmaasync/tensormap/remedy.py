"""The nearest legal spec to an illegal one, and the explanation of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from tmaasync._hardware import INT32_LIMIT, MAX_SHARED_BYTES, TMA_ALIGNMENT, WIDE_PIXELS
from tmaasync.errors import Violation
from tmaasync.modes import DataType, Interleave, OOBFill, Swizzle
from tmaasync.tensormap import form, hazards, rules
from tmaasync.tensormap.fields import Im2colFields, MapFields

_S = TypeVar("_S", bound="MapFields")

_PACKED_BITS = {
    DataType.PACKED_16U4_ALIGN8B: 4,
    DataType.PACKED_16U4_ALIGN16B: 4,
    DataType.PACKED_16U6_ALIGN16B: 6,
}
_SWIZZLES = (Swizzle.B32, Swizzle.B64, Swizzle.B128)


@dataclass(frozen=True, slots=True)
class Explanation(Generic[_S]):
    """The violations of a spec and the nearest legal one; ``print`` it.

    Attributes:
        spec: The spec in question.
        violations: Every rule it breaks.
        hazards: What the hardware does with it that one would not expect.
        proposal: The nearest legal spec, verified to be legal; the spec itself if it is; None where
            types, lengths or dimensions are so wrong that no spec is near.
    """

    spec: _S
    violations: tuple[Violation, ...]
    hazards: tuple[Violation, ...]
    proposal: _S | None

    @property
    def is_legal(self) -> bool:
        """True if the driver accepts the spec."""
        return not self.violations

    @property
    def changes(self) -> tuple[str, ...]:
        """Differences of the proposal from the spec, argument by argument."""
        if self.proposal is None:
            return ()
        pairs = (
            (item.name, getattr(self.spec, item.name), getattr(self.proposal, item.name))
            for item in fields(self.spec)
        )
        return tuple(
            f"{name}: {_shown(name, before)} -> {_shown(name, after)}"
            for name, before, after in pairs
            if before != after
        )

    def __str__(self) -> str:
        lines = [repr(self.spec)]
        if self.violations:
            lines += ["illegal:", *_indented(self.violations)]
        else:
            lines += ["legal"]
        if self.hazards:
            lines += ["but beware:", *_indented(self.hazards)]
        if self.changes:
            lines += ["nearest legal spec:", *_indented(self.changes), f"  {self.proposal!r}"]
        elif self.proposal is None:
            lines += ["no legal spec is near: correct the types and lengths first"]
        return "\n".join(lines)


def explain(spec: _S) -> Explanation[_S]:
    """Judge the spec and look for its nearest legal neighbour."""
    found = rules.violations(spec)
    proposal = _nearest(spec) if found else spec
    return Explanation(spec, found, hazards.hazards(spec), proposal)


def _nearest(spec: _S) -> _S | None:
    if any(form.malformed(spec)) or spec.rank < spec.RANKS[0]:
        return None
    for repair in _REPAIRS:
        spec = repair(spec)
    return None if rules.violations(spec) else spec


def _indented(lines: tuple[object, ...]) -> list[str]:
    return [f"  {line}" for line in lines]


def _shown(name: str, value: object) -> str:
    return hex(value) if name == "address" and isinstance(value, int) else _text(value)


def _text(value: object) -> str:
    return str(value) if not isinstance(value, str) else repr(value)


# --- repairs: each makes its argument legal and leaves a legal one alone ------------------------


def _rank(spec: MapFields) -> MapFields:
    """One map per outer index: keep the innermost dimensions."""
    excess = max(spec.rank - spec.RANKS[-1], 0)
    kept = {name: getattr(spec, name)[excess:] for name in form.sequences(spec)}
    return replace(spec, **kept)


def _modes(spec: MapFields) -> MapFields:
    if spec.dtype.needs_sm_100:
        spec = _as_bytes(spec)
    if spec.swizzle.needs_sm_100 and not spec.has_wide_maps:
        spec = replace(spec, swizzle=Swizzle.B128)
    if form.is_im2col(spec) and spec.wide:
        spec = _wide(spec)
    if spec.rank < 3:
        spec = replace(spec, interleave=Interleave.NONE)
    if not spec.dtype.is_float:
        spec = replace(spec, oob_fill=OOBFill.ZERO)
    return spec


def _wide(spec: Im2colFields) -> MapFields:
    if not spec.has_wide_maps:
        return replace(spec, wide="")
    outer = (0,) * (spec.rank - 3)
    return replace(
        spec,
        lower_corner=(*outer, spec.lower_corner[-1]),
        upper_corner=(*outer, spec.upper_corner[-1]),
        pixels_per_column=WIDE_PIXELS["w128"] if spec.wide == "w128" else spec.pixels_per_column,
    )


def _as_bytes(spec: MapFields) -> MapFields:
    bits = _PACKED_BITS[spec.dtype]
    *outer, last = (side.value for side in spec.sides)
    extent = -(-spec.shape[-1] * bits // 8)
    resized = replace(spec, dtype=DataType.UINT8, shape=(*spec.shape[:-1], extent))
    return resized.with_sides((*outer, last * bits // 8))


def _address(spec: MapFields) -> MapFields:
    granule = rules.granule_bytes(spec)
    address = min(max(spec.address, 0), (1 << 64) - granule)
    return replace(spec, address=address - address % granule)


def _shape(spec: MapFields) -> MapFields:
    return replace(spec, shape=tuple(_clamp(extent, 1, rules.MAX_EXTENT) for extent in spec.shape))


def _strides(spec: MapFields) -> MapFields:
    """Pad from the innermost outwards, so that rows that did not overlap still do not."""
    granule = rules.granule_bytes(spec)
    padded: list[int] = []
    for dim in reversed(range(spec.rank - 1)):
        stride = abs(spec.strides_bytes[dim])
        needed = stride
        if padded and stride >= abs(spec.strides_bytes[dim + 1]) * spec.shape[dim + 1]:
            needed = max(stride, padded[-1] * spec.shape[dim + 1])
        padded.append(min(-(-needed // granule) * granule, rules.STRIDE_LIMIT - granule))
    return replace(spec, strides_bytes=tuple(reversed(padded)))


def _element_strides(spec: MapFields) -> MapFields:
    strides = (_clamp(stride, 1, rules.MAX_ELEMENT_STRIDE) for stride in spec.element_strides)
    return replace(spec, element_strides=tuple(strides))


def _sides(spec: MapFields) -> MapFields:
    """Split sides that are too long into equal parts."""
    return spec.with_sides(
        [_part(side.value, side.limit) if side.value > 0 else 1 for side in spec.sides]
    )


def _part(side: int, limit: int) -> int:
    return -(-side // -(-side // limit))


def _inner_side(spec: MapFields) -> MapFields:
    """Round up to 16 bytes; then the narrowest swizzle that holds it, or else a narrower box."""
    *outer, inner = spec.sides
    itemsize = spec.dtype.itemsize
    step = max(TMA_ALIGNMENT // itemsize, 1)
    side = min(-(-inner.value // step) * step, inner.limit)
    if spec.swizzle is not Swizzle.NONE and spec.interleave is Interleave.NONE:
        wide = [mode for mode in _SWIZZLES if side * itemsize <= mode.span_bytes]
        if side * itemsize > spec.swizzle.span_bytes:
            spec = replace(spec, swizzle=wide[0] if wide else Swizzle.B128)
        side = min(side, spec.swizzle.span_bytes // itemsize)
    return spec.with_sides([*(one.value for one in outer), side])


def _shared_memory(spec: MapFields) -> MapFields:
    """Halve the longest outer side until the box fits a block."""
    while rules.encoded_bytes(spec) > MAX_SHARED_BYTES:
        sides = [side.value for side in spec.sides]
        longest = max(range(len(sides) - 1), key=lambda dim: sides[dim])
        sides[longest] = -(-sides[longest] // 2)
        spec = spec.with_sides(sides)
    return spec


def _corners(spec: MapFields) -> MapFields:
    if not form.is_im2col(spec):
        return spec
    reach = 1 << rules.corner_bits(spec) - 1
    shape = list(spec.shape)
    lower = [_clamp(corner, -reach, reach - 1) for corner in spec.lower_corner]
    upper = [_clamp(corner, -reach, reach - 1) for corner in spec.upper_corner]
    for corner, dim in zip(upper, spec.spatial_dims, strict=True):
        # Extent and corner are added in signed 32 bits.
        shape[dim] = min(shape[dim], INT32_LIMIT - 1 - max(corner, 0))
    spec = replace(spec, shape=tuple(shape), lower_corner=tuple(lower), upper_corner=tuple(upper))
    for index, _, pixels in rules.bounding_box(spec):
        upper[index] += max(1 - pixels, 0)
    return replace(spec, upper_corner=tuple(upper))


def _clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


_REPAIRS: tuple[Callable[[Any], Any], ...] = (
    _rank,
    _modes,
    _address,
    _shape,
    _strides,
    _element_strides,
    _sides,
    _inner_side,
    _shared_memory,
    _corners,
)
