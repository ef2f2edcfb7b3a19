"""Traced launches on a device that is made up: what happens in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chip_notes import Chip

from tmaasync import _driver
from tmaasync._compile import Source
from tmaasync._driver import DeviceLimits, LaunchConfig
from tmaasync.emulate import LIMITS
from tmaasync.errors import LaunchError
from tmaasync.kernel.traced import ChipTracer
from tmaasync.trace import Collector
from tmaasync.trace.chip import BUFFER_DTYPE

CONFIG = LaunchConfig((1, 1, 1), (96, 1, 1), None, 1000, False, 7)
HOME, SYMBOL = 4096, 64


class Device:
    """Notes what is done to it; its memory is what a chip left there."""

    def __init__(self, chip: Chip) -> None:
        self.raw = chip._warps.tobytes() + chip._records.tobytes()
        self.done: list[tuple[Any, ...]] = []
        self.told: Any = None
        self.is_capturing = False

    def put_in_place(self, patch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "allocate": self.noting("allocate", HOME),
            "clear": self.noting("clear"),
            "synchronize": self.noting("synchronize"),
            "download": self.noting("download", self.raw),
            "free": self.noting("free"),
            "upload": self.upload,
            "is_capturing": lambda stream: self.is_capturing,
            "device_limits": lambda device: LIMITS,
            "cycle_ns": lambda device: 0.5,
        }.items():
            patch.setattr(_driver, name, value)

    def noting(self, name: str, answer: Any = None) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.done.append((name, *arguments))
            return answer

        return call

    def upload(self, device: int, address: int, data: bytes) -> None:
        self.done.append(("upload", device, address))
        self.told = np.frombuffer(data, BUFFER_DTYPE)[0]

    def launch(self, function: str, config: LaunchConfig) -> None:
        self.done.append(("launch", function, config))

    def fail(self, function: str, config: LaunchConfig) -> None:
        raise LaunchError("the driver refused the launch")


class Loaded:
    """The traced function on that device."""

    function = "traced"
    watch = None

    def allow(self, config: LaunchConfig, threads_per_block: int) -> None:
        assert threads_per_block == LIMITS.threads_per_block

    def global_address(self, name: str) -> int:
        assert name == "tmaasync_trace"
        return SYMBOL


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    chip = Chip(warps=3, room=16)
    chip(100, "arrive", 0, barrier=64, amount=1, number=1)
    made = Device(chip)
    made.put_in_place(monkeypatch)
    return made


def tracer(collector: Collector | None) -> ChipTracer:
    source = Source(text="not C++", name="relay.cu")
    loaded: Any = Loaded()
    return ChipTracer(source, "relay", 0, lambda: loaded, lambda: collector)


def test_memory_is_ready_before_the_launch_read_after_it_and_given_back(device: Device) -> None:
    kept = Collector(notes_per_warp=16)

    tracer(kept).run(device.launch, CONFIG)

    size = len(device.raw)
    # A slot of 16 bytes for each of three warps, behind 1000 bytes made whole.
    launched = CONFIG._replace(shared_bytes=1008 + 48)
    assert device.done == [
        ("allocate", 0, size),
        ("clear", 0, HOME, size),
        ("upload", 0, SYMBOL),
        ("launch", "traced", launched),
        ("synchronize", 7, "relay"),
        ("download", 0, HOME, size),
        ("free", 0, HOME),
    ]
    assert (device.told["warps"], device.told["records"]) == (HOME, HOME + 3 * 272)
    assert (device.told["records_per_warp"], device.told["blocks"]) == (16, 1)
    (launch,) = kept.launches
    assert (launch.kernel_name, launch.grid, launch.block) == ("relay", (1, 1, 1), (96, 1, 1))
    # There is no emulator's build of this source, so its barriers have no names.
    assert {event.barrier_name for event in launch} == {"offset 64"}


def test_memory_is_given_back_after_a_launch_that_fails(device: Device) -> None:
    with pytest.raises(LaunchError, match="refused the launch"):
        tracer(Collector()).run(device.fail, CONFIG)

    assert device.done[-1] == ("free", 0, HOME)


def test_a_launch_into_a_graph_is_refused(device: Device) -> None:
    device.is_capturing = True

    with pytest.raises(LaunchError, match=r"relay is launched into a CUDA graph .* Capture"):
        tracer(Collector()).run(device.launch, CONFIG)

    assert device.done == []


def test_a_block_without_room_for_the_slots_is_refused(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: DeviceLimits = replace(LIMITS, shared_bytes=1055)
    monkeypatch.setattr(_driver, "device_limits", lambda _: limits)

    with pytest.raises(LaunchError, match=r"to trace relay, 56 more are needed.* has 1055"):
        tracer(Collector()).run(device.launch, CONFIG)

    assert device.done == []
