"""Bindings of the CUDA driver, and the errors that its statuses become."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tmaasync.errors import BackendError, DriverError


@functools.cache
def driver() -> Any:
    """Return the driver bindings, initialised.

    Raises:
        BackendError: There is no driver, or it has no device.
    """
    return start(_bindings)


def _bindings() -> Any:
    from cuda.bindings import driver

    return driver


def start(load: Callable[[], Any]) -> Any:
    """Load the driver bindings, and initialise them.

    Raises:
        BackendError: There is no driver, or it has no device.
    """
    try:
        found = load()
        (result,) = found.cuInit(0)
    except Exception as error:  # the loader raises RuntimeError, ImportError or its own kind
        raise BackendError(
            "there is no CUDA driver on this machine, and device arrays need one. "
            f"Install NVIDIA's driver, or pass NumPy arrays. ({error})"
        ) from error
    if int(result) != 0:
        raise BackendError(
            f"the CUDA driver does not start ({result.name}): no NVIDIA GPU is visible. Check "
            "nvidia-smi and CUDA_VISIBLE_DEVICES."
        )
    return found


def call(name: str, *arguments: Any) -> Any:
    """Call the driver; return its first result after the status."""
    values = results(name, *arguments)
    return values[0] if values else None


def results(name: str, *arguments: Any) -> list[Any]:
    """Call the driver; return its results after the status.

    Raises:
        DriverError: The call failed.
    """
    values: list[Any]
    result, *values = getattr(driver(), name)(*arguments)
    require_success(name, result)
    return values


def require_success(name: str, result: Any) -> None:
    """Raise the error of a call's status, unless it succeeded.

    Raises:
        DriverError: The call failed.
    """
    if int(result) != 0:
        raise fatal(result) or DriverError(f"{name} failed: {error_text(result)}")


def error_text(result: Any) -> str:
    _, text = driver().cuGetErrorString(result)
    return f"{result.name}. {text.decode() if text else ''}"


# Errors of a context whose kernel trapped, or accessed an invalid address.
_FATAL = {
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
}


def fatal(result: Any) -> DriverError | None:
    """Return the error of every call after a kernel died; None for others."""
    if result.name not in _FATAL:
        return None
    return DriverError(
        f"an earlier kernel died, and the CUDA context with it: {error_text(result)}. Start a new "
        "process with TMAASYNC_DEBUG=1 in its environment, where kernels say what they were given "
        "wrong, or run the kernel on NumPy arrays."
    )


def device_count() -> int:
    """Return the number of devices that this process sees.

    Raises:
        BackendError: There is no driver, or it has no device.
    """
    return _device_count(driver())


@functools.cache
def _device_count(bindings: Any) -> int:
    result, count = bindings.cuDeviceGetCount()
    require_success("cuDeviceGetCount", result)
    return int(count)


def driver_version() -> tuple[int, int]:
    """Return the newest CUDA that the driver runs.

    Raises:
        BackendError: There is no driver, or it has no device.
    """
    major, rest = divmod(int(call("cuDriverGetVersion")), 1000)
    return major, rest // 10
