"""The parameters of a launch in the runtime's struct."""

from __future__ import annotations

import contextvars
import ctypes
import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

from tmaasync._driver import LaunchConfig
from tmaasync.emulate import abi
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.emulate.launch.estimate import LaunchEstimate, estimate
from tmaasync.emulate.launch.interpreter import is_main_thread
from tmaasync.emulate.launch.schedule import Schedule
from tmaasync.errors import LaunchError

__all__ = ["Parameters"]

# The arrays of the previous launch, and for each whether the launch wrote to it.
_WRITTEN: contextvars.ContextVar[tuple[Sequence[Extent], bytes]] = contextvars.ContextVar(
    "tmaasync written", default=((), b"")
)


class Parameters(NamedTuple):
    """The parameters of a launch, valid while its schedule and arrays stay the same."""

    schedule: Schedule
    extents: Sequence[Extent]
    size: LaunchEstimate
    numbers: abi.LaunchNumbers
    read_only: Sequence[int]  # the numbers of these extents

    @classmethod
    def of(
        cls,
        program: EmulatedProgram,
        config: LaunchConfig,
        schedule: Schedule,
        extents: Sequence[Extent],
    ) -> Parameters:
        """Return the parameters of a launch.

        Raises:
            LaunchError: The launch is too large for this machine or for the schedule.
        """
        size = estimate(program, config, schedule.workers or _cores())
        LaunchError.raise_for(size.violations(schedule.max_threads))
        numbers = _numbers(config, schedule, size, extents, program.registers)
        read_only = [number for number, one in enumerate(extents) if one.is_read_only]
        return cls(schedule, extents, size, numbers, read_only)

    def start(self, *, pdl: bool) -> None:
        """Reset the fields that the last launch may have changed."""
        numbers = self.numbers
        ctypes.memset(numbers.written, 0, max(1, numbers.arrays))
        if numbers.grid_barrier:
            numbers.grid_barrier.contents.value = 0
        numbers.fresh = _fresh(self.extents) if pdl else None
        self.heed_interrupts()

    def heed_interrupts(self) -> None:
        """Have Ctrl-C stop the launch on threads where Python runs no handlers.

        A program's own handler of SIGINT stops no launch there.
        """
        is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self.numbers.stops_at_interrupt = is_default and not is_main_thread()

    def keep_written(self) -> None:
        """Keep for the next launch which arrays this one wrote to."""
        _WRITTEN.set((self.extents, self.written()))

    def written(self) -> bytes:
        """Return, per extent, whether the launch wrote to it."""
        return ctypes.string_at(self.numbers.written, self.numbers.arrays)

    @property
    def wrote_read_only(self) -> bool:
        """Whether the launch wrote to an array that is read only."""
        return any(self.numbers.written[number] != b"\0" for number in self.read_only)


def _numbers(
    config: LaunchConfig,
    schedule: Schedule,
    size: LaunchEstimate,
    known: Sequence[Extent],
    registers: int,
) -> abi.LaunchNumbers:
    arrays = (abi.Array * len(known))(
        *(
            abi.Array(one.address + one.first, one.end - one.first, one.may_hold_pointers)
            for one in known
        )
    )
    return abi.LaunchNumbers(
        abi.Extents(*config.grid),
        abi.Extents(*config.block),
        abi.Extents(*(config.cluster or (1, 1, 1))),
        config.shared_bytes,
        schedule.abi_policy,
        size.workers,
        size.resident,
        schedule.seed % 2**64,
        schedule.budget_seconds,
        len(known),
        arrays,
        registers,
        False,
        schedule.searched_words,
        None,
        ctypes.create_string_buffer(max(1, len(known))),
        ctypes.pointer(ctypes.c_uint32(0)) if config.cooperative else None,
    )


def _bytes_of(extent: Extent) -> range:
    return range(extent.address + extent.first, extent.address + extent.end)


def _fresh(known: Sequence[Extent]) -> bytes | None:
    """Return, per array, whether the previous launch wrote to it; None if it wrote to none."""
    written = [_bytes_of(one) for one, flag in zip(*_WRITTEN.get(), strict=True) if flag]
    fresh = bytes(
        any(one.start < other.stop and other.start < one.stop for other in written)
        for one in map(_bytes_of, known)
    )
    return fresh if any(fresh) else None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
