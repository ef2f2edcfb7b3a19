"""Compiled modules, loaded by the driver."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from tmaasync._driver import bindings
from tmaasync.errors import DriverError


def load_module(path: Path, device: int) -> Any:
    """Return the module of a cubin in the current context, which is the device's.

    Raises:
        DriverError: The driver refuses the cubin.
    """
    return _load_once(bindings.driver(), path, device)


def load_own_module(path: Path, device: int) -> Any:
    """Load a cubin that may be loaded already, once more: this module has variables of its own.

    Raises:
        DriverError: The driver refuses the cubin.
    """
    return _load(bindings.driver(), path, device)


@functools.cache  # per file and device, as in CuPy: two kernels of one source share a module
def _load_once(driver: Any, path: Path, device: int) -> Any:
    return _load(driver, path, device)


def _load(driver: Any, path: Path, device: int) -> Any:
    # Never released: a context that nobody retains is destroyed, and its modules with it.
    bindings.call("cuDevicePrimaryCtxRetain", bindings.call("cuDeviceGet", device))
    data = path.read_bytes()
    image = ctypes.create_string_buffer(data)  # with the null byte that ends PTX
    result, module = driver.cuModuleLoadData(ctypes.addressof(image))
    if int(result) == _NEWER_PTX:
        raise DriverError(
            "the driver does not load the PTX module: its .version is newer than the driver. "
            "Update the driver, or have the compiler write an older .version."
        )
    if int(result) != 0:
        is_ptx = path.suffix == ".ptx"
        remedy = (
            "ptxas names the line"
            if is_ptx
            else "`tmaasync doctor` compares the driver with NVRTC, which compiled it"
        )
        raise bindings.fatal(result) or DriverError(
            f"the driver does not load {path}: {bindings.error_text(result)} {remedy}."
        )
    return module


def module_function(module: Any, name: str) -> int:
    """Return the handle of a kernel of a module."""
    return int(bindings.call("cuModuleGetFunction", module, name.encode()))


_NEWER_PTX = 222  # CUDA_ERROR_UNSUPPORTED_PTX_VERSION
_NOT_FOUND = 500


def module_global(module: Any, name: str) -> int | None:
    """Return the address of a variable of a module; None if it has none of this name."""
    result, address, _ = bindings.driver().cuModuleGetGlobal(module, name.encode())
    if int(result) == _NOT_FOUND:
        return None
    if int(result) != 0:
        raise bindings.fatal(result) or DriverError(
            f"cuModuleGetGlobal failed: {bindings.error_text(result)}"
        )
    return int(address)
