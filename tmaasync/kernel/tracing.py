"""The link to tracing: kernels hand it their traced builds, and import it with the first trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tmaasync._collectors import (
    NOTES_PER_WARP,
    CollectorOf,
    TraceCollector,
    current_collector,
)
from tmaasync._driver import LaunchConfig, Tracer
from tmaasync._forks import cached_property
from tmaasync._source.compile import Source
from tmaasync.kernel.launch import Loaded
from tmaasync.kernel.ranks import RankArgument


class TracedBuild(NamedTuple):
    """The traced build of one kernel on one device.

    Attributes:
        source: The kernel's source.
        name: The entry function.
        device: The ordinal of the device.
        load: Loads the build once; the device's context is current.
        collector_of: Returns the trace collector that is current at launch time.
        own_module: Returns a loaded module that no other launch uses.
        spare: Takes a module of ``own_module`` back.
    """

    source: Source
    name: str
    device: int
    load: Callable[[], Loaded]
    collector_of: CollectorOf
    own_module: Callable[[], Loaded]
    spare: Callable[[Loaded], None]


class Tracing(Protocol):
    """Makes the tracers of launches on GPUs."""

    def launch_tracer(self, build: TracedBuild) -> Tracer:
        """Return the tracer of launches that the host waits for."""

    def rank_tracer(
        self, build: TracedBuild, signals: Sequence[RankArgument], config: LaunchConfig
    ) -> Tracer:
        """Return the tracer of a launch with signals, with its memory already allocated."""


_REGISTERED: dict[str, Callable[[], Tracing]] = {}


def register_tracing(load: Callable[[], Tracing]) -> None:
    """Register a function that imports tracing; several threads may call it at once."""
    _REGISTERED["tracing"] = load


def tracing() -> Tracing:
    """Import tracing, unless it is imported."""
    return _REGISTERED["tracing"]()


class LaunchTracer:
    """The tracer of a build's launches, which imports tracing when a collector records one."""

    def __init__(self, build: TracedBuild) -> None:
        self.collector_of = build.collector_of
        self._build = build

    @cached_property
    def _tracer(self) -> Tracer:
        return tracing().launch_tracer(self._build)

    def run(self, launch: Callable[[Any, LaunchConfig], None], config: LaunchConfig) -> None:
        """Launch the traced build, wait for its end, and hand over its trace."""
        self._tracer.run(launch, config)


class LastTrace:
    """A collector that keeps the trace of the last launch only."""

    notes_per_warp = NOTES_PER_WARP

    def __init__(self) -> None:
        self.trace: Any = None

    def take(self, trace: Any) -> None:
        """Keep the trace in place of the one before."""
        self.trace = trace


class KernelTraces:
    """The collectors of a kernel's traces.

    Attributes:
        wanted: The caller's ``trace=``: None for the current collector alone, True also without
            one, False for no traces.
        last: Keeps the last trace where there is no current collector.
        collector_of: Returns the collector of a launch, at launch time.
    """

    def __init__(self, wanted: bool | None) -> None:
        self.wanted = wanted
        self.last = LastTrace()
        self.collector_of: CollectorOf = self._current_or_last if wanted else _nobody
        if wanted is None:
            self.collector_of = current_collector

    def _current_or_last(self) -> TraceCollector:
        current = current_collector()
        return self.last if current is None else current


def _nobody() -> None:
    """Return no collector: the kernel leaves no traces."""
