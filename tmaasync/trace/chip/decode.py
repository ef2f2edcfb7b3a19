"""From the bytes of device memory to traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tmaasync._source.names import role_name
from tmaasync.trace.chip.events import events_of
from tmaasync.trace.chip.layout import WARP_DTYPE, Layout
from tmaasync.trace.chip.notes import Places, read
from tmaasync.trace.chip.signals import follow_signals, late_by
from tmaasync.trace.events import NameOf, offset_name
from tmaasync.trace.roles import WarpRoles
from tmaasync.trace.trace import Trace

_Extents = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLaunch:
    """A launch. Extents run x, y, z; the dynamic shared memory is the plain launch's."""

    kernel_name: str
    grid: _Extents
    block: _Extents
    cluster: _Extents
    shared_bytes: int
    name_of: NameOf = offset_name
    device: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class RawTrace:
    """What a launch left in device memory.

    Attributes:
        raw: All of the device memory that ``layout`` describes.
        layout: The same that the launch had.
        launch: What was launched.
        usual_cycle_ns: A cycle of an SM in nanoseconds, at its usual clock.
    """

    raw: bytes
    layout: Layout
    launch: ChipLaunch
    usual_cycle_ns: float


def decode(together: Sequence[RawTrace]) -> list[Trace]:
    """Return the traces of launches that ran together; their times start at the first event."""
    places = [Places.of(one.launch.grid, one.launch.cluster, one.layout.blocks) for one in together]
    found = [
        read(one.raw, one.layout, of_launch, one.launch.shared_bytes, one.usual_cycle_ns)
        for one, of_launch in zip(together, places, strict=True)
    ]
    first_ns = min((began for notes, _, began in found if len(notes)), default=0)
    launches = [notes.later_by(began - first_ns) for notes, _, began in found]
    posts, seen = follow_signals(launches)
    delays = late_by([one.launch.device for one in together], seen)
    first = min(
        (
            delay + notes.began.min()
            for notes, delay in zip(launches, delays, strict=True)
            if len(notes)
        ),
        default=0.0,
    )
    return [
        Trace(
            kernel_name=one.launch.kernel_name,
            device=one.launch.device,
            rank=one.launch.rank,
            grid=one.launch.grid,
            block=one.launch.block,
            cluster=one.launch.cluster,
            events=events_of(notes.later_by(delay - first), numbers),
            name_of=one.launch.name_of,
            roles=_roles(one.raw, one.layout, of_launch),
            unit="ns",
            dropped=dropped,
            blocks_left_out=math.prod(one.launch.grid) - one.layout.blocks,
        )
        for one, of_launch, notes, (_, dropped, _), numbers, delay in zip(
            together, places, launches, found, posts, delays, strict=True
        )
    ]


def _roles(raw: bytes, layout: Layout, places: Places) -> WarpRoles:
    """Return what the kernel calls its warps."""
    warps = np.frombuffer(raw, WARP_DTYPE, layout.warps)
    named = np.flatnonzero(warps["role"] != b"")
    roles: WarpRoles = {}
    for index in named.tolist():
        block, warp = divmod(index, layout.warps_per_block)
        role = role_name(warps["role"][index], int(warps["role_number"][index]))
        if role is not None:
            roles[int(places.clusters[block]), int(places.ranks[block]), warp] = role
    return roles
