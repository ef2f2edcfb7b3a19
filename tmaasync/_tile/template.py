"""Tiles without an array, and their rules: some array can be read in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tmaasync._elements import element, packed_element
from tmaasync._tile.argument import UnboundTile
from tmaasync._tile.cut import Cut, argument_violations, cut_of, cut_violations, sides_of
from tmaasync._tile.tensor import TMATensorTile, create_tma_tile
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


@dataclass(frozen=True, slots=True)
class TMATensorTileTemplate(UnboundTile):
    """A tile's type and sizes, without an array; made by `create_tma_tile_template`.

    Build a kernel with it (``Kernel(types={"Tile": template})``). To launch the kernel, pass the
    tile that `bind` returns for an array.
    """

    cut: Cut
    l2_promotion: L2Promotion
    oob_fill: OOBFill
    interleave: Interleave
    arch: str

    @property
    def _cut(self) -> Cut:
        return self.cut

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++; the tiles that `bind` returns have the same type."""
        return self.cut.cuda_type()

    def bind(self, array: object) -> TMATensorTile:
        """Return the tile over an array, as `create_tma_tile` makes it.

        Raises:
            TensorMapError: The array breaks rules of this tile; every one is listed.
            ArrayTypeError: Not an array, or its elements have another width.
        """
        return create_tma_tile(
            array,
            self.cut.tile_shape,
            swizzle=self.cut.swizzle,
            box_shape=self.cut.box_shape,
            l2_promotion=self.l2_promotion,
            oob_fill=self.oob_fill,
            interleave=self.interleave,
            element_strides=self.cut.element_strides,
            dtype=self.cut.element,
            arch=self.arch,
        )


def create_tma_tile_template(  # noqa: PLR0913 - one per field of the tensor map
    tile_shape: Sequence[int],
    dtype: object,
    *,
    swizzle: Swizzle | SwizzleName = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion | L2PromotionName = L2Promotion.B128,
    oob_fill: OOBFill | OOBFillName = OOBFill.ZERO,
    interleave: Interleave | InterleaveName = Interleave.NONE,
    element_strides: Sequence[int] | None = None,
    arch: str = "sm_90a",
) -> TMATensorTileTemplate:
    """Describe a tile before there is an array, with the arguments of `create_tma_tile`.

    Args:
        tile_shape: Elements per side, outermost first, one per dimension of the arrays.
        dtype: The element type, as a NumPy dtype, a name such as ``"bf16"``, or a ``DataType``.
        swizzle: As in `create_tma_tile`.
        box_shape: As in `create_tma_tile`.
        l2_promotion: As in `create_tma_tile`.
        oob_fill: As in `create_tma_tile`.
        interleave: As in `create_tma_tile`.
        element_strides: As in `create_tma_tile`.
        arch: As in `create_tma_tile`.

    Raises:
        TensorMapError: The tile breaks rules for every array; each is listed.
        ArgumentError: A mode has an unknown name.
        ArrayTypeError: TMA on Hopper cannot move these elements.

    >>> import numpy as np
    >>> template = create_tma_tile_template((64, 64), np.float16, swizzle=Swizzle.B128)
    >>> template.tile_bytes, template.bind(np.zeros((256, 256), np.float16)).tiles_per_side
    (8192, (4, 4))
    """
    sides, kind = sides_of("tile_shape", tile_shape), packed_element(dtype) or element(dtype)
    strides = element_strides
    strides = (1,) * len(sides) if strides is None else sides_of("element_strides", strides)
    given = None if box_shape is None else sides_of("box_shape", box_shape)
    if not sides:
        rule, remedy = "a tile has 1 to 5 sides", "Pass a number for each dimension of the arrays"
        TensorMapError.raise_for([Violation("tile_shape", sides, rule, remedy)])
    TensorMapError.raise_for(argument_violations(len(sides), sides, given, strides))
    mode = Swizzle.of(swizzle, "swizzle")
    cut = cut_of(kind, sides, given, strides, mode)
    rest = (
        L2Promotion.of(l2_promotion, "l2_promotion"),
        OOBFill.of(oob_fill, "oob_fill"),
        Interleave.of(interleave, "interleave"),
        arch,
    )
    TensorMapError.raise_for(_template_violations(cut, *rest))
    return TMATensorTileTemplate(cut, *rest)


def _template_violations(
    cut: Cut, l2_promotion: L2Promotion, oob_fill: OOBFill, interleave: Interleave, arch: str
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
        arch=arch,
    )
    return [*spec.violations(), *cut_violations(cut, arch)]


def _smallest_strides(cut: Cut) -> tuple[int, ...]:
    """Return the strides of an array of one box, which has none of an array's own faults."""
    strides: list[int] = []
    pitch = -(-cut.span_shape[-1] * cut.element.data_type.bits // 256) * 32
    for side in reversed(cut.span_shape[1:-1]):
        strides.append(pitch)
        pitch *= side
    strides.append(pitch)
    return tuple(reversed(strides[: len(cut.span_shape) - 1]))
