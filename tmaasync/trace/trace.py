"""The trace of one launch: its events, their summary, and the file that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tmaasync.errors import ArgumentError
from tmaasync.trace.launch import LaunchEvents
from tmaasync.trace.saved import document_of
from tmaasync.trace.summary import Summary, summarize


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Trace(LaunchEvents):
    """The events of one launch, in the order of its clocks.

    ``events`` is an array of `EVENT_DTYPE`, cluster by cluster and each in the order of its clock;
    iterating gives `Event` objects instead. ``grid``, ``block`` and ``cluster`` run x, y, z.
    ``name_of`` gives an offset in shared memory its name. ``roles`` has what the kernel calls its
    warps with ``set_role``, by cluster, rank in the cluster, and warp; `role_of` looks one up.

    ``device`` is the ordinal of the device; None for the emulator outside of `emulate.devices`.
    ``rank`` is the rank whose `Signals` the launch was given; None without them.

    On the emulator ``unit`` is ``"step"``: times count the steps of the cluster's scheduler, and
    clusters do not share a clock. Inside `emulate.devices` waits set the clocks: the wait for a
    signal ends after its post, and a launch begins after the one before it. On the GPU ``unit`` is
    ``"ns"``, and all blocks share a clock, within one tick of the global timer. So do launches with
    `Signals` that ran together; signals set the timers of several GPUs right. Records go to memory
    of bounded size: ``dropped`` counts the records without room, all later than the last event of
    their cluster, and ``blocks_left_out`` the blocks at the end of the grid that were not recorded.
    """

    def summary(self) -> Summary:
        """Summarise who waits for whom, and for how much of the time.

        Raises:
            ArgumentError: There are no events.
        """
        if not len(self):
            raise ArgumentError(
                f"trace of {self.kernel_name} has no events. Pass one of a kernel that loads, "
                "stores or waits by this library's headers."
            )
        return summarize(self)

    def to_json(self, *, blocks: int | None = None) -> str:
        """Return the launch in the trace-event format of Chrome and Perfetto.

        A step becomes a microsecond. With ``blocks`` only the first ``blocks`` are drawn; the file
        has the events of all, for `load`.
        """
        return document_of((self,), blocks)

    def save(self, path: str | Path, *, blocks: int | None = None) -> None:
        """Write `to_json`; open the file with https://ui.perfetto.dev, or with `load`."""
        Path(path).write_text(self.to_json(blocks=blocks), encoding="utf-8")
