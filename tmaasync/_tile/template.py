"""Rules of a tile without an array: some array can be read in it."""

from __future__ import annotations

from tmaasync._tile.cut import Cut, cut_violations
from tmaasync.errors import Violation
from tmaasync.modes import Interleave, L2Promotion, OOBFill
from tmaasync.tensormap import TensorMapSpec

__all__ = ["template_violations"]


def template_violations(
    cut: Cut, l2_promotion: L2Promotion, oob_fill: OOBFill, interleave: Interleave
) -> list[Violation]:
    """Return the rules that this tile breaks with any array."""
    spec = TensorMapSpec(
        address=0,
        dtype=cut.element.data_type,
        shape=cut.span_shape,
        strides_bytes=_smallest_strides(cut),
        box_shape=cut.span_shape,
        element_strides=cut.element_strides,
        interleave=interleave,
        swizzle=cut.swizzle,
        l2_promotion=l2_promotion,
        oob_fill=oob_fill,
    )
    return [*spec.violations(), *cut_violations(cut)]


def _smallest_strides(cut: Cut) -> tuple[int, ...]:
    """Return the strides of an array of one box, which has none of an array's own faults."""
    strides: list[int] = []
    pitch = -(-cut.span_shape[-1] * cut.element.itemsize // 32) * 32
    for side in reversed(cut.span_shape[1:-1]):
        strides.append(pitch)
        pitch *= side
    strides.append(pitch)
    return tuple(reversed(strides[: len(cut.span_shape) - 1]))
