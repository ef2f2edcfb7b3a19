"""The form of a tile: its tensor map over any array of one layout, checked and encoded once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tmaasync import _driver
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync._hardware import INTERLEAVED_ALIGNMENT, TMA_ALIGNMENT, WIDE_MAP_ARCHS
from tmaasync._tile.argument import MapForm
from tmaasync._tile.cut import (
    argument_violations,
    cut_of,
    cut_violations,
    layout_violations,
)
from tmaasync._tile.packed import extents
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
from tmaasync.tensormap import Im2colSpec, TensorMapSpec

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
    arch: str

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


def cached_form(key: object, view: ArrayView, kind: Element, options: TileOptions) -> TileForm:
    """Return the form under this key; make it if there is none. ``kind`` is the tile's element."""
    try:
        form = FORMS.get(key)
    except TypeError:  # an argument that has no hash, which is refused below
        form = None
    if form is None:
        form = _new_form(view, kind, options)
        if len(FORMS) >= _MAX_FORMS:
            FORMS.clear()
        FORMS[key] = form
    return form


def _new_form(view: ArrayView, kind: Element, options: TileOptions) -> TileForm:
    """Check everything and encode: the costly part of `create_tma_tile`."""
    strides = options.element_strides or (1,) * view.ndim
    swizzle = Swizzle.of(options.swizzle, "swizzle")
    cut = cut_of(kind, options.tile_shape, options.box_shape, strides, swizzle)
    spec = TensorMapSpec(
        address=view.address,
        dtype=kind.data_type,
        shape=extents(view, kind),
        strides_bytes=view.strides_bytes[:-1],
        box_shape=cut.span_shape,
        element_strides=strides,
        interleave=Interleave.of(options.interleave, "interleave"),
        swizzle=swizzle,
        l2_promotion=L2Promotion.of(options.l2_promotion, "l2_promotion"),
        oob_fill=OOBFill.of(options.oob_fill, "oob_fill"),
        arch=options.arch,
    )
    TensorMapError.raise_for(
        [*layout_violations(view), *spec.violations(), *cut_violations(cut, spec.arch)]
    )
    descriptor = encoded(spec, view.device)
    is_coarse = spec.interleave is Interleave.B32 or kind.data_type.has_gaps
    mask = (INTERLEAVED_ALIGNMENT if is_coarse else TMA_ALIGNMENT) - 1
    template = view._replace(owner=None, lease=None)
    return TileForm(cut, template, descriptor, spec, cut.cuda_type(), mask)


def encoded(spec: TensorMapSpec | Im2colSpec, device: int | None) -> bytes:
    """Return the bytes of a legal spec for arrays on a device, or in host memory.

    Raises:
        TensorMapError: The device is no chip of the spec's architecture.
    """
    if device is None:
        return spec.encode()
    major, minor = _driver.device_limits(device).compute_capability
    if spec.has_wide_maps and f"sm_{major}{minor}a" not in WIDE_MAP_ARCHS:
        rule = f"the array is on a GPU of compute capability {major}.{minor}"
        remedy = "Leave it out, or pass a NumPy array, whose kernels the CPU runs"
        raise TensorMapError.broken("arch", repr(spec.arch), rule, remedy)
    return _driver.encode(spec, device)


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
