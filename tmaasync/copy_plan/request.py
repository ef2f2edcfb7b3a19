"""A requested copy, and the rules of every mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync._hardware import SHARED_LINE_BYTES
from tmaasync._tile.cut import Cut, cut_of, cut_violations
from tmaasync.errors import Violation
from tmaasync.modes import CachePolicy, Swizzle
from tmaasync.tensormap import TensorMapSpec

_TRIAL_STRIDE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The caller's preferences; `plan_copy` documents each."""

    policy: CachePolicy = CachePolicy.EVICT_NORMAL
    coalesced_width: int | None = None
    disable_tma: bool = False
    prefer: str | None = None
    cluster_mask: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One leg of a copy: tiles between an array and shared memory, and the first index of each."""

    view: ArrayView
    cut: Cut
    is_store: bool
    starts: tuple[range, ...]
    options: Options

    @property
    def array(self) -> str:
        """The name of the array in messages."""
        return "destination" if self.is_store else "source"

    @property
    def converts(self) -> bool:
        """True if array and tile hold different element types."""
        return self.view.element is not self.cut.element

    @property
    def dimensions(self) -> Iterator[tuple[int, range, int, int, int]]:
        """Per dimension: its number, the starts, the tile's side, extent and stride in bytes."""
        view, sides = self.view, self.cut.tile_shape
        return zip(
            range(view.ndim), self.starts, sides, view.shape, view.strides_bytes, strict=True
        )

    @property
    def settled_view(self) -> ArrayView:
        """The array with a stride of 0 for dimensions of one index."""
        view = self.view
        pairs = zip(view.shape, view.strides_bytes, strict=True)
        return view._replace(strides_bytes=tuple(0 if n == 1 else stride for n, stride in pairs))


# --- the tile in shared memory ----------------------------------------------------------------


def layout(element: Element, sides: tuple[int, ...], swizzle: Swizzle) -> Cut:
    """Return the layout of a tile in shared memory, for any mechanism.

    As `create_tma_tile` cuts it. A tile without swizzle that no boxes of TMA can make up, such as
    one with rows of 12 bytes, lies there in row-major order.
    """
    ones = (1,) * len(sides)
    cut = cut_of(element, sides, None, ones, swizzle)
    if swizzle is Swizzle.NONE and (cut_violations(cut) or _box_violations(cut)):
        return replace(cut, box_shape=sides)
    return cut


def layout_violations(cut: Cut) -> list[Violation]:
    """Return the rules of shared memory that a tile breaks with any mechanism."""
    modes = [found for found in _box_violations(cut) if found.argument == "swizzle"]
    return modes or cut_violations(cut)


def _box_violations(cut: Cut) -> tuple[Violation, ...]:
    """Return the rules that a map of an unproblematic array breaks with this box."""
    strides = (_TRIAL_STRIDE,) * (len(cut.box_shape) - 1)
    data_type, box = cut.element.data_type, cut.box_shape
    return TensorMapSpec(0, data_type, box, strides, box, swizzle=cut.swizzle).violations()


# --- element types ----------------------------------------------------------------------------

_SMALL_FLOATS = ("float16", "bfloat16", "float32")
_LARGE_FLOATS = ("float32", "float64")
_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")


def conversion_violations(given: Element, wanted: Element) -> Iterator[Violation]:
    """Yield a violation if a copy cannot convert one type to the other."""
    if given is wanted or _is_convertible(given.name, wanted.name):
        return
    yield Violation(
        "the destination's element type",
        wanted,
        f"the source holds {given}, and a copy converts integers to any integer, float32 or "
        "float64, and floats to a neighbour: float16, bfloat16 and float32 into each other, "
        "float32 and float64 into each other",
        f"Convert the source first (astype), or view it as {wanted} if the bits are meant",
    )


def _is_convertible(given: str, wanted: str) -> bool:
    if given in (*_INTEGERS, "bool"):
        return wanted in _INTEGERS or wanted in _LARGE_FLOATS
    families: tuple[Sequence[str], ...] = (_SMALL_FLOATS, _LARGE_FLOATS)
    return any(given in family and wanted in family for family in families)


# --- memory -----------------------------------------------------------------------------------


def overlap_violations(view: ArrayView) -> Iterator[Violation]:
    """Elements of a destination that may share bytes; held against each dimension's neighbours."""
    pairs = zip(view.shape, view.strides_bytes, range(view.ndim), strict=True)
    reach = view.element.itemsize
    for extent, stride, dim in sorted(pairs, key=lambda pair: abs(pair[1])):
        if extent == 1:
            continue
        if abs(stride) < reach:
            yield Violation(
                f"destination.strides[{dim}]",
                stride,
                f"what lies within reaches over {reach} bytes, so that elements share memory and "
                "the last to be stored wins",
                "Store into an array of its own memory",
            )
        reach += (extent - 1) * abs(stride)


def same_shape_violations(source: ArrayView, destination: ArrayView) -> Iterator[Violation]:
    """Yield a violation if two arrays differ in shape."""
    if source.shape != destination.shape:
        yield Violation(
            "destination.shape",
            destination.shape,
            f"the source has {source.shape}, and a copy keeps the shape",
            "Pass a view of one of them with the other's shape",
        )


def is_row_major(cut: Cut) -> bool:
    """True if the tile lies in shared memory as a contiguous array would.

    Every swizzle leaves the first 128 bytes where they are.
    """
    leading = next((dim for dim, side in enumerate(cut.tile_shape) if side > 1), 0)
    is_whole = cut.box_shape[leading + 1 :] == cut.tile_shape[leading + 1 :]
    return is_whole and (cut.swizzle is Swizzle.NONE or cut.tile_bytes <= SHARED_LINE_BYTES)
