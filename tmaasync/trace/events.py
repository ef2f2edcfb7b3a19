"""Events: one record of 48 bytes each, and the same as Python values."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync.errors import ArgumentError

EVENT_DTYPE = np.dtype(
    [
        ("time", "<u8"),
        ("address", "<u8"),
        ("cluster", "<u4"),
        ("shared", "<u4"),
        ("barrier", "<u4"),
        ("phase", "<u4"),
        ("bytes", "<u4"),
        ("rank", "<u2"),
        ("thread", "<u2"),
        ("kind", "<u2"),
        ("other", "<u2"),
        ("sequence", "<u4"),
    ]
)
"""``struct Event`` of the C++ runtime: 48 bytes, little endian."""

NOTHING = 0xFFFFFFFF
"""In ``shared``, ``barrier``, ``sequence``: none. In ``phase``: the phase before phase 0."""

NOBODY = 0xFFFF
"""In ``thread``: the hardware does this, no thread."""

NameOf = Callable[[int], str]
"""Map an offset in shared memory to a name: ``full[2]``."""


class EventKind(enum.IntEnum):
    """Kinds of events. Zero is none of them, so that a record that was never written is found."""

    LOAD_ISSUED = 1
    LOAD_LANDED = 2
    STORE_ISSUED = 3
    STORE_COMMITTED = 4
    STORE_READ = 5
    STORE_WRITTEN = 6
    EXPECT = 7
    ARRIVE = 8
    PHASE_COMPLETED = 9
    WAIT_BEGIN = 10
    WAIT_END = 11
    MMA_ISSUED = 12
    MMA_EXECUTED = 13
    NAMED_ARRIVE = 14
    NAMED_WAIT_END = 15
    CLUSTER_ARRIVE = 16
    CLUSTER_WAIT_END = 17
    THREAD_END = 18
    SIGNAL_POSTED = 19
    SIGNAL_WAIT_END = 20

    @classmethod
    def of(cls, kind: EventKind | str) -> EventKind:
        """Return the kind of this name, in either case.

        >>> EventKind.of("load_landed").name
        'LOAD_LANDED'
        """
        if isinstance(kind, cls):
            return kind
        found = cls.__members__.get(str(kind).upper())
        if found is None:
            known = ", ".join(name.lower() for name in cls.__members__)
            raise ArgumentError.broken(
                "kind", f"{kind!r}", "it must be a kind of event", f"Pass one of: {known}"
            )
        return found


NAMED_KINDS = (EventKind.NAMED_ARRIVE, EventKind.NAMED_WAIT_END)
"""The kinds whose ``barrier`` is the number of a named barrier, not an offset."""

SIGNAL_KINDS = (EventKind.SIGNAL_POSTED, EventKind.SIGNAL_WAIT_END)
"""The kinds whose ``barrier`` is the number of a signal, ``phase`` its epoch, ``other`` its rank.

Of an add on a GPU, ``phase`` is the value. ``sequence`` is the post, or the post that a wait has
seen.
"""

WAIT_ENDS = (
    EventKind.WAIT_END,
    EventKind.NAMED_WAIT_END,
    EventKind.CLUSTER_WAIT_END,
    EventKind.SIGNAL_WAIT_END,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a launch. A field that the event does not have is None.

    ``time`` counts the steps of the cluster's scheduler; clusters do not share a clock. ``block``
    is where it happens, ``barrier_block`` the one whose shared memory holds the barrier; both run
    x, y, z. ``phase`` counts from 0; -1 is the phase that a fresh barrier counts as completed.
    ``sequence`` is the number of the copy or the wgmma in its cluster: a load and its landings
    share one, and so do a post of a signal and the waits that saw it. Of a signal, ``barrier`` is
    its number and ``phase`` the epoch. Of a tcgen05.mma, ``shared`` is D's address in tensor
    memory; a wgmma has none. ``shared_name`` and ``barrier_name`` are names in the source; ``role``
    is what the kernel calls the thread's warp with ``set_role``.
    """

    time: int
    kind: EventKind
    block: tuple[int, int, int]
    cluster: int
    rank: int
    thread: int | None
    role: str | None
    shared: int | None
    shared_name: str | None
    barrier: int | None
    barrier_name: str | None
    barrier_block: tuple[int, int, int]
    phase: int | None
    bytes: int
    sequence: int | None
    address: int | None

    @property
    def warp(self) -> int | None:
        """The warp of the block that does it."""
        return None if self.thread is None else self.thread // 32


def offset_name(offset: int) -> str:
    """Return the name of an offset that has none in the source.

    >>> offset_name(4096)
    'offset 4096'
    """
    return f"offset {offset}"


def readable(
    record: Any,
    block_of: Callable[[int, int], tuple[int, int, int]],
    name_of: NameOf,
    role_of: Callable[[int, int, int], str | None],
) -> Event:
    """Return the event of one record.

    Args:
        record: One element of the array of events.
        block_of: Returns the block of a cluster and a rank.
        name_of: Returns the name of an offset in shared memory.
        role_of: Returns the role of the warp of a cluster, a rank and a thread.
    """
    fields = {name: int(record[name]) for name in EVENT_DTYPE.names or ()}
    kind = EventKind(fields["kind"])
    barrier, phase = _unless(fields["barrier"], NOTHING), fields["phase"]
    shared, thread = _unless(fields["shared"], NOTHING), _unless(fields["thread"], NOBODY)
    return Event(
        time=fields["time"],
        kind=kind,
        block=block_of(fields["cluster"], fields["rank"]),
        cluster=fields["cluster"],
        rank=fields["rank"],
        thread=thread,
        role=None if thread is None else role_of(fields["cluster"], fields["rank"], thread),
        shared=shared,
        shared_name=None if shared is None or kind == EventKind.MMA_ISSUED else name_of(shared),
        barrier=barrier,
        barrier_name=None if barrier is None else barrier_name(kind, barrier, name_of),
        barrier_block=block_of(
            fields["cluster"], fields["rank" if kind in SIGNAL_KINDS else "other"]
        ),
        phase=None if barrier is None else -1 if phase == NOTHING else phase,
        bytes=fields["bytes"],
        sequence=_unless(fields["sequence"], NOTHING),
        address=fields["address"] or None,
    )


def mma_name(shared: int) -> str:
    """Return the instruction of an MMA by ``shared`` of its event."""
    return "wgmma" if shared == NOTHING else "tcgen05.mma"


def barrier_name(kind: int, barrier: int, name_of: NameOf) -> str:
    """Return the name of the barrier of an event of this kind."""
    if kind in SIGNAL_KINDS:
        return f"signal {barrier}"
    return f"named barrier {barrier}" if kind in NAMED_KINDS else name_of(barrier)


def _unless(value: int, none: int) -> int | None:
    return None if value == none else value
