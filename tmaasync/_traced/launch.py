"""Traced launches on a GPU: a separate kernel build whose warps record events (notes)."""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
from collections.abc import Callable
from typing import Any

from tmaasync import _driver, emulate
from tmaasync._driver import DeviceLimits, LaunchConfig
from tmaasync.emulate.report.words import shared_names
from tmaasync.errors import LaunchError, TMAError
from tmaasync.kernel.launch import Loaded
from tmaasync.kernel.tracing import TracedBuild
from tmaasync.trace.chip import ChipLaunch, Layout, RawTrace, decode
from tmaasync.trace.events import NameOf, offset_name

TRACE_SYMBOL = "tmaasync_trace"
# Serialises traced launches: a module has one variable with the address of the notes.
_LOCK = threading.Lock()


class ChipTracer:
    """The tracer of launches on one device that the host waits for."""

    def __init__(self, build: TracedBuild) -> None:
        self.name = build.name
        self.device = build.device
        self.collector_of = build.collector_of
        self._source = build.source
        self._load = build.load

    def run(self, launch: Callable[[Any, LaunchConfig], None], config: LaunchConfig) -> None:
        """Launch the traced build, wait for its end, and hand over its trace.

        Raises:
            LaunchError: The stream is being captured, or there is no room for the trace.
        """
        collector = self.collector_of()
        if collector is None:
            return
        check_not_captured(self.name, config.stream)
        layout, traced = self.traced_config(config, collector.notes_per_warp)
        loaded = self._load()
        loaded.allow(traced, _driver.device_limits(self.device))
        with _LOCK:
            raw = self._noted(loaded, layout, lambda: launch(loaded.function, traced), config)
        (trace,) = decode([self.raw_trace(raw, layout, config)])
        collector.take(trace)

    def traced_config(
        self, config: LaunchConfig, notes_per_warp: int
    ) -> tuple[Layout, LaunchConfig]:
        """Return the trace layout, and the configuration with shared memory for it.

        Raises:
            LaunchError: Shared memory is too small.
        """
        layout = Layout.of(config.grid, config.block, notes_per_warp)
        traced = config._replace(shared_bytes=layout.shared_bytes(config.shared_bytes))
        _check_room(self.name, traced, config, _driver.device_limits(self.device))
        return layout, traced

    def raw_trace(
        self, raw: bytes, layout: Layout, config: LaunchConfig, rank: int | None = None
    ) -> RawTrace:
        """Return the raw trace of a launch, with the data that decoding needs."""
        launch = ChipLaunch(
            kernel_name=self.name,
            grid=config.grid,
            block=config.block,
            cluster=config.cluster or (1, 1, 1),
            shared_bytes=config.shared_bytes,
            name_of=self._names(config.shared_bytes),
            device=self.device,
            rank=rank,
        )
        return RawTrace(raw, layout, launch, _driver.cycle_ns(self.device))

    def _noted(
        self, loaded: Loaded, layout: Layout, launch: Callable[[], None], config: LaunchConfig
    ) -> bytes:
        """Launch with memory for the warps' notes, wait for the end, and return the notes."""
        device = self.device
        address = _driver.allocate(device, layout.size_bytes)
        try:
            _driver.clear(device, address, layout.size_bytes)
            header = layout.buffer(address, secrets.randbits(32))
            _driver.upload(device, loaded.global_address(TRACE_SYMBOL), header)
            watch = loaded.watch
            with contextlib.nullcontext() if watch is None else watch.watching(config.stream):
                launch()
            _driver.synchronize(config.stream, self.name)
            return _driver.download(device, address, layout.size_bytes)
        finally:
            _driver.free(device, address)

    def _names(self, shared_bytes: int) -> NameOf:
        """Return names of shared memory, which only the emulator's build of the source has."""

        @functools.cache
        def names() -> NameOf:
            try:
                return shared_names(emulate.build(self._source, self.name), shared_bytes)
            except TMAError:  # for example: no C++ compiler
                return offset_name

        return lambda offset: names()(offset)


def check_not_captured(name: str, stream: int) -> None:
    """Reject a traced launch into a CUDA graph.

    Raises:
        LaunchError: The stream is being captured.
    """
    if _driver.is_capturing(stream):
        raise LaunchError.broken(
            name,
            "launched into a CUDA graph inside trace.record()",
            "the host reads a trace after each launch",
            "Capture the graph outside, and trace an eager launch",
        )


def _check_room(
    name: str, traced: LaunchConfig, config: LaunchConfig, limits: DeviceLimits
) -> None:
    if traced.shared_bytes > limits.shared_bytes:
        raise LaunchError.broken(
            "shared_mem",
            f"{config.shared_bytes} bytes",
            f"to trace {name}, {traced.shared_bytes - config.shared_bytes} more are "
            f"needed, and a thread block on {limits} has at most {limits.shared_bytes}",
            "Use smaller tiles or fewer stages, or trace it on NumPy arrays: the "
            "emulator needs no room",
        )
