"""Devices: what they allow a launch, and which one is current."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmaasync._driver import bindings
from tmaasync._hardware import HOPPER, chip_limits
from tmaasync.errors import BackendError, UntestedDeviceWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """Limits of a device on its launches."""

    name: str
    compute_capability: tuple[int, int]
    sms: int
    shared_bytes: int
    threads_per_block: int

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return f"{self.name} (compute capability {major}.{minor})"

    @property
    def registers_per_block(self) -> int:
        return chip_limits(self.compute_capability).registers

    @property
    def cluster_blocks(self) -> int:
        """Thread blocks of a cluster, with the opt-in."""
        return chip_limits(self.compute_capability).cluster_blocks


def cycle_ns(device: int) -> float:
    """Return a cycle of the device's SMs in nanoseconds, at its highest usual clock."""
    handle = bindings.call("cuDeviceGet", device)
    return 1e6 / _attribute(bindings.driver(), handle, "CLOCK_RATE")


def device_limits(device: int) -> DeviceLimits:
    """Return the limits of the device of this ordinal; each driver is asked for them once."""
    return _limits(bindings.driver(), device)


@functools.cache
def _limits(driver: Any, device: int) -> DeviceLimits:
    handle = bindings.call("cuDeviceGet", device)
    read = functools.partial(_attribute, driver, handle)
    name = bindings.call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode()
    return DeviceLimits(
        name=name,
        compute_capability=(read("COMPUTE_CAPABILITY_MAJOR"), read("COMPUTE_CAPABILITY_MINOR")),
        sms=read("MULTIPROCESSOR_COUNT"),
        shared_bytes=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        threads_per_block=read("MAX_THREADS_PER_BLOCK"),
    )


def _attribute(driver: Any, handle: Any, name: str) -> int:
    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(bindings.call("cuDeviceGetAttribute", which, handle))


def require_device(device: int) -> DeviceLimits:
    """Return the limits of a device that has TMA.

    Raises:
        BackendError: The device is older than sm_90.
    """
    limits = device_limits(device)
    major, minor = limits.compute_capability
    if major < 9:
        raise BackendError(
            f"device {device} is a {limits.name} (sm_{major}{minor}); the Tensor Memory "
            "Accelerator exists on sm_90 and later. Use an H100 or H200, or pass NumPy arrays."
        )
    return limits


def note_untested(device: int) -> None:
    """Warn, once for each kind of GPU, that kernels are compiled for it but were not run on it.

    Warns:
        UntestedDeviceWarning: The device has a compute capability other than 9.0.
    """
    limits = device_limits(device)
    if limits.compute_capability != HOPPER:
        _warn_once(bindings.driver(), limits)


@functools.cache  # A warning that a filter makes an error is raised again by the next launch.
def _warn_once(driver: Any, limits: DeviceLimits) -> None:
    del driver
    major, minor = limits.compute_capability
    warnings.warn(
        f"kernels for {limits.name} are compiled for compute capability {major}.{minor}, which "
        "tmaasync was not tested or measured on; H100 and H200 (9.0) are. Check the results. "
        "warnings.simplefilter('ignore', tmaasync.UntestedDeviceWarning) hides this note.",
        UntestedDeviceWarning,
        stacklevel=_caller_level(),
    )


_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


def _caller_level() -> int:
    """Return the ``stacklevel`` of the code that called the package, for the calling function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def current_device() -> int | None:
    """Return the ordinal of the current context's device; None without a current context."""
    result, device = bindings.driver().cuCtxGetDevice()
    return int(device) if int(result) == 0 else None


def on_device(device: int | None) -> contextlib.AbstractContextManager[None]:
    """Make the device's primary context current for a while; nothing for host memory."""
    if device is None or current_device() == device:
        return _HERE
    return _pushed(bindings.driver(), device)


_HERE = contextlib.nullcontext()


def settle_on(device: int) -> None:
    """Make the device's primary context current in this thread for good; there is no other device.

    For a thread without a context, such as one of torch's autograd: CUDA's runtime does so too.
    """
    handle = bindings.call("cuDeviceGet", device)
    bindings.call("cuCtxSetCurrent", bindings.call("cuDevicePrimaryCtxRetain", handle))


class _PrimaryContext:
    """A device's primary context, current inside a ``with``, and retained for good.

    Retaining it once and binding calls made a repeated `ops.all_gather` of two GPUs take 63 us of
    the host instead of 82 (H200, 2026-11-29).
    """

    def __init__(self, driver: Any, device: int) -> None:
        del driver  # the key of a cache
        handle = bindings.call("cuDeviceGet", device)
        self._context = bindings.call("cuDevicePrimaryCtxRetain", handle)

    def __enter__(self) -> None:
        bindings.call("cuCtxPushCurrent", self._context)

    def __exit__(self, *_: object) -> None:
        bindings.call("cuCtxPopCurrent")


_pushed = functools.cache(_PrimaryContext)
