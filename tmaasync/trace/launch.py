"""The events of one launch as a frozen value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, Literal, Self

import numpy as np

from tmaasync._hardware import WARP_THREADS
from tmaasync._kinds import check_integers, is_integer, not_sequences_of_integers, shown
from tmaasync.errors import ArgumentError
from tmaasync.trace.events import (
    EVENT_DTYPE,
    NOBODY,
    Event,
    EventKind,
    NameOf,
    offset_name,
    readable,
)
from tmaasync.trace.roles import WarpRoles

Extents = tuple[int, int, int]
"""Blocks or threads along x, y, z."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaunchEvents:
    """The events of one launch; `Trace` documents the fields."""

    kernel_name: str
    grid: Extents
    block: Extents
    cluster: Extents
    events: np.ndarray[Any, Any]
    name_of: NameOf = offset_name
    unit: Literal["step", "ns"] = "step"
    dropped: int = 0
    blocks_left_out: int = 0
    roles: WarpRoles = field(default_factory=dict)
    device: int | None = None
    rank: int | None = None
    end: int = field(init=False)
    """The time of the last event."""

    def __post_init__(self) -> None:
        """Put the events in order.

        Raises:
            ArgumentError: The events have another dtype, or an unknown kind.
        """
        if self.events.dtype != EVENT_DTYPE:
            raise ArgumentError.broken(
                "events",
                self.events.dtype,
                "it must be EVENT_DTYPE",
                "Use numpy.frombuffer(raw, EVENT_DTYPE)",
                verb="has dtype",
            )
        unknown = set(np.unique(self.events["kind"]).tolist()) - set(EventKind)
        if unknown:
            raise ArgumentError.broken(
                "events",
                f"kinds {sorted(unknown)}",
                f"they must be 1 to {max(EventKind)}",
                "Record with the runtime of this version",
                verb="has",
            )
        order = np.lexsort((self.events["time"], self.events["cluster"]))
        events = self.events[order]
        events.flags.writeable = False
        object.__setattr__(self, "events", events)
        object.__setattr__(self, "end", int(events["time"].max(initial=0)))

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        def role_of(cluster: int, rank: int, thread: int) -> str | None:
            return self.roles.get((cluster, rank, thread // WARP_THREADS))

        return (readable(record, self.block_at, self.name_of, role_of) for record in self.events)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} of {self.kernel_name}: {len(self)} events of {len(self.blocks)} blocks>"

    def of(
        self,
        *,
        cluster: int | None = None,
        block: int | Sequence[int] | None = None,
        kind: EventKind | str | Iterable[EventKind | str] | None = None,
        warp: int | None = None,
    ) -> Self:
        """Return the events of a cluster, a block (x, y, z or number), kinds, or a warp."""
        chosen = np.ones(len(self), bool)
        if cluster is not None:
            chosen &= self.events["cluster"] == cluster
        if block is not None:
            chosen &= self._block_indices() == self.block_index(block)
        if kind is not None:
            kinds = (kind,) if isinstance(kind, (EventKind, str)) else tuple(kind)
            chosen &= np.isin(self.events["kind"], [EventKind.of(each) for each in kinds])
        if warp is not None:
            threads = self.events["thread"]
            chosen &= (threads // WARP_THREADS == warp) & (threads != NOBODY)
        return replace(self, events=self.events[chosen])

    def by_cluster(self) -> Iterator[Self]:
        """Yield one trace per cluster that has events; each cluster has one clock."""
        _, starts = np.unique(self.events["cluster"], return_index=True)
        for events in np.split(self.events, starts[1:]) if len(self) else ():
            yield replace(self, events=events)

    def of_first_blocks(self, count: int) -> Self:
        """Return the events of the clusters of the first ``count`` blocks that have any."""
        check_integers(blocks=count)
        clusters = [self.cluster_of(block) for block in self.blocks[:count]]
        return replace(self, events=self.events[np.isin(self.events["cluster"], clusters)])

    def role_of(self, block: int | Sequence[int], warp: int) -> str | None:
        """Return the role that the kernel gave a warp of a block; None without one."""
        at = self.block_at_index(self.block_index(block))
        x, y, z = (i % size for i, size in zip(at, self.cluster, strict=True))
        rank = x + self.cluster[0] * (y + self.cluster[1] * z)
        return self.roles.get((self.cluster_of(block), rank, warp))

    @property
    def peer_label(self) -> str:
        """The rank of a launch with signals, else its device; "" without one."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return "" if self.device is None else f"device {self.device}"

    @property
    def peer(self) -> int | None:
        """The rank or device among launches that ran together; None for one that ran alone."""
        if self.rank is not None:
            return self.rank
        return self.device if self.unit == "step" else None

    @property
    def blocks(self) -> tuple[Extents, ...]:
        """The blocks that have events."""
        return tuple(map(self.block_at_index, np.unique(self._block_indices()).tolist()))

    def block_at(self, cluster: int, rank: int) -> Extents:
        """Return the block (x, y, z) of this rank in the cluster of this number."""
        clusters = [blocks // size for blocks, size in zip(self.grid, self.cluster, strict=True)]
        at = zip(_unfolded(cluster, clusters), _unfolded(rank, self.cluster), strict=True)
        x, y, z = (
            place * size + within for (place, within), size in zip(at, self.cluster, strict=True)
        )
        return x, y, z

    def block_at_index(self, index: int) -> Extents:
        """Return the block (x, y, z) of this number, x fastest."""
        return _unfolded(index, self.grid)

    def block_index(self, block: int | Sequence[int]) -> int:
        """Return the number of a block, x fastest."""
        if is_integer(block):
            inside = 0 <= block < self.grid[0] * self.grid[1] * self.grid[2]
            index = block
        else:
            ArgumentError.raise_for(not_sequences_of_integers(block=block))
            given: Any = block
            at = (*given, 0, 0, 0)[:3]
            inside = len(given) > 0 and all(0 <= i < n for i, n in zip(at, self.grid, strict=True))
            index = at[0] + self.grid[0] * (at[1] + self.grid[1] * at[2])
        if not inside:
            raise ArgumentError.broken(
                "block",
                block,
                f"the grid has {' x '.join(map(str, self.grid))} blocks",
                "Pass its x, y, z or its number, from 0",
            )
        return index

    def cluster_of(self, block: int | Sequence[int]) -> int:
        """Return the number of the cluster that has this block."""
        at = self.block_at_index(self.block_index(block))
        x, y, z = (i // size for i, size in zip(at, self.cluster, strict=True))
        nx, ny = (self.grid[dim] // self.cluster[dim] for dim in (0, 1))
        return x + nx * (y + ny * z)

    def _block_indices(self) -> np.ndarray[Any, Any]:
        ranks = self.cluster[0] * self.cluster[1] * self.cluster[2]
        keys = self.events["cluster"].astype(np.int64) * ranks + self.events["rank"]
        distinct, inverse = np.unique(keys, return_inverse=True)
        numbers = [
            self.block_index(self.block_at(*divmod(key, ranks))) for key in distinct.tolist()
        ]
        return np.array(numbers, np.int64)[inverse]


def _unfolded(index: int, extents: Sequence[int]) -> Extents:
    rest, x = divmod(index, extents[0])
    z, y = divmod(rest, extents[1])
    return x, y, z


def check_trace(trace: object, kinds: type | UnionType = LaunchEvents) -> None:
    """Refuse an object that is no trace.

    Raises:
        ArgumentError: It is named, with its value.
    """
    if not isinstance(trace, kinds):
        rule, remedy = "it must be a trace of a launch", "Pass what trace.record() kept"
        raise ArgumentError.broken("trace", shown(trace), rule, remedy)
