"""Operations of several GPUs: a list of arrays, one per rank, and the memory that ranks share."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._elements import Element, element
from tmaasync._forks import Lock
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._kinds import is_sequence, shown
from tmaasync.errors import ArgumentError, LaunchError, Violation
from tmaasync.kernel import ArrayMemory, Backend, BoundCall, Launch, backend_of
from tmaasync.kernel.device import no_access
from tmaasync.ops._allocation import empty, fill, in_order
from tmaasync.ops._call_cache import CallCache, clear_on_forget
from tmaasync.ops._layouts import Layout, padded_row_bytes
from tmaasync.signal import Signals
from tmaasync.tile import TMATensorTile, create_tma_tile

MAX_RANKS = 8
"""The largest number of ranks; all_gather.cu has a parameter for each."""

# Mirrors of the constants and the struct in kernels/shards.cuh.
_UNIT_ROWS = 64
_UNIT_BYTES = 1024
_SHARDS = struct.Struct("<17i2i")

PUSH_ROW_BYTES = _UNIT_BYTES // 4
"""Bytes of a row of a push tile, the stage of the ring from which a CTA pushes."""


# --- lists of arrays --------------------------------------------------------------------------


def views_of(
    name: str, arrays: Any, count: int | None = None, held: Element | None = None
) -> list[ArrayView]:
    """Return the views of a list of arrays, one per rank; ``held``: read as this type."""
    ranks = f"1 to {MAX_RANKS}" if count is None else str(count)
    if not is_sequence(arrays) or len(arrays) not in range(1, MAX_RANKS + 1):
        given = f"{len(arrays)} arrays" if is_sequence(arrays) else shown(arrays)
    elif count not in {None, len(arrays)}:
        given = f"{len(arrays)} arrays"
    else:
        return [
            _arrays.view(one, dtype=held, argument=f"{name}[{rank}]")
            for rank, one in enumerate(arrays)
        ]
    rule = f"it must be a list of {ranks} arrays, one for each rank"
    raise ArgumentError.broken(name, given, rule, "Pass an array for each rank")


class RankGroup(Protocol):
    """The process group in which this process runs one rank."""

    rank: int
    kept: dict[Hashable, Any]
    """What operations keep for their later calls, as long as the group exists."""

    @property
    def stream(self) -> Any:
        """The current stream of this rank."""

    def shared(self, shape: tuple[int, ...], kind: str) -> list[ArrayView]:
        """Return a new array of zeros of every rank, as this process reaches it: collective."""

    def ready(self) -> None:
        """Wait, after the first call of a kind, until all ranks have prepared their launches."""


class Ranks(NamedTuple):
    """The device and the stream of each rank.

    Attributes:
        memories: The devices; in a process group this process's own, for each rank.
        given: The streams; none in a process group, which knows the current one.
        group: The process group whose rank this process runs; None where it runs all ranks. Then
            the lists of views of an operation hold stand-ins for the other ranks' arrays.
    """

    memories: tuple[ArrayMemory, ...]
    given: tuple[Any, ...]
    group: RankGroup | None = None

    @property
    def streams(self) -> tuple[Any, ...]:
        return self.given if self.group is None else (self.group.stream,) * len(self)

    @property
    def local(self) -> Sequence[int]:
        """The ranks that this process runs."""
        return range(len(self)) if self.group is None else (self.group.rank,)

    @property
    def kept(self) -> dict[Hashable, Any]:
        """What operations keep for these ranks, as long as their devices exist."""
        return self.memories[0].kept if self.group is None else self.group.kept

    @classmethod
    def of(cls, name: str, views: Sequence[ArrayView], streams: Any) -> Ranks:
        """Return the ranks of a list of arrays.

        Args:
            name: The argument's name.
            views: One array per rank.
            streams: The caller's; None for the current stream of each array's framework.
        """
        given = [None] * len(views) if streams is None else streams
        if not is_sequence(given) or len(given) != len(views):
            rule = f"{name} has {len(views)} arrays, and each rank has a stream"
            raise ArgumentError.broken(
                "streams", shown(streams), rule, "Pass a list of that length"
            )
        backends = [backend_of(view.device) for view in views]
        handles = [
            backend.stream((view.framework,), stream)
            for backend, view, stream in zip(backends, views, given, strict=True)
        ]
        memories = [backend.memory_of(view) for backend, view in zip(backends, views, strict=True)]
        ranks = cls(tuple(memories), tuple(handles))
        if len(ranks) > 1:
            ArgumentError.raise_for(ranks._misfits(name, views))
            LaunchError.raise_for(ranks._without_access(name, backends[0]))
        return ranks

    def _misfits(self, name: str, views: Sequence[ArrayView]) -> Iterator[Violation]:
        if len({view.is_on_host for view in views}) > 1:
            rule = "all ranks run on GPUs, or all on emulated devices"
            given = ", ".join(memory.location for memory in self.memories)
            yield Violation(name, f"a list of arrays on {given}", rule, "Move some of the arrays")
            return
        pairs = list(zip(self.memories, self.streams, strict=True))
        for rank, (memory, pair) in enumerate(zip(self.memories, pairs, strict=True)):
            first = pairs.index(pair)
            if memory.ordinal is None:
                rule = "ranks run at once, on a device each"
                remedy = "Make the arrays on the devices of emulate.devices, inside its with"
            elif first != rank:
                rule = f"rank {first} has the same device and stream, and ranks run at once"
                remedy = "Pass arrays of different GPUs, or streams="
            else:
                continue
            yield Violation(f"{name}[{rank}]", f"on {memory.location}", rule, remedy)

    def _without_access(self, name: str, backend: Backend) -> Iterator[Violation]:
        """Yield the arrays on devices to whose memory another rank's device has no access."""
        ordinals = [memory.ordinal for memory in self.memories if memory.ordinal is not None]
        devices = sorted(set(ordinals))
        for rank, peer in enumerate(ordinals):
            for device in devices:
                if device != peer and not backend.has_peer_access(device, peer):
                    yield no_access(f"{name}[{rank}]", device, peer, devices)
                    break

    def __len__(self) -> int:  # of ranks, not of fields
        return len(self.memories)

    @property
    def calls(self) -> CallCache:
        """The operations of these ranks, as long as their devices exist."""
        key = (CallCache, self)
        found: CallCache | None = self.kept.get(key)
        if found is None:
            found = self.kept[key] = CallCache()
        return found

    def sharing(self, rank: int) -> int:
        """Return how many ranks of this process share the device of a rank."""
        return 1 if self.group else self.memories.count(self.memories[rank])

    def misplaced(self, name: str, views: Sequence[ArrayView], others: str) -> Iterator[Violation]:
        """Yield the arrays that are not on their rank's device."""
        for rank, (view, mine) in enumerate(zip(views, self.memories, strict=True)):
            memory = backend_of(view.device).memory_of(view)
            if memory is not mine:
                rule = f"{others}[{rank}] is on {mine.location}, and a rank has one device"
                remedy = "Pass an array of that device"
                yield Violation(f"{name}[{rank}]", f"on {memory.location}", rule, remedy)


