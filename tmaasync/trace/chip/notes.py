"""Notes as columns: one element per record, in the order of warps and of each warp."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from tmaasync._hardware import WARP_THREADS
from tmaasync.trace.chip.clock import ChipClock, cycles_of
from tmaasync.trace.chip.layout import RECORD_DTYPE, WARP_DTYPE, Layout, RecordKind

_Array = np.ndarray[Any, Any]
_ALIGNMENT = 1024
_SHARED_WINDOW = (1 << 24) - 1
_RESERVED_BYTES = 1024  # of every block, below its static variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Cluster and rank of the blocks of a launch, by their number."""

    clusters: _Array
    ranks: _Array

    @classmethod
    def of(cls, grid: tuple[int, int, int], cluster: tuple[int, int, int], blocks: int) -> Places:
        """Return the places of the first blocks of a grid."""
        index = np.arange(blocks)
        at = (index % grid[0], index // grid[0] % grid[1], index // grid[0] // grid[1])
        sides = [whole // part for whole, part in zip(grid, cluster, strict=True)]
        x, y, z = (i // size for i, size in zip(at, cluster, strict=True))
        rx, ry, rz = (i % size for i, size in zip(at, cluster, strict=True))
        return cls(
            clusters=x + sides[0] * (y + sides[1] * z),
            ranks=rx + cluster[0] * (ry + cluster[1] * rz),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Columns. Times are nanoseconds; ``began`` is a wait's begin; for others the same as ``end``.

    ``barrier`` and ``shared`` are offsets in shared memory, static variables following the
    dynamic ones. ``home`` is the rank of the barrier's block. Of a signal ``barrier`` is its
    number, ``home`` its rank among devices, and ``amount`` the epoch or the added value.
    """

    kind: _Array
    cluster: _Array
    rank: _Array
    thread: _Array
    began: _Array
    end: _Array
    barrier: _Array
    shared: _Array
    home: _Array
    parity: _Array
    is_ready: _Array
    number: _Array
    amount: _Array

    def __len__(self) -> int:
        return len(self.kind)

    def where(self, chosen: _Array) -> Notes:
        """Return the chosen notes."""
        return Notes(**{each.name: getattr(self, each.name)[chosen] for each in fields(self)})

    def later_by(self, delay_ns: float) -> Notes:
        """Return the notes with other times."""
        return replace(self, began=self.began + delay_ns, end=self.end + delay_ns)


_WAITS = (
    RecordKind.WAIT,
    RecordKind.STORE_WAIT_READ,
    RecordKind.STORE_WAIT,
    RecordKind.MMA_WAIT,
    RecordKind.NAMED_WAIT,
    RecordKind.CLUSTER_WAIT,
)
_NAMED = (RecordKind.NAMED_ARRIVE, RecordKind.NAMED_WAIT)
_SIGNALS = (
    RecordKind.SIGNAL_WAIT_BEGIN,
    RecordKind.SIGNAL_WAIT,
    RecordKind.SIGNAL_GIVEN_UP,
    RecordKind.SIGNAL_POST,
    RecordKind.SIGNAL_ADD,
)


def read(
    raw: bytes, layout: Layout, places: Places, shared_bytes: int, usual_cycle_ns: float
) -> tuple[Notes, int, int]:
    """Return the notes of a launch, how many are left out, and the chip's time of the first one.

    Where a warp had no room for more, what the rest of its cluster did afterwards is left out too:
    it would not fit together. Times start at the first note.
    """
    warps = np.frombuffer(raw, WARP_DTYPE, layout.warps)
    whole = np.frombuffer(raw, RECORD_DTYPE, offset=layout.records_offset)
    whole = whole.reshape(layout.records_shape)
    records, beyond = whole[:, :-1], whole[:, -1]
    used = np.flatnonzero(records["what"][:, 0])
    if not len(used):
        return _nothing(), 0, 0
    clock = ChipClock.of(warps[used], usual_cycle_ns)
    notes, first = _columns(records[used], warps[used], used, layout, places, shared_bytes, clock)
    full = np.flatnonzero(beyond["what"])
    dropped = beyond["more"][full].astype(np.int64) + 1 - layout.records_per_warp
    is_cut = _is_cut(notes, full, layout, places)
    left_out = int(dropped.sum()) + int(is_cut.sum())
    return notes.where(~is_cut), left_out, clock.origin_ns + round(first)


def _columns(
    records: _Array,
    warps: _Array,
    numbers: _Array,
    layout: Layout,
    places: Places,
    shared_bytes: int,
    clock: ChipClock,
) -> tuple[Notes, float]:
    """Return the notes, and the time of the first one by this clock."""
    noted = records["what"] != 0
    row = np.nonzero(noted)[0]
    what, where, more = (
        records[name][noted].astype(np.int64) for name in ("what", "where", "more")
    )
    kind = what & 31
    cycles = cycles_of(records, warps)[noted]
    waited = np.where(np.isin(kind, _WAITS), (cycles - more) & 0xFFFFFFFF, 0)
    end = clock.times_ns(cycles, warps["processor"][row])
    first = (end - waited * clock.cycle_ns).min()
    block = numbers[row] // layout.warps_per_block
    barrier, shared = (where & 0xFFFF) * 8, (where >> 16) * 16
    # The upper bits of a shared address are the rank of its block.
    base = warps["dynamic_shared"][row].astype(np.int64) & _SHARED_WINDOW
    notes = Notes(
        kind=kind,
        cluster=places.clusters[block],
        rank=places.ranks[block],
        thread=numbers[row] % layout.warps_per_block * WARP_THREADS + (what >> 5 & 31),
        began=end - waited * clock.cycle_ns - first,
        end=end - first,
        barrier=np.select(
            [np.isin(kind, _NAMED), np.isin(kind, _SIGNALS)],
            [where & 0xFFFF, where],
            _offsets(barrier, base, shared_bytes),
        ),
        shared=_offsets(shared, base, shared_bytes),
        home=what >> 12 & 15,
        parity=what >> 10 & 1,
        is_ready=what >> 11 & 1 != 0,
        number=what >> 16,
        amount=more,
    )
    return notes, float(first)


def _offsets(addresses: _Array, base: _Array, shared_bytes: int) -> _Array:
    """Return offsets as the emulator counts them: static variables after the dynamic memory."""
    static_start = -(-shared_bytes // _ALIGNMENT) * _ALIGNMENT
    offsets: _Array = np.where(
        addresses >= base, addresses - base, static_start + addresses - _RESERVED_BYTES
    )
    return offsets


def _is_cut(notes: Notes, full: _Array, layout: Layout, places: Places) -> _Array:
    """Mark notes after the last one of a full warp in the same cluster."""
    blocks, warps = np.divmod(full, layout.warps_per_block)
    clusters = places.clusters[blocks]
    keys = _warp_keys(clusters, places.ranks[blocks], warps)
    order = np.argsort(keys)
    of_note = _warp_keys(notes.cluster, notes.rank, notes.thread // WARP_THREADS)
    which = np.searchsorted(keys[order], of_note)
    is_full = np.isin(of_note, keys)
    last = np.zeros(len(full))
    np.maximum.at(last, which[is_full], notes.end[is_full])
    until = np.full(int(places.clusters.max()) + 1, np.inf)
    np.minimum.at(until, clusters[order], last)
    cut: _Array = notes.end > until[notes.cluster]
    return cut


def _warp_keys(clusters: _Array, ranks: _Array, warps: _Array) -> _Array:
    keys: _Array = (clusters << 16 | ranks) << 16 | warps
    return keys


def _nothing() -> Notes:
    return Notes(**{each.name: np.empty(0, np.int64) for each in fields(Notes)})
