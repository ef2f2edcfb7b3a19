"""Devices: what they allow a launch, and which one is current."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tmaasync._driver import bindings
from tmaasync.errors import BackendError

__all__ = [
    "DeviceLimits",
    "current_device",
    "cycle_ns",
    "device_limits",
    "on_device",
    "require_device",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """Limits of a device on its launches."""

    name: str
    compute_capability: tuple[int, int]
    sms: int
    shared_bytes: int
    threads_per_block: int


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


def current_device() -> int | None:
    """Return the ordinal of the current context's device; None without a current context."""
    result, device = bindings.driver().cuCtxGetDevice()
    return int(device) if int(result) == 0 else None


def on_device(device: int | None) -> contextlib.AbstractContextManager[None]:
    """Make the device's primary context current for a while; nothing for host memory."""
    return _HERE if device is None or current_device() == device else _pushed(device)


_HERE = contextlib.nullcontext()


@contextlib.contextmanager
def _pushed(device: int) -> Iterator[None]:
    handle = bindings.call("cuDeviceGet", device)
    context = bindings.call("cuDevicePrimaryCtxRetain", handle)
    bindings.call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        bindings.call("cuCtxPopCurrent")
        bindings.call("cuDevicePrimaryCtxRelease", handle)
