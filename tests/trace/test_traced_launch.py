"""Traced launches on a device that is made up: what happens in which order, and what is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chip_notes import Chip
from fake_driver import Driver

from tmaasync._driver import DeviceLimits, LaunchConfig
from tmaasync._source.compile import Source
from tmaasync._traced.launch import ChipTracer
from tmaasync.emulate import LIMITS
from tmaasync.errors import LaunchError
from tmaasync.kernel.tracing import TracedBuild
from tmaasync.trace import Collector
from tmaasync.trace.chip import BUFFER_DTYPE, WARP_DTYPE

CONFIG = LaunchConfig((1, 1, 1), (96, 1, 1), None, 1000, False, 7)


class Device(Driver):
    """A driver whose kernel writes what a GPU left there; ``variable`` is the kernel's variable."""

    def __init__(self, limits: DeviceLimits = LIMITS) -> None:
        super().__init__(limits=limits)
        chip = Chip(warps=3, room=16)
        chip(100, "arrive", 0, barrier=64, amount=1, number=1)
        self.raw = chip._warps.tobytes() + chip._records.tobytes()
        self.variable: Any = np.zeros((), BUFFER_DTYPE)

    def launch(self, function: str, config: LaunchConfig) -> None:
        self.done.append(("launch", function, config))
        home = int(self.variable["warps"])
        assert ctypes.string_at(home, len(self.raw)) == bytes(len(self.raw))
        ctypes.memmove(home, self.raw, len(self.raw))

    def fail(self, function: str, config: LaunchConfig) -> None:
        raise LaunchError("the driver refused the launch")


class Loaded:
    """The traced function on that device."""

    function = "traced"
    watch = None

    def __init__(self, device: Device) -> None:
        self._device = device

    def allow(self, config: LaunchConfig, limits: DeviceLimits) -> None:
        assert limits == LIMITS

    def global_address(self, name: str) -> int:
        assert name == "tmaasync_trace"
        return int(self._device.variable.ctypes.data)


@pytest.fixture
def device(use_driver: Callable[[object], None]) -> Device:
    made = Device()
    use_driver(made)
    return made


def tracer(device: Device, collector: Collector | None) -> ChipTracer:
    source = Source(text="not C++", name="relay.cu")
    loaded: Any = Loaded(device)
    build = TracedBuild(
        source, "relay", 0, lambda: loaded, lambda: collector, lambda: loaded, lambda _: None
    )
    return ChipTracer(build)


def test_memory_is_ready_before_the_launch_read_after_it_and_given_back(device: Device) -> None:
    kept = Collector(notes_per_warp=16)

    tracer(device, kept).run(device.launch, CONFIG)

    size, home, symbol = len(device.raw), int(device.variable["warps"]), device.variable.ctypes.data
    # A slot of 16 bytes for each of three warps, after 1000 bytes rounded up.
    launched = CONFIG._replace(shared_bytes=1008 + 48)
    assert device.done == [
        ("cuMemAlloc", size),
        ("cuMemsetD8", home, 0, size),
        ("cuStreamSynchronize", 0),
        ("cuMemcpyHtoD", symbol, BUFFER_DTYPE.itemsize),
        ("cuStreamSynchronize", 0),
        ("launch", "traced", launched),
        ("cuStreamSynchronize", 7),
        ("cuMemcpyDtoH", home, size),
        ("cuMemFree", home),
    ]
    assert int(device.variable["records"]) == home + 3 * WARP_DTYPE.itemsize
    assert (device.variable["records_per_warp"], device.variable["blocks"]) == (16, 1)
    (launch,) = kept.launches
    assert (launch.kernel_name, launch.grid, launch.block) == ("relay", (1, 1, 1), (96, 1, 1))
    # There is no emulator's build of this source, so its barriers have no names.
    assert {event.barrier_name for event in launch} == {"offset 64"}


def test_memory_is_given_back_after_a_launch_that_fails(device: Device) -> None:
    with pytest.raises(LaunchError, match="refused the launch"):
        tracer(device, Collector()).run(device.fail, CONFIG)

    assert device.done[-1] == ("cuMemFree", int(device.variable["warps"]))


def test_a_launch_into_a_graph_is_refused(device: Device) -> None:
    device.is_capturing = True

    with pytest.raises(LaunchError, match=r"relay is launched into a CUDA graph .* Capture"):
        tracer(device, Collector()).run(device.launch, CONFIG)

    assert device.done == []


def test_a_block_without_room_for_the_slots_is_refused(
    use_driver: Callable[[object], None],
) -> None:
    device = Device(replace(LIMITS, shared_bytes=1055))
    use_driver(device)

    match = r"to trace relay, 56 more are needed.* has at most 1055.* NumPy arrays: the emulator"
    with pytest.raises(LaunchError, match=match):
        tracer(device, Collector()).run(device.launch, CONFIG)

    assert device.done == []
