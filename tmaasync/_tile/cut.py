"""Cutting a tile into boxes, and the rules of every tile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync._hardware import (
    ARCH_LIMITS,
    BOX_START_ALIGNMENT,
    MAX_BOX_SIDE,
    MAX_SHARED_BYTES,
    TMA_ALIGNMENT,
)
from tmaasync._kinds import as_int, is_integer, shown
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import Swizzle

CUDA_SWIZZLE = {
    Swizzle.NONE: "kNone",
    Swizzle.B32: "k32B",
    Swizzle.B64: "k64B",
    Swizzle.B128: "k128B",
    Swizzle.B128_ATOM_32B: "k128BAtom32B",
    Swizzle.B128_ATOM_32B_FLIP_8B: "k128BAtom32BFlip8B",
    Swizzle.B128_ATOM_64B: "k128BAtom64B",
}


def cuda_sides(template: str, sides: Sequence[int]) -> str:
    """Return sides as a type of CUDA C++."""
    return f"tmaasync::{template}<{', '.join(map(str, sides))}>"


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile and the boxes it is cut into; sides count what lands in shared memory."""

    element: Element
    tile_shape: tuple[int, ...]
    box_shape: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Swizzle

    @property
    def boxes_per_side(self) -> tuple[int, ...]:
        """Instructions along each side, outermost first."""
        return tuple(
            -(-side // box) for side, box in zip(self.tile_shape, self.box_shape, strict=True)
        )

    @property
    def box_bytes(self) -> int:
        """Bytes that one instruction moves and credits."""
        return math.prod(self.box_shape) * self.element.data_type.bits // 8

    @property
    def shared_box_bytes(self) -> int:
        """Bytes of a box in shared memory, the gaps of packed types included."""
        return math.prod(self.box_shape) * self.element.shared_bits // 8

    @property
    def boxes(self) -> int:
        """Instructions that one call issues."""
        return math.prod(self.boxes_per_side)

    @property
    def tile_bytes(self) -> int:
        """Bytes that one call moves and credits."""
        return self.boxes * self.box_bytes

    @property
    def span_shape(self) -> tuple[int, ...]:
        """The map's box, which counts what the element strides skip (cuda.h)."""
        pairs = zip(self.box_shape, self.element_strides, strict=True)
        return tuple(side * stride for side, stride in pairs)

    def cuda_type(self) -> str:
        """Return the tile's type in CUDA C++."""
        arguments = [
            self.element.cuda_type,
            cuda_sides("Shape", self.tile_shape),
            cuda_sides("Box", self.box_shape),
            f"tmaasync::Swizzle::{CUDA_SWIZZLE[self.swizzle]}",
        ]
        if any(stride != 1 for stride in self.element_strides):
            arguments.append(cuda_sides("Shape", self.element_strides))
        return f"tmaasync::TMATensorTile<{', '.join(arguments)}>"


def cut_of(
    element: Element,
    tile_shape: tuple[int, ...],
    box_shape: tuple[int, ...] | None,
    element_strides: tuple[int, ...],
    swizzle: Swizzle,
) -> Cut:
    """Return a tile's boxes, by `default_box` if ``box_shape`` is None."""
    # A box of a type with gaps is 128 elements wide, in 128 bytes (cuda.h).
    width = Swizzle.B128 if element.data_type.has_gaps else swizzle
    box = box_shape or default_box(tile_shape, element.shared_bits, width)
    return Cut(element, tile_shape, box, element_strides, swizzle)


def default_box(
    tile_shape: tuple[int, ...], element_bits: int, swizzle: Swizzle
) -> tuple[int, ...]:
    """Return the box of a tile without ``box_shape``; `create_tma_tile` states the rule."""
    last = tile_shape[-1]
    if swizzle is not Swizzle.NONE:
        last = min(last, 8 * swizzle.span_bytes // element_bits)
    return (*(equal_part(side) for side in tile_shape[:-1]), equal_part(last))


def covering_tile(view: ArrayView, tile_bytes: int) -> tuple[int, ...]:
    """Return a tile of about ``tile_bytes`` in one box, filled from the innermost side outwards."""
    granule = max(1, TMA_ALIGNMENT // view.element.itemsize)
    left = tile_bytes // view.element.itemsize
    sides: list[int] = []
    for extent in reversed(view.shape):
        side = min(extent, MAX_BOX_SIDE, left)
        if not sides:
            side = min(-(-side // granule) * granule, MAX_BOX_SIDE)
        sides.append(side)
        left = max(1, left // side)
    return tuple(reversed(sides))


def equal_part(side: int, limit: int = MAX_BOX_SIDE) -> int:
    """Return the largest divisor of a side that a box may have."""
    return next(part for part in range(min(side, limit), 0, -1) if side % part == 0)


def argument_violations(
    rank: int,
    tile_shape: tuple[Any, ...],
    box_shape: tuple[Any, ...] | None,
    element_strides: tuple[Any, ...],
) -> list[Violation]:
    """Return the rules that the numbers per side break, before a map is made of them."""
    per_side = {"tile_shape": tile_shape, "element_strides": element_strides}
    if box_shape is not None:
        per_side["box_shape"] = box_shape
    found = [
        violation
        for argument, values in per_side.items()
        for violation in per_side_violations(rank, argument, values)
    ]
    if not found and element_strides[-1:] not in ((), (1,)):
        found.append(
            Violation(
                f"element_strides[{rank - 1}]",
                element_strides[-1],
                "the hardware ignores the innermost element stride (measured on an H200)",
                "Pass 1 there and pick the elements in the kernel",
            )
        )
    return found


def per_side_violations(rank: int, argument: str, values: tuple[Any, ...]) -> Iterator[Violation]:
    """Yield a violation for each value that is no positive integer, and for a wrong length."""
    if len(values) != rank:
        yield Violation(
            argument,
            values,
            f"the array has {rank} dimensions and needs one number for each",
            f"Pass {rank} numbers, outermost first",
        )
    for dim, value in enumerate(values):
        if not is_positive_integer(value):
            yield Violation(
                f"{argument}[{dim}]",
                shown(value),
                "it must be a positive integer",
                "Pass an int of 1 or more",
            )


def sides_of(argument: str, values: object) -> tuple[int, ...]:
    """Return the numbers of an argument, one per side, as a tuple; integers as ints.

    Raises:
        TensorMapError: They are no sequence.
    """
    try:
        if not isinstance(values, str | bytes | Mapping | Set):
            return tuple(map(as_int, values))  # type: ignore[call-overload]
    except TypeError:
        pass
    rule, remedy = "it must be one integer per dimension", "Pass a tuple, outermost first"
    raise TensorMapError.broken(argument, shown(values), rule, remedy)


def is_positive_integer(value: object) -> bool:
    """True for an integer of any library, 1 or more."""
    return is_integer(value) and value.__index__() > 0


_CONTIGUOUS = {
    "numpy": "numpy.ascontiguousarray",
    "cupy": "cupy.ascontiguousarray",
    "torch": "Tensor.contiguous",
}


def layout_violations(view: ArrayView) -> list[Violation]:
    """Return violations of the innermost stride, which a tensor map does not hold."""
    last, itemsize = view.strides_bytes[-1], view.element.itemsize
    if last == itemsize or view.shape[-1] <= 1 or view.is_empty:
        return []
    return [
        Violation(
            f"array.strides[{view.ndim - 1}]",
            last,
            f"the last dimension must be contiguous, {itemsize} bytes apart",
            "Transpose the array so that its contiguous dimension is the last, or copy it "
            f"({_CONTIGUOUS.get(view.framework, 'into contiguous memory')})",
        )
    ]


def cut_violations(cut: Cut, arch: object = "sm_90a") -> list[Violation]:
    """Return the rules of shared memory that a tile breaks on an architecture."""
    found = []
    tile_bytes = cut.boxes * cut.shared_box_bytes
    limits = ARCH_LIMITS.get(arch) if isinstance(arch, str) else None
    most = limits.shared_bytes if limits else MAX_SHARED_BYTES
    if tile_bytes > most:
        found.append(
            Violation(
                "tile_shape",
                cut.tile_shape,
                f"it takes {tile_bytes} bytes and a block has {most} bytes of shared memory",
                "Choose a smaller tile; a pipeline holds two to four of them",
            )
        )
    row_bytes, span = cut.box_shape[-1] * cut.element.shared_bits // 8, cut.swizzle.span_bytes
    if cut.swizzle is not Swizzle.NONE and row_bytes < span:
        found.append(
            Violation(
                f"tile_shape[{len(cut.tile_shape) - 1}]",
                cut.tile_shape[-1],
                f"its rows are {row_bytes} bytes and {cut.swizzle} lays rows {span} bytes apart in "
                "shared memory (measured on an H200), which would leave gaps",
                f"Use {8 * span // cut.element.shared_bits} elements, or the swizzle of that width",
            )
        )
    if cut.boxes > 1 and cut.shared_box_bytes % BOX_START_ALIGNMENT:
        found.append(
            Violation(
                "box_shape",
                cut.box_shape,
                f"a box of {cut.shared_box_bytes} bytes would make the next one start off a "
                f"multiple of {BOX_START_ALIGNMENT} bytes",
                "Choose a tile that is one box, or a box of a multiple of 128 bytes",
            )
        )
    return found