def array_on(
    memory: ArrayMemory, like: ArrayView, shape: tuple[int, ...], kind: str | None = None
) -> Any:
    """Return an uninitialised array in the memory of a device, its rows 16 bytes apart or more."""
    held = like.element if kind is None else element(kind)
    *outer, columns = shape
    padded = padded_row_bytes(columns, held) // held.itemsize
    whole = memory.array(empty(like, (*outer, padded), held))
    return whole if padded == columns else whole[..., :columns]


def new_rows(memory: ArrayMemory, like: ArrayView, shape: tuple[int, ...]) -> Any:
    """Return an uninitialised array that TMA can move: contiguous if its bytes allow it."""
    is_whole = math.prod(shape) * like.element.itemsize % TMA_ALIGNMENT == 0
    rows = 1 if is_whole else shape[0]
    return array_on(memory, like, (rows, math.prod(shape) // max(rows, 1))).reshape(shape)


def as_rows(view: ArrayView) -> ArrayView:
    """Return the array as a matrix whose columns are the elements of all other dimensions."""
    itemsize = view.element.itemsize
    columns = math.prod(view.shape[1:])
    pitch = view.strides_bytes[0] if view.shape[0] > 1 else columns * itemsize
    return view._replace(shape=(view.shape[0], columns), strides_bytes=(pitch, itemsize))


def unmovable(arrays: Mapping[str, Sequence[ArrayView]]) -> Iterator[Violation]:
    """Yield the arrays whose rows TMA cannot move, from lists by the names of their arguments."""
    for name, views in arrays.items():
        for rank, view in enumerate(views):
            if view.is_empty or view.ndim < 2 or _is_in_rows(view):
                continue
            rule = (
                f"TMA moves rows of contiguous elements, whose address, distance and bytes are "
                f"multiples of {TMA_ALIGNMENT}"
            )
            given = f"at {view.address:#x}, strides {view.strides_bytes} bytes, shape {view.shape}"
            yield Violation(
                f"{name}[{rank}]", given, rule, "Pass a contiguous copy, or pad the rows"
            )


def _is_in_rows(view: ArrayView) -> bool:
    row = view._replace(shape=(1, *view.shape[1:]))
    return is_contiguous(row) and Layout.of(as_rows(view)).in_stored_rows() is not None


def even_shards(rows: int, ranks: int) -> list[int]:
    """Divide rows, which may be symbolic: the first ``rows % ranks`` ranks have one more."""
    return [(rows + ranks - 1 - rank) // ranks for rank in range(ranks)]


# --- shards -----------------------------------------------------------------------------------


class Shards(NamedTuple):
    """The rows of every rank's shard of a matrix, and the bytes of a row.

    Attributes:
        is_reversed: The last rank's shard comes first. All have equally many rows.
    """

    rows: tuple[int, ...]
    columns: int
    itemsize: int
    is_reversed: bool = False

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each shard, then the number of rows of the matrix."""
        return (0, *itertools.accumulate(self.rows))

    @property
    def total_rows(self) -> int:
        return sum(self.rows)

    def units(self, rank: int) -> int:
        """Return the number of units of a shard: each has a signal."""
        columns = -(-self.columns * self.itemsize // _UNIT_BYTES)
        return -(-self.rows[rank] // _UNIT_ROWS) * columns

    @property
    def max_units(self) -> int:
        return max(map(self.units, range(len(self.rows))))

    def argument(self, slots: int) -> bytes:
        """Return the bytes of the kernel parameter."""
        starts = self.starts
        padding = itertools.repeat(0, 17 - len(starts))
        return _SHARDS.pack(*starts, *padding, self.columns, slots)

    def part(self, whole: ArrayView, rank: int) -> ArrayView:
        """Return the rows of a rank in the matrix; all rows if it has none, for an unused tile."""
        if not self.rows[rank]:
            return whole
        number = len(self.rows) - 1 - rank if self.is_reversed else rank
        address = whole.address + self.starts[number] * whole.strides_bytes[0]
        return pinned(whole, address, shape=(self.rows[rank], self.columns))


def pinned(whole: ArrayView, address: int, **layout: Any) -> ArrayView:
    """Return a view of a part of an array, which cannot move while the view exists."""
    return whole._replace(address=address, lease=whole.owner, **layout)


def push_tile(view: ArrayView, rows: int) -> TMATensorTile:
    return create_tma_tile(view, (rows, PUSH_ROW_BYTES // view.element.itemsize))


# --- shared memory ----------------------------------------------------------------------------


class Workspace:
    """The memory in which ranks exchange data: signals, round counters, and a buffer for each.

    It is never freed while its devices exist, so that CUDA graphs may hold its addresses; a larger
    problem gets another one. All launches that use it run in the order of the ranks' streams.

    Attributes:
        ranks: Devices and streams.
        signals: The ranks' own signals, then ``slots`` signals for each rank's shard.
        rounds: Per rank of this process the round counter.
        halves: Per rank two buffers of bytes, which rounds use in turn; or one, for kernels that
            reach it only after its rank has entered the round.
        calls: The operations that use this memory.
        lock: Held while the ranks of a call are launched, so that all have the same order of calls.
    """

    def __init__(
        self, ranks: Ranks, like: Sequence[ArrayView], slots: int, half_bytes: int, halves: int
    ) -> None:
        """Allocate; on GPUs this waits for all work of their devices."""
        self.ranks = ranks
        self.slots = slots
        self._keep: list[Any] = []
        count = len(ranks) * (1 + slots)
        self.signals = Signals(self._shared(like, (count,), "int32", is_zero=True))
        self.rounds = self._each(like, (1,), "int64", is_zero=True)
        buffers = self._shared(like, (halves, half_bytes), "uint8") if half_bytes else []
        self.halves = [
            [pinned(view, view.address + half * half_bytes) for half in range(halves)]
            for view in buffers
        ]
        self.calls = CallCache()
        self.lock = Lock()
        # A peer must not post before the signals are zero.
        for device in {view.device for view in like if view.device is not None}:
            _driver.synchronize_device(device)

    def _each(
        self, like: Sequence[ArrayView], shape: tuple[int, ...], kind: str, *, is_zero: bool = False
    ) -> list[ArrayView]:
        """Return an array of this shape in the memory of every rank."""
        found = []
        for memory, view, stream in zip(self.ranks.memories, like, self.ranks.streams, strict=True):
            with in_order(view.framework, view.device, stream):
                array = memory.array(empty(view, shape, element(kind)))
                own = _arrays.view(array)
                if is_zero:
                    fill(own, 0)
            self._keep.append(array)
            found.append(own)
        return found

    def _shared(
        self, like: Sequence[ArrayView], shape: tuple[int, ...], kind: str, *, is_zero: bool = False
    ) -> list[ArrayView]:
        """Return an array of this shape of every rank, at the addresses of this process."""
        group = self.ranks.group
        if group is None:
            return self._each(like, shape, kind, is_zero=is_zero)
        return group.shared(shape, kind)

    def keep(self, memory: object) -> None:
        """Keep memory as long as the workspace."""
        self._keep.append(memory)

    @classmethod
    def of(
        cls,
        ranks: Ranks,
        like: Sequence[ArrayView],
        slots: int,
        half_bytes: int = 0,
        *,
        halves: int = 2,
    ) -> Workspace:
        """Return a workspace with at least this room; calls of similar sizes share it."""
        slots, half_bytes = _power_of_two(slots), half_bytes and _power_of_two(half_bytes)
        key = (cls, ranks, slots, half_bytes, halves)
        found: Workspace | None = ranks.kept.get(key)
        if found is None:
            found = ranks.kept[key] = cls(ranks, like, slots, half_bytes, halves)
        found.signals.check()
        return found

    def matrix(
        self, rank: int, half: int, shape: tuple[int, int], held: Element, offset_bytes: int = 0
    ) -> ArrayView:
        """Return a part of a half of a rank's buffer as a matrix with padded rows."""
        buffer = self.halves[rank][half]
        padded = Layout(shape, (0, 0), held, buffer.device).padded()
        return pinned(
            buffer,
            buffer.address + offset_bytes,
            shape=shape,
            strides_bytes=padded.strides_bytes,
            element=held,
        )


def _power_of_two(count: int) -> int:
    """Return the least power of two that is at least ``count`` and 256."""
    return 1 << max(8, (count - 1).bit_length())


RankedAddresses = Sequence[Sequence[int]] | Mapping[int, Any]
"""By rank."""


class RankedLaunches(NamedTuple):
    """The launches of this process's ranks; nothing is allocated or compiled after the first.

    Attributes:
        launches: By rank.
        group: The process group of the ranks, if any.
    """

    launches: Mapping[int, Launch]
    group: RankGroup | None

    @classmethod
    def prepared(
        cls, workspace: Workspace, prepare: Callable[[int], tuple[Any, object]]
    ) -> RankedLaunches:
        """Prepare the launches by rank; ``prepare`` also returns the memory that one reads.

        The workspace keeps that memory, because CUDA graphs may hold its addresses.
        """
        both = {rank: prepare(rank) for rank in workspace.ranks.local}
        for launch, memory in both.values():
            launch.release()
            workspace.keep(memory)
        return cls({rank: launch for rank, (launch, _) in both.items()}, workspace.ranks.group)

    def run(self, addresses: RankedAddresses, streams: Sequence[Any]) -> None:
        """Launch with the addresses and streams of each rank.

        In a first call this waits for all ranks, so the kernels of none wait for a compiler:
        prepare whatever else the call launches before.
        """
        if self.group is not None:
            self.group.ready()
        for rank, launch in self.launches.items():
            launch.launch_at(addresses[rank], streams[rank])

    def bind(self, addresses: RankedAddresses, streams: Sequence[int]) -> list[BoundCall]:
        """Return calls that launch with these addresses on these streams of GPUs."""
        return [
            launch.bind(addresses[rank], streams[rank]) for rank, launch in self.launches.items()
        ]


class RankedCall(NamedTuple):
    """Prepared launches of one call, their addresses, and the memory that ranks share."""

    workspace: Workspace
    launches: RankedLaunches
    addresses: RankedAddresses

    def run(self) -> None:
        with self.workspace.lock:
            self.launches.run(self.addresses, self.workspace.ranks.streams)


# --- repeated calls ---------------------------------------------------------------------------

MAX_CALLS = 1024


class RepeatedCalls:
    """Calls on GPUs by the addresses and layouts of all their arrays.

    A call with the arrays of an earlier one needs none of its checks, but the streams'. It holds no
    arrays: one at the same address with the same layout is as good.
    """

    def __init__(self) -> None:
        self._calls: dict[object, tuple[Workspace, list[BoundCall], tuple[str, ...]]] = {}
        clear_on_forget(self)

    def clear(self) -> None:
        self._calls.clear()

    @staticmethod
    def _key(lists: Sequence[Any], option: object) -> object:
        """Return None where a list or an array has no key."""
        if not all(isinstance(one, list | tuple) for one in lists):
            return None
        prints = [_arrays.fingerprint(one) for arrays in lists for one in arrays]
        return None if None in prints else (*map(len, lists), *prints, option)

    def run(self, lists: Sequence[Any], streams: Any, option: Hashable = None) -> bool:
        """Repeat the call, if there was one.

        Args:
            lists: The lists of arrays, outputs last.
            streams: As in the call.
            option: What else the call depends on.
        """
        found = self._calls.get(self._key(lists, option))
        if found is None:
            return False
        workspace, calls, frameworks = found
        ranks = workspace.ranks
        given = [None] * len(ranks) if streams is None else streams
        if not is_sequence(given) or len(given) != len(ranks):
            return False
        for device, framework, stream, handle in zip(
            ranks.memories, frameworks, given, ranks.streams, strict=True
        ):
            if backend_of(device.ordinal).stream((framework,), stream) != handle:
                return False
        workspace.signals.check()
        with workspace.lock:
            for call in calls:
                call()
        return True

    def remember(
        self,
        lists: Sequence[Any],
        workspace: Workspace,
        launches: RankedLaunches,
        addresses: RankedAddresses,
        frameworks: Iterable[str],
        option: Hashable = None,
    ) -> None:
        key = self._key(lists, option)
        if key is None:
            return
        if len(self._calls) >= MAX_CALLS:
            self._calls.clear()
        calls = launches.bind(addresses, workspace.ranks.streams)
        self._calls[key] = workspace, calls, tuple(frameworks)
