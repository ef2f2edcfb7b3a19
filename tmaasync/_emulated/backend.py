"""The emulator as the back end of arrays in host memory."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tmaasync import emulate
from tmaasync._compile import Source
from tmaasync._driver import DeviceLimits
from tmaasync._emulated import placement
from tmaasync._emulated.build import EmulatedBuild
from tmaasync._emulated.names import barrier_names
from tmaasync._memory import HostMemory
from tmaasync._streams import stream_of
from tmaasync.emulate.launch.schedule import is_scheduled
from tmaasync.errors import LaunchError
from tmaasync.kernel.arguments import Placed, View
from tmaasync.kernel.backend import BoundCall, Build, HostBackend
from tmaasync.kernel.hangs import BarrierName
from tmaasync.kernel.recipe import Recipe

__all__ = ["BACKEND", "EmulatorBackend"]


class EmulatorBackend(HostBackend):
    """This machine's CPU: no streams, launches run one after the other."""

    waits = True
    reads_host_memory = True
    location = "the host"
    gpu = None

    def build(self, recipe: Recipe) -> Build:
        return EmulatedBuild(recipe)

    def is_scheduled(self) -> bool:
        return is_scheduled()

    def check_worlds(self, members: Sequence[tuple[str, Placed]]) -> None:
        LaunchError.raise_for(placement.of_other_worlds(members))

    def emulated_device(
        self, seen: Sequence[View], members: Sequence[tuple[str, Placed]], asked: int | None
    ) -> int | None:
        world = emulate.current_world()
        return None if world is None else placement.emulated_device(world, seen, members, asked)

    def barrier_names(self, source: Source, kernel: str) -> BarrierName:
        return barrier_names(source, kernel)

    @property
    def limits(self) -> DeviceLimits:
        return emulate.LIMITS

    def max_active_clusters(self, size: int) -> int:
        return emulate.max_active_clusters(size)

    def stream(self, frameworks: Iterable[str], given: object = None) -> int:
        return stream_of(frameworks, None, given)

    def wait_for_producers(self, arrays: Iterable[Placed], stream: int) -> None:
        del arrays, stream  # host memory has no streams

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


BACKEND = EmulatorBackend()
