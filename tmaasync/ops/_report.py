"""Reports of kernels about lengths, offsets and pages on a device, raised by the next call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tmaasync.errors import ArgumentError
from tmaasync.kernel import BoundCall, Launch
from tmaasync.kernel.backend import Backend


class Report:
    """A number, counted from 1, that kernels write if they read wrong numbers on the device.

    On a device the next call raises, because no call waits. On the emulator the call itself does.
    """

    def __init__(self, backend: Backend, describe: Callable[[str, int], str]) -> None:
        """``describe`` returns the message about a call, as "an earlier call", and a number."""
        self._flag = backend.host_flag()
        self._describe = describe
        self.waits = backend.waits

    @property
    def argument(self) -> Any:
        """The flag as a kernel takes it."""
        # Pinned host memory is not an array of the device, so pass its address.
        return self._flag if self.waits else int(self._flag.ctypes.data)

    def refuse(self, call: str) -> None:
        """Raise and reset the flag if ``call`` was reported."""
        number = int(self._flag[0])
        if number:
            self._flag[0] = 0
            raise ArgumentError(self._describe(call, number - 1))


@functools.cache
def report_of(backend: Backend, describe: Callable[[str, int], str]) -> Report:
    """Return the one report of a device with this message.

    All calls of an operation share it: the next call raises, whatever its layouts, and a CUDA graph
    may outlive the operation whose kernels it holds.
    """
    return Report(backend, describe)


class ReportingLaunch:
    """A launch whose kernel reports wrong numbers."""

    def __init__(self, launch: Launch, report: Report) -> None:
        self._launch = launch
        self._report = report

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        self._report.refuse("an earlier call")
        self._launch.launch_at(addresses, stream)
        if self._report.waits:
            self._report.refuse("this call")

    def bind(self, addresses: Sequence[int], stream: int) -> BoundCall:
        launch, refuse = self._launch.bind(addresses, stream), self._report.refuse

        def call() -> None:
            refuse("an earlier call")
            launch()

        return call
