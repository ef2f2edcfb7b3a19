"""Traced launches with `Signals` on GPUs, which wait for launches that the host makes later.

The host therefore cannot wait for each launch, and must not allocate while one runs: the trace
memory and a separate module exist before the launch. `Signals.synchronize` reads the traces of all
ranks.
"""

from __future__ import annotations

import contextlib
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tmaasync import _driver
from tmaasync._collectors import CollectorOf, TraceCollector
from tmaasync._driver import LaunchConfig
from tmaasync._traced.launch import TRACE_SYMBOL, ChipTracer, check_not_captured
from tmaasync.errors import DriverError, LaunchError
from tmaasync.kernel.launch import Loaded
from tmaasync.kernel.ranks import RankArgument
from tmaasync.kernel.tracing import TracedBuild
from tmaasync.trace.chip import RawTrace, decode


def _check_none_in_flight(name: str, of: RankArgument) -> None:
    """Reject the allocation of a trace while other launches run.

    Raises:
        LaunchError: Traced launches with these signals are in flight.
    """
    if of._traced:
        raise LaunchError(
            f"{name} takes Signals, and is prepared inside trace.record() while launches with them "
            "are in flight; its trace needs memory, and allocating may wait for them. Prepare all "
            "launches before the first call, or call Signals.synchronize before."
        )


class UnpreparedTracer:
    """The tracer of a launch with `Signals` that was prepared outside of ``record``."""

    def __init__(self, name: str, collector_of: CollectorOf) -> None:
        self._name = name
        self.collector_of = collector_of

    def run(self, launch: Callable[[Any, LaunchConfig], None], config: LaunchConfig) -> None:
        """Reject a launch inside ``record``.

        Raises:
            LaunchError: A collector is recording.
        """
        if self.collector_of() is not None:
            raise LaunchError(
                f"{self._name} takes Signals, and was prepared outside of trace.record(); a traced "
                "launch has its memory before any rank runs. Prepare the launches of all ranks "
                "inside the with."
            )


class RankTracer:
    """The tracer of a prepared launch of one rank, with its own memory and module."""

    def __init__(
        self,
        build: ChipTracer,
        of: RankArgument,
        config: LaunchConfig,
        collector: TraceCollector,
        module: Callable[[], Loaded],
        spare: Callable[[Loaded], None],
    ) -> None:
        """Allocate memory for the trace; the device's context is current.

        Args:
            build: The traced build.
            of: The launch's signals.
            config: Grid, block and shared memory of the launch.
            collector: Sets the number of notes per warp.
            module: Returns a loaded module that no other launch uses.
            spare: Takes the module back.

        Raises:
            LaunchError: There is no room for the trace.
        """
        self.collector_of = build.collector_of
        self._build, self._of, self._config = build, of, config
        self._layout, traced = build.traced_config(config, collector.notes_per_warp)
        self._shared_bytes = traced.shared_bytes
        self._loaded = module()
        weakref.finalize(self, spare, self._loaded).atexit = False
        self._loaded.allow(traced, _driver.device_limits(build.device))
        self._symbol = self._loaded.global_address(TRACE_SYMBOL)
        self._address = _driver.allocate(build.device, self._layout.size_bytes)
        weakref.finalize(self, _driver.free, build.device, self._address).atexit = False
        self._begin_anew()

    def run(self, launch: Callable[[Any, LaunchConfig], None], config: LaunchConfig) -> None:
        """Launch the traced build without waiting; `Signals.synchronize` hands over the trace.

        Raises:
            LaunchError: The stream is being captured, or the trace of an earlier call has not been
                read yet.
        """
        collector, in_flight, name = self.collector_of(), self._of._traced, self._build.name
        if collector is None:
            return
        check_not_captured(name, config.stream)
        if self in in_flight:
            raise LaunchError(
                f"{name} is called again inside trace.record() before Signals.synchronize has read "
                "its trace. Synchronize first, or prepare a launch for each call."
            )
        watch = self._loaded.watch
        nothing = contextlib.nullcontext()
        with nothing if watch is None else watch.watching(config.stream, waits=False):
            launch(self._loaded.function, config._replace(shared_bytes=self._shared_bytes))
        in_flight.add(self, collector)

    def read(self) -> RawTrace:
        """Return the trace of a finished launch, and reset the tracer.

        Raises:
            DriverError: A kernel failed and the CUDA context is lost.
        """
        device, layout = self._build.device, self._layout
        raw = _driver.download(device, self._address, layout.size_bytes)
        self._begin_anew()
        return self._build.raw_trace(raw, layout, self._config, self._of.rank)

    def hand_over(self, launches: Sequence[tuple[RankTracer, TraceCollector]]) -> None:
        """Give the traces of finished launches to their collectors.

        The traces of a device are lost with its CUDA context.
        """
        read: list[tuple[TraceCollector, RawTrace]] = []
        for tracer, collector in launches:
            with contextlib.suppress(DriverError):  # synchronize raises the kernel's error
                read.append((collector, tracer.read()))
        traces = decode([raw for _, raw in read])
        for (collector, _), trace in zip(read, traces, strict=True):
            collector.take(trace)

    def _begin_anew(self) -> None:
        device, layout = self._build.device, self._layout
        _driver.clear(device, self._address, layout.size_bytes)
        header = layout.buffer(self._address, secrets.randbits(32))
        _driver.upload(device, self._symbol, header)


def rank_tracer(
    build: TracedBuild, signals: Sequence[RankArgument], config: LaunchConfig
) -> RankTracer | UnpreparedTracer:
    """Return the tracer of a launch with signals, with its memory already allocated.

    Raises:
        LaunchError: The launch takes several `Signals`, others are in flight, or there is no room.
    """
    collector, name = build.collector_of(), build.name
    if collector is None:
        return UnpreparedTracer(name, build.collector_of)
    if len(signals) > 1:
        raise LaunchError(
            f"{name} takes {len(signals)} Signals; a trace knows of a signal its rank and "
            "number alone. Pass one Signals with more signals, or trace=False to Kernel."
        )
    _check_none_in_flight(name, signals[0])
    tracer = ChipTracer(build)
    with _driver.on_device(build.device):
        return RankTracer(tracer, signals[0], config, collector, build.own_module, build.spare)
