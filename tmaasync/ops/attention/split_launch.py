"""Attention whose keys are split: two launches that look like one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._elements import element
from tmaasync._memory import placed
from tmaasync.emulate import EmulatedLaunch
from tmaasync.ops._results import maker
from tmaasync.ops.attention.kernel import MERGE_THREADS, Blocking, Variant, merge_kernel
from tmaasync.ops.attention.pieces import Pieces
from tmaasync.tile import TMATensorTile

__all__ = ["SplitLaunch", "maker_of_parts", "prepared_merge"]

_FLOAT32 = element(np.float32)
_PARAMETERS = 6  # of attention.cu, that are addresses


class SplitLaunch:
    """A launch of attention.cu, and one of attention_combine.cu behind it.

    The addresses that it takes are attention.cu's first parameters: those of q, k, v, the output,
    lse or 0, and memory for the parts, which is taken anew for every launch: see `maker_of_parts`.
    Behind them comes where the parts start, if there is something before them. In the order of the
    stream that memory may be given back at once.
    """

    def __init__(
        self,
        attend: PreparedLaunch | EmulatedLaunch,
        pieces: Pieces,
        tiles: Sequence[TMATensorTile],
        blocking: Blocking,
        variant: Variant,
        device: int | None,
        problem: bytes,
    ) -> None:
        """Compile the second kernel and pack its arguments; nothing is launched."""
        self._attend = attend
        self._blocking = blocking
        self._parts = pieces.places * blocking.cluster
        self._splits = placed(device, pieces.splits.tobytes())
        split_tiles = len(pieces.splits) * blocking.cluster
        arguments = (tiles[-1], 0, 0, self._splits.address, 0, problem)
        types = tuple(tile.cuda_type for tile in tiles)
        self._merge = prepared_merge(types, variant, blocking, split_tiles, arguments)

    @property
    def part_bytes(self) -> int:
        """Of all parts."""
        return self._parts * self._blocking.part_bytes

    def maker_of_parts(self, like: ArrayView) -> Callable[[], Any]:
        """What makes the memory for the parts, of the framework of ``like``."""
        return maker_of_parts(like, self._parts, self._blocking)

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch both."""
        self._attend.launch_at(_to_attend(addresses), stream)
        self._merge.launch_at(_to_merge(addresses), stream)

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """What does that again and again at a fraction of the cost; on a device."""
        attend = cast("PreparedLaunch", self._attend).bind(_to_attend(addresses), stream)
        merge = cast("PreparedLaunch", self._merge).bind(_to_merge(addresses), stream)

        def both() -> None:
            attend()
            merge()

        return both


def maker_of_parts(like: ArrayView, parts: int, blocking: Blocking) -> Callable[[], Any]:
    """What makes the memory for the sums of so many parts, of the framework of ``like``."""
    return maker(like, (parts * blocking.part_bytes // _FLOAT32.itemsize,), _FLOAT32)


def prepared_merge(
    types: tuple[str, ...],
    variant: Variant,
    blocking: Blocking,
    tiles: int,
    arguments: Sequence[object],
) -> PreparedLaunch | EmulatedLaunch:
    """A launch of attention_combine.cu on so many tiles; types, variant and blocking as of both."""
    kernel = merge_kernel(types, variant, blocking)
    launch = kernel.prepare(tiles * blocking.consumers, MERGE_THREADS, arguments, pdl=True)
    launch.release()
    return launch


def _to_merge(addresses: Sequence[int]) -> Sequence[int]:
    """The first parameters of attention_combine.cu: the output, lse and the parts."""
    _, _, _, out, lse, *_, parts = addresses
    return out, lse, parts


def _to_attend(addresses: Sequence[int]) -> Sequence[int]:
    return addresses[:_PARAMETERS]
