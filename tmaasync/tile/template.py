"""Tiles without an array yet: the type for a kernel now, the tensor map later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tmaasync._elements import element
from tmaasync.modes import Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import TensorMapSpec
from tmaasync.tile.argument import CutSizes
from tmaasync.tile.cut import Cut, argument_violations, cut_violations, default_box, raise_if
from tmaasync.tile.tiled import TMATensorTile, create_tma_tile

__all__ = ["TMATensorTileTemplate", "create_tma_tile_template"]


@dataclass(frozen=True, slots=True)
class TMATensorTileTemplate(CutSizes):
    """A tile's type and sizes, with no array behind them; made by `create_tma_tile_template`.

    A kernel can be built with it (``Kernel(types={"Tile": template})``) and not launched with it:
    `bind` gives the tile over an array.
    """

    cut: Cut
    l2_promotion: L2Promotion
    oob_fill: OOBFill
    interleave: Interleave

    @property
    def _cut(self) -> Cut:
        return self.cut

    @property
    def cuda_type(self) -> str:
        """The tile's type in CUDA C++: the one that every tile bound to an array has."""
        return self.cut.cuda_type()

    def bind(self, array: object) -> TMATensorTile:
        """The tile over an array.

        Raises:
            TensorMapError: The array cannot be read in such tiles; every reason is listed.
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
        )


def create_tma_tile_template(  # noqa: PLR0913 - one per field of the tensor map
    tile_shape: Sequence[int],
    dtype: object,
    *,
    swizzle: Swizzle = Swizzle.NONE,
    box_shape: Sequence[int] | None = None,
    l2_promotion: L2Promotion = L2Promotion.B128,
    oob_fill: OOBFill = OOBFill.ZERO,
    interleave: Interleave = Interleave.NONE,
    element_strides: Sequence[int] | None = None,
) -> TMATensorTileTemplate:
    """Describe a tile before there is an array; the arguments are those of `create_tma_tile`.

    Args:
        tile_shape: Elements per side, outermost first: as many as the arrays will have dimensions.
        dtype: The element type, as a NumPy dtype, a name or a ``DataType``.
        swizzle: How 16-byte chunks are permuted in shared memory.
        box_shape: Elements per side of one instruction, if not by the rule of `create_tma_tile`.
        l2_promotion: The granule in which L2 fetches what a load touches.
        oob_fill: What a load writes beyond the array.
        interleave: For channel-interleaved layouts of three or more dimensions.
        element_strides: Take every n-th element along a side.

    Raises:
        TensorMapError: No array could be read in such tiles; every reason is listed.
        ArrayTypeError: TMA on Hopper cannot move such elements.

    >>> import numpy as np
    >>> template = create_tma_tile_template((64, 64), np.float16, swizzle=Swizzle.B128)
    >>> template.tile_bytes, template.bind(np.zeros((256, 256), np.float16)).tiles_per_side
    (8192, (4, 4))
    """
    sides, kind = tuple(tile_shape), element(dtype)
    strides = (1,) * len(sides) if element_strides is None else tuple(element_strides)
    given = None if box_shape is None else tuple(box_shape)
    raise_if(argument_violations(len(sides), sides, given, strides))
    cut = Cut(kind, sides, given or default_box(sides, kind.itemsize, swizzle), strides, swizzle)
    template = TMATensorTileTemplate(cut, l2_promotion, oob_fill, interleave)
    raise_if([*_smallest_spec(template).violations(), *cut_violations(cut)])
    return template


def _smallest_spec(template: TMATensorTileTemplate) -> TensorMapSpec:
    """The map over an array of one box, which has none of an array's own faults."""
    cut = template.cut
    strides: list[int] = []
    pitch = -(-cut.span_shape[-1] * cut.element.itemsize // 32) * 32
    for side in reversed(cut.span_shape[1:-1]):
        strides.append(pitch)
        pitch *= side
    strides.append(pitch)
    return TensorMapSpec(
        address=0,
        dtype=cut.element.data_type,
        shape=cut.span_shape,
        strides_bytes=tuple(reversed(strides[: len(cut.span_shape) - 1])),
        box_shape=cut.span_shape,
        element_strides=cut.element_strides,
        interleave=template.interleave,
        swizzle=cut.swizzle,
        l2_promotion=template.l2_promotion,
        oob_fill=template.oob_fill,
    )
