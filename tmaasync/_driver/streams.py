"""Streams: their order, and their end."""

from __future__ import annotations

from tmaasync._driver import bindings
from tmaasync.errors import DriverError

__all__ = ["is_busy", "is_capturing", "synchronize", "wait_for"]


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
