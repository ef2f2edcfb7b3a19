"""The form of a tile: its tensor map over any array of one layout, checked and encoded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tmaasync import _driver
from tmaasync._arrays import ArrayView
from tmaasync._hardware import INTERLEAVED_ALIGNMENT, TMA_ALIGNMENT
from tmaasync._tile.argument import MapForm
from tmaasync._tile.cut import (
    Cut,
    argument_violations,
    cut_violations,
    default_box,
    layout_violations,
)
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import (
    Interleave,
    InterleaveName,
    L2Promotion,
    L2PromotionName,
    OOBFill,
    OOBFillName,
    Swizzle,
    SwizzleName,
)
from tmaasync.tensormap import TensorMapSpec

_MAX_FORMS = 4096


class TileOptions(NamedTuple):
    """The arguments of `create_tma_tile`; modes are members or names, as the caller gave them."""

    tile_shape: tuple[int, ...]
    swizzle: Swizzle | SwizzleName
    box_shape: tuple[int, ...] | None
    l2_promotion: L2Promotion | L2PromotionName
    oob_fill: OOBFill | OOBFillName
    interleave: Interleave | InterleaveName
    element_strides: tuple[int, ...] | None

    def check(self, rank: int) -> None:
        """Refuse sides and modes of other types, which a look-up takes for equal ones.

        Raises:
            TensorMapError: Not one positive integer per dimension.
            ArgumentError: A mode is neither a member nor a name of one.
        """
        if rank == 0:
            remedy = "Pass array.reshape(1)"
            TensorMapError.raise_for(
                [Violation("array", "0-dimensional", "a tile has 1 to 5 sides", remedy)]
            )
        strides = self.element_strides or (1,) * rank
        TensorMapError.raise_for(
            argument_violations(rank, self.tile_shape, self.box_shape, strides)
        )
        Swizzle.of(self.swizzle, "swizzle")
        L2Promotion.of(self.l2_promotion, "l2_promotion")
        OOBFill.of(self.oob_fill, "oob_fill")
        Interleave.of(self.interleave, "interleave")


@dataclass(frozen=True, slots=True, eq=False)
class TileForm(MapForm):
    spec: TensorMapSpec
    cuda_type: str
    address_mask: int


FORMS: dict[object, TileForm] = {}
"""Every form made so far, by the array's layout, the tile options and the element type."""


def cached_form(key: object, view: ArrayView, options: TileOptions) -> TileForm:
    """Return the form under this key; make it if there is none."""
    try:
        form = FORMS.get(key)
    except TypeError:  # an argument that has no hash, which is refused below
        form = None
    if form is None:
        form = _new_form(view, options)
        if len(FORMS) >= _MAX_FORMS:
            FORMS.clear()
        FORMS[key] = form
    return form


def _new_form(view: ArrayView, options: TileOptions) -> TileForm:
    """Check everything and encode: the costly part of `create_tma_tile`."""
    strides = options.element_strides or (1,) * view.ndim
    swizzle = Swizzle.of(options.swizzle, "swizzle")
    box = options.box_shape or default_box(options.tile_shape, view.element.itemsize, swizzle)
    cut = Cut(view.element, options.tile_shape, box, strides, swizzle)
    spec = TensorMapSpec(
        address=view.address,
        dtype=view.element.data_type,
        shape=view.shape,
        strides_bytes=view.strides_bytes[:-1],
        box_shape=cut.span_shape,
        element_strides=strides,
        interleave=Interleave.of(options.interleave, "interleave"),
        swizzle=swizzle,
        l2_promotion=L2Promotion.of(options.l2_promotion, "l2_promotion"),
        oob_fill=OOBFill.of(options.oob_fill, "oob_fill"),
    )
    TensorMapError.raise_for([*layout_violations(view), *spec.violations(), *cut_violations(cut)])
    descriptor = spec.encode() if view.device is None else _driver.encode(spec, view.device)
    is_interleaved = spec.interleave is Interleave.B32
    mask = (INTERLEAVED_ALIGNMENT if is_interleaved else TMA_ALIGNMENT) - 1
    template = view._replace(owner=None, lease=None)
    return TileForm(cut, template, descriptor, spec, cut.cuda_type(), mask)


def rebind_violations(
    old: ArrayView, new: ArrayView, what: str = "tile", factory: str = "create_tma_tile"
) -> list[Violation]:
    """Return the properties in which an array differs from the array of a tile or a map."""
    pairs = {
        "array.shape": (old.shape, new.shape),
        "array.strides": (old.strides_bytes, new.strides_bytes),
        "array.device": (old.device, new.device),
    }
    return [
        Violation(
            argument,
            now,
            f"the {what} was made for {before}",
            f"Make a {what} of its own for this array with {factory}",
        )
        for argument, (before, now) in pairs.items()
        if before != now
    ]
