"""The work list of packed sequences: one kernel makes it, the next one works it off.

Tiles come in sections whose keys stay in L2, the longest first in each (LPT). CTAs take the next
tile by an atomic counter: a dynamic persistent scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tmaasync.errors import ArgumentError
from tmaasync.kernel import Backend, BoundCall, Launch
from tmaasync.ops._flash.abi import (
    PAGED_WORK_ITEM,
    WORK_ITEM,
    WORK_LIST,
    PackedAttentionAddresses,
    PackedCombineAddresses,
    WorkListAddresses,
)
from tmaasync.ops._operation import LaunchSequence

__all__ = ["Batch", "BrokenSequences", "PackedAddresses", "PackedLaunch", "work_list_bytes"]


class Batch(NamedTuple):
    """How many sequences, and how long they may be."""

    size: int
    max_queries: int
    max_keys: int


def work_list_bytes(tiles: int, *, is_paged: bool) -> int:
    """Return the size of a work list for this many tiles of one head."""
    item = PAGED_WORK_ITEM if is_paged else WORK_ITEM
    return WORK_LIST.itemsize + tiles * item.itemsize


class PackedAddresses(NamedTuple):
    """Addresses that the launches of a call take; 0 where there is none.

    The addresses of q, k, v and out are those of the maps, which start below their arrays.
    """

    q: int
    k: int
    v: int
    out: int
    lse: int
    cu_seqlens_q: int
    cu_seqlens_k: int
    page_table: int
    work_list: int
    partials: int

    def to_make_list(self) -> WorkListAddresses:
        return WorkListAddresses(
            self.cu_seqlens_q, self.cu_seqlens_k, self.work_list, self.page_table
        )

    def to_attend(self) -> PackedAttentionAddresses:
        operands = (self.q, self.k, self.v)
        return PackedAttentionAddresses(
            *operands, self.out, self.lse, self.partials, self.work_list
        )

    def to_combine(self) -> PackedCombineAddresses:
        return PackedCombineAddresses(self.out, self.lse, self.partials, self.work_list)


class BrokenSequences:
    """What the kernel that makes the work list reports: a sequence that the arrays do not have."""

    def __init__(self, backend: Backend, *, is_paged: bool) -> None:
        self.flag = backend.host_flag()
        self._is_paged = is_paged

    def refuse(self, call: str) -> None:
        """Raise if a sequence was broken, and forget it.

        Raises:
            ArgumentError: ``call`` was wrong about a sequence.
        """
        sequence = int(self.flag[0])
        if sequence:
            self.flag[0] = 0
            paged = " or has pages in page_table that k lacks" if self._is_paged else ""
            raise ArgumentError(
                f"cu_seqlens_q or cu_seqlens_k of {call} is wrong about sequence {sequence - 1}: "
                f"it runs backwards, is longer than max_seqlen or leaves its array{paged}, and was "
                "left out. Pass check=True to learn which."
            )


class PackedLaunch:
    """Launches that make a work list, attend, and, where keys are split, combine.

    On a device a broken sequence is reported by the next call, since nothing waits.
    """

    def __init__(
        self, make_list: Launch, attend: LaunchSequence, broken: BrokenSequences, *, waits: bool
    ) -> None:
        self._make_list = make_list
        self._attend = attend
        self._broken = broken
        self._waits = waits

    def launch_at(self, addresses: Any, stream: int) -> None:
        self._broken.refuse("an earlier call")
        self._make_list.launch_at(addresses.to_make_list(), stream)
        if self._waits:
            self._broken.refuse("this call")
        self._attend.launch_at(addresses, stream)

    def attend_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch what works off a list that was made before."""
        self._broken.refuse("an earlier call")
        self._attend.launch_at(addresses, stream)

    def bind(self, addresses: Any, stream: int) -> BoundCall:
        make_list = self._make_list.bind(addresses.to_make_list(), stream)
        attend = self._attend.bind(addresses, stream)
        refuse = self._broken.refuse

        def call() -> None:
            refuse("an earlier call")
            make_list()
            attend()

        return call
