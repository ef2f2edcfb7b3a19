"""Launches of debug builds, which wait for the kernel's end and report hung waits."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tmaasync import _driver
from tmaasync._driver import UNTRACED, LaunchConfig, PinnedMemory, PreparedLaunch, Tracer
from tmaasync._kinds import is_number
from tmaasync._source.compile import Source
from tmaasync.errors import ArgumentError, HangError
from tmaasync.kernel.hangs import (
    HANG_STATE,
    RECORDS,
    WAIT_RECORD,
    BarrierName,
    hung_threads,
    unrecorded,
)

STATE_NAME = "tmaasync_hang_state"
"""The variable of a debug build that the watch fills in."""

_DEFAULT_SECONDS = 1.0
_LEAST_SECONDS, _MOST_SECONDS = 1e-9, 1e9  # a kernel counts nanoseconds in 64 bits
_VARIABLE = "TMAASYNC_BUDGET_SECONDS"
_LOOK_EVERY_SECONDS = 1e-4
# Time to end after a wait exceeded its budget: longer than any drainable thread needs.
_DRAIN_SECONDS = 3.0


def budget_of(asked: float | None, otherwise: float = _DEFAULT_SECONDS) -> float:
    """Return the budget of a wait: the caller's, else the environment's, else ``otherwise``.

    Raises:
        ArgumentError: The budget is not a number from 1e-9 to 1e9.
    """
    name = _VARIABLE if asked is None else "budget_seconds"
    value = os.environ.get(_VARIABLE, otherwise) if asked is None else asked
    try:
        seconds = float(value) if asked is None or is_number(asked) else 0
    except (ValueError, OverflowError):
        seconds = 0
    if not _LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        raise ArgumentError.broken(
            name,
            f"{value!r}",
            f"it must be a number of seconds above 0, from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}",
            "A wait that takes longer ends the kernel",
        )
    return seconds


# Keys are (device, address): kernels of one source share a module, hence the variable.
_LOCKS: dict[tuple[int, int], threading.RLock] = {}
_WATCHES: weakref.WeakValueDictionary[tuple[int, int], HangWatch] = weakref.WeakValueDictionary()
"""The watch to whose records the variable points."""


class HangWatch:
    """The memory to which one loaded kernel reports waits that exceed their budget."""

    def __init__(
        self,
        source: Source,
        kernel: str,
        names: BarrierName,
        state_address: int,
        device: int,
        budget_seconds: float,
        drain_seconds: float = _DRAIN_SECONDS,
    ) -> None:
        """Allocate memory for the records, and write its address into the kernel's variable.

        After a wait exceeds its budget, the kernel has ``drain_seconds`` to end.
        """
        self._source, self._kernel, self._names = source, kernel, names
        self._state_address, self._device = state_address, device
        self._budget_seconds, self._drain_seconds = budget_seconds, drain_seconds
        self._records = PinnedMemory(device, RECORDS * WAIT_RECORD.itemsize)
        # All launches of a module share the variable. The lock is reentrant: launches may nest.
        self._variable = (device, state_address)
        self._lock = _LOCKS.setdefault(self._variable, threading.RLock())
        with self._lock:
            self._reset()

    @contextlib.contextmanager
    def watching(self, stream: int, *, waits: bool = True) -> Iterator[None]:
        """Surround a launch on a stream: wait for its end, and raise a detected hang.

        The host cannot wait for a stream that is being captured, nor for a launch that itself waits
        for later launches of other devices. In both cases the next launch raises the hang.

        Raises:
            HangError: A wait of this launch, or of a graph replay since, exceeded its budget.
            DriverError: The kernel failed.
        """
        with self._lock:
            if _driver.is_capturing(stream):
                yield
                return
            if _WATCHES.get(self._variable) is not self:
                self._reset()
            if self._has_records():
                raise self._found()
            yield
            if not waits:
                return
            self._wait(stream)
            if self._has_records():
                raise self._found()

    def _wait(self, stream: int) -> None:
        give_up = None
        while _driver.is_busy(stream):
            if give_up is not None and time.monotonic() > give_up:
                raise self._error(0, has_ended=False)
            if give_up is None and self._has_records():
                give_up = time.monotonic() + self._drain_seconds
            time.sleep(_LOOK_EVERY_SECONDS)
        # Also flushes the kernel's printf output.
        _driver.synchronize(stream, self._kernel)

    def _has_records(self) -> bool:
        written = np.frombuffer(self._records.read(), WAIT_RECORD)["is_written"]
        return bool(written.any())

    def _found(self) -> HangError:
        """Return the error of a finished kernel, and reset the records."""
        state = _driver.download(self._device, self._state_address, HANG_STATE.itemsize)
        error = self._error(unrecorded(state), has_ended=True)
        self._reset()
        return error

    def _error(self, others: int, *, has_ended: bool) -> HangError:
        waits = tuple(hung_threads(self._records.read(), self._source, self._names))
        return HangError(
            self._kernel, self._budget_seconds, waits, others=others, has_ended=has_ended
        )

    def _reset(self) -> None:
        """Clear the records, and point the kernel's variable to them."""
        _WATCHES[self._variable] = self
        self._records.clear()
        state: Any = np.zeros((), HANG_STATE)
        state["records"] = self._records.address
        state["budget_ns"] = int(self._budget_seconds * 1e9)
        _driver.upload(self._device, self._state_address, state.tobytes())


class WatchedLaunch(PreparedLaunch):
    """A prepared launch of a debug build; a call returns after the kernel's end."""

    __slots__ = ("_watch",)

    def __init__(
        self,
        watch: HangWatch,
        function: Any,
        config: LaunchConfig,
        arguments: Sequence[bytes],
        keep: object,
        device: int,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """Pack the arguments, without launching."""
        super().__init__(function, config, arguments, keep, device, tracer)
        self._watch = watch

    def _watching(self, stream: int) -> contextlib.AbstractContextManager[None]:
        return self._watch.watching(stream)

    def __call__(self) -> None:
        """Launch, and wait for the kernel's end.

        Raises:
            HangError: A wait of the kernel took too long.
            LaunchError: The driver rejected the launch.
            DriverError: This or an earlier kernel failed, and the CUDA context is lost.
        """
        with _driver.on_device(self._device), self._watching(self._packed.config.stream):
            super().__call__()

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """Return a bound call of `launch_at` with these arguments."""
        return functools.partial(self.launch_at, addresses, stream)

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on a stream, with other addresses for the first arguments (tiles or pointers)."""
        with _driver.on_device(self._device), self._watching(stream):
            super().launch_at(addresses, stream)


class UnawaitedLaunch(WatchedLaunch):
    """A prepared launch of a debug build whose kernel waits for launches of other devices.

    A call returns at once, because the host makes those launches later. The next call raises a
    hang.
    """

    __slots__ = ()

    def _watching(self, stream: int) -> contextlib.AbstractContextManager[None]:
        return self._watch.watching(stream, waits=False)
