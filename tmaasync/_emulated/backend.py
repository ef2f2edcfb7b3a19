"""The emulator as the back end of arrays in host memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tmaasync import emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import DeviceLimits, HostMemory
from tmaasync._emulated.build import EmulatedBuild, emulated_stream
from tmaasync._source.compile import Source
from tmaasync.emulate.chips import SM_90A, Chip
from tmaasync.emulate.chips.current import current_chip
from tmaasync.emulate.launch.schedule import is_scheduled
from tmaasync.emulate.report.debug_info import DebugInfo, debug_info
from tmaasync.errors import LaunchError, TMAError, Violation
from tmaasync.kernel.arguments import Placed, View
from tmaasync.kernel.backend import ArrayMemory, BoundCall, Build, HostBackend
from tmaasync.kernel.device import Where, address_of, checked_ordinal, home, no_access
from tmaasync.kernel.hangs import BarrierName
from tmaasync.kernel.recipe import Recipe


class EmulatorBackend(HostBackend):
    """This machine's CPU: launches run one after the other, except on several emulated devices."""

    waits = True
    reads_host_memory = True
    location = "the host"
    gpu = None

    def __init__(self, chip: Chip) -> None:
        super().__init__()
        self._chip = chip
        self.identity = None if chip is SM_90A else chip.arch

    def build(self, recipe: Recipe) -> Build:
        return EmulatedBuild(recipe, self._chip)

    def is_scheduled(self) -> bool:
        return is_scheduled()

    def check_worlds(self, members: Sequence[tuple[str, Placed]]) -> None:
        LaunchError.raise_for(_of_other_worlds(members))

    def emulated_device(
        self, seen: Sequence[View], members: Sequence[tuple[str, Placed]], asked: int | None
    ) -> int | None:
        world = emulate.current_world()
        return None if world is None else _emulated_device(world, seen, members, asked)

    def has_peer_access(self, device: int, peer: int) -> bool:
        world = emulate.current_world()
        return world is not None and world.has_peer_access(device, peer)

    def memory_of(self, array: ArrayView) -> ArrayMemory:
        world = emulate.current_world()
        device = None if world is None else world.device_of(array.address)
        return self if world is None or device is None else world[device]

    def barrier_names(self, source: Source, kernel: str) -> BarrierName:
        """Return the source's names for parts of the kernel's dynamic shared memory, by offset.

        GPU builds keep no names, so they come from the emulator's build of the same source. A name
        is None if that build is impossible, for example without a C++ compiler.
        """

        @functools.cache
        def info() -> DebugInfo:
            return debug_info(emulate.build(source, kernel).path, source.text)

        def name(offset: int) -> str | None:
            try:
                return info().shared_name(offset)
            except (TMAError, OSError):
                return None

        return name

    @property
    def limits(self) -> DeviceLimits:
        return emulate.LIMITS if self._chip is SM_90A else self._chip.device

    def max_active_clusters(self, size: int) -> int:
        return self._chip.max_active_clusters(size)

    def stream(self, frameworks: Iterable[str], given: object = None) -> Any:
        del frameworks  # their arrays in host memory have no streams
        return emulated_stream(given)

    def wait_for_producers(self, arrays: Iterable[Placed], stream: int) -> None:
        del arrays, stream  # a framework's arrays in host memory are complete

    def current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def upload(self, data: bytes) -> HostMemory:
        return HostMemory(data)

    def host_flag(self) -> npt.NDArray[np.int32]:
        return np.zeros(1, np.int32)

    copies_contiguous_memory = False  # so that a copy runs, and shows, the TMA kernel

    def bound_copy(self, target: int, source: int, size_bytes: int, stream: int) -> BoundCall:
        del stream

        def call() -> None:
            ctypes.memmove(target, source, size_bytes)

        return call


_backend_of = functools.cache(EmulatorBackend)


def current_backend() -> EmulatorBackend:
    """Return the back end of the chip that is emulated here and now."""
    return _backend_of(current_chip())


# --- launches on emulated devices ---------------------------------------------------------------


def _of_other_worlds(members: Sequence[tuple[str, Placed]]) -> Iterator[Violation]:
    """Yield arrays of a world that was opened in another thread of Python."""
    for name, member in members:
        world = None if member.device is not None else emulate.other_world_of(address_of(member))
        if world is not None:
            yield Violation(
                name,
                f"on device {world.device_of(address_of(member))} of emulate.devices({len(world)})",
                "a world applies to the thread that opened it, and this is another thread or "
                "context",
                "Launch in that thread, or start this one with contextvars.copy_context().run",
            )


def _emulated_device(
    world: emulate.World,
    seen: Sequence[View],
    members: Sequence[tuple[str, Placed]],
    asked: int | None,
) -> int:
    """Return the emulated device of a launch on arrays of an emulated world."""

    def where(member: Placed) -> int | None:
        return world.device_of(address_of(member))

    LaunchError.raise_for(
        Violation(
            name,
            f"at {address_of(member):#x} in host memory",
            "inside emulate.devices every array belongs to a device",
            "Make it with world[device].array(values)",
        )
        for name, member in members
        if where(member) is None
    )
    devices = {where(member) for _, member in members}
    if asked is not None:
        device: int | None = checked_ordinal(asked, len(world))
    elif devices:
        device = next(iter(devices)) if len(devices) == 1 else home(seen, devices, where)
    else:
        device = 0
    assert device is not None  # noqa: S101 - every member has one
    LaunchError.raise_for(_beyond_access(world, members, device, where))
    return device


def _beyond_access(
    world: emulate.World, members: Sequence[tuple[str, Placed]], device: int, where: Where
) -> Iterator[Violation]:
    for name, member in members:
        peer = where(member)
        if peer is not None and peer != device and not world.has_peer_access(device, peer):
            yield no_access(name, device, peer)
