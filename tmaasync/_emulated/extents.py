"""Extents of a launch's arrays, for the emulator's checks of accesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._tile.argument import KernelArgument
from tmaasync._tile.array import TMATensorTileArray
from tmaasync._tile.pointer import Pointer
from tmaasync.emulate import Extent
from tmaasync.kernel.arguments import Placed, View

__all__ = ["extents_of"]


def extents_of(seen: Sequence[View]) -> list[Iterable[Extent]]:
    """Return the extents of each argument's arrays."""
    return [() if view is None else _extents_of(view) for view in seen]


class _ExtentsOfTiles:
    """Extents that each launch reads again, since the host may assign other tiles in between."""

    def __init__(self, tiles: TMATensorTileArray) -> None:
        self._tiles = tiles

    def __iter__(self) -> Iterator[Extent]:
        return iter((_extent(self._tiles), *_numbered(self._tiles)))


def _extents_of(view: Placed) -> Iterable[Extent]:
    if isinstance(view, TMATensorTileArray):
        return _ExtentsOfTiles(view)
    members = tuple(view.members()) if isinstance(view, KernelArgument) else (view,)
    return tuple(map(_extent, members) if len(members) == 1 else _numbered(members))


def _numbered(members: Iterable[Placed]) -> Iterator[Extent]:
    return (_extent(one)._replace(member=number) for number, one in enumerate(members))


def _extent(view: Placed) -> Extent:
    low, high = view.byte_bounds
    first, end, may_hold = low - view.address, high - view.address, _is_of_pointers(view)
    array = view if isinstance(view, ArrayView) else view.array_view
    if array is None or array.address != view.address:
        return Extent(view.address, first, end, may_hold_pointers=may_hold)
    return Extent(
        view.address,
        first,
        end,
        array.shape,
        array.strides_bytes,
        array.element.itemsize,
        may_hold,
        is_read_only=_is_read_only(view),
    )


def _is_read_only(view: Placed) -> bool:
    """Return whether an array is read only now; a tile's may have been writable before."""
    if isinstance(view, ArrayView):
        return view.read_only
    return not isinstance(view, Pointer) and _arrays.view(view.array).read_only


def _is_of_pointers(view: Placed) -> bool:
    """Return whether elements may hold pointers: 8-byte integers, structs, bytes or tensor maps."""
    if not isinstance(view, ArrayView):
        return isinstance(view, TMATensorTileArray)
    dtype = view.element.dtype
    return dtype.kind == "V" or (dtype.kind in "iu" and dtype.itemsize in (1, 8))
