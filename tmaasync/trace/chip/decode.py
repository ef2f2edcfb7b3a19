"""From the bytes of device memory to a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tmaasync.trace.chip.events import events_of
from tmaasync.trace.chip.layout import WARP_DTYPE, Layout
from tmaasync.trace.chip.notes import Places, read
from tmaasync.trace.events import NameOf, offset_name
from tmaasync.trace.roles import WarpRoles, role_name
from tmaasync.trace.trace import Trace

__all__ = ["ChipLaunch", "decode"]

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


def decode(raw: bytes, layout: Layout, launch: ChipLaunch, usual_cycle_ns: float) -> Trace:
    """Return the trace of a launch on the chip.

    Args:
        raw: All of the device memory that ``layout`` describes.
        layout: The same that the launch had.
        launch: What was launched.
        usual_cycle_ns: A cycle of an SM in nanoseconds, at its usual clock.
    """
    places = Places.of(launch.grid, launch.cluster, layout.blocks)
    notes, dropped = read(raw, layout, places, launch.shared_bytes, usual_cycle_ns)
    return Trace(
        kernel_name=launch.kernel_name,
        device=launch.device,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        events=events_of(notes),
        name_of=launch.name_of,
        roles=_roles(raw, layout, places),
        unit="ns",
        dropped=dropped,
        blocks_left_out=math.prod(launch.grid) - layout.blocks,
    )


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
