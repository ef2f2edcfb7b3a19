"""Streams: their order, and their end."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from tmaasync._driver import bindings
from tmaasync._driver.devices import on_device
from tmaasync.errors import DriverError


def wait_for(stream: int, other: int) -> None:
    """Make work submitted to a stream from now on wait for what another stream holds."""
    driver = bindings.driver()
    event = bindings.call("cuEventCreate", int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    try:
        bindings.call("cuEventRecord", event, driver.CUstream(other))
        bindings.call("cuStreamWaitEvent", driver.CUstream(stream), event, 0)
    finally:
        bindings.call("cuEventDestroy", event)


def is_capturing(stream: int) -> bool:
    driver = bindings.driver()
    result, status = driver.cuStreamIsCapturing(driver.CUstream(stream))
    idle = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return int(result) != 0 or int(status) != int(idle)


def is_busy(stream: int) -> bool:
    """Query a stream for unfinished work; False too if a kernel of it has died."""
    driver = bindings.driver()
    (result,) = driver.cuStreamQuery(driver.CUstream(stream))
    return bool(result.name == "CUDA_ERROR_NOT_READY")


def synchronize(stream: int, kernel: str) -> None:
    """Wait for the work of a stream, which ends with a launch of this kernel.

    Raises:
        DriverError: It died, and the CUDA context with it.
    """
    driver = bindings.driver()
    (result,) = driver.cuStreamSynchronize(driver.CUstream(stream))
    if int(result) != 0:
        raise DriverError(
            f"{kernel} died, and the CUDA context with it: {bindings.error_text(result)}. If it "
            "broke a rule that debug builds check (TMAASYNC_DEBUG=1), stdout names the rule. "
            "Start a new process."
        )


def synchronize_device(device: int) -> None:
    """Wait for all work of a device.

    Raises:
        DriverError: A kernel died, and the CUDA context with it.
    """
    with on_device(device):
        bindings.call("cuCtxSynchronize")


def wait_for_word(device: int, stream: int, address: int, value: int) -> None:
    """Have a stream wait until ``int32(*address - value) >= 0``."""
    driver = bindings.driver()
    reached = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
    with on_device(device):
        bindings.call("cuStreamWaitValue32", driver.CUstream(stream), address, value, reached)


def write_word(device: int, stream: int, address: int, value: int) -> None:
    """Have a stream write a word of four bytes, after all its earlier work."""
    driver = bindings.driver()
    barrier = int(driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT)
    with on_device(device):
        bindings.call("cuStreamWriteValue32", driver.CUstream(stream), address, value, barrier)


def peek_word(device: int, address: int) -> int:
    """Read a word of four bytes, whatever the device's other streams wait for."""
    word = ctypes.c_uint32()
    with on_device(device):
        bindings.call("cuMemcpyDtoHAsync", ctypes.addressof(word), address, 4, _own_stream(device))
        bindings.call("cuStreamSynchronize", _own_stream(device))
    return word.value


def poke_word(device: int, address: int, value: int) -> None:
    """Write a word of four bytes, whatever the device's other streams wait for."""
    word = ctypes.c_uint32(value)
    with on_device(device):
        bindings.call("cuMemcpyHtoDAsync", address, ctypes.addressof(word), 4, _own_stream(device))
        bindings.call("cuStreamSynchronize", _own_stream(device))


def _own_stream(device: int) -> Any:
    """Return a stream that waits for no other one; the device's context is current."""
    return _made_stream(bindings.driver(), device)


@functools.cache
def _made_stream(driver: Any, device: int) -> Any:
    del device
    return bindings.call("cuStreamCreate", int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
