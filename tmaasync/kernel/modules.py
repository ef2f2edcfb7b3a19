"""Compiled modules on a device: loaded by CuPy where it was imported, else by the CUDA driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Protocol

from tmaasync import _driver


class Module(Protocol):
    """A module on one device; the device's context must be current in every call."""

    path: Path  # of the cubin

    def function(self, name: str) -> int:
        """Return the handle of a kernel."""

    def global_address(self, name: str) -> int | None:
        """Return the address of a variable; None if the module lacks it."""


def load_module(path: Path, device: int) -> Module:
    """Load a cubin, or a PTX module, on a device whose context is current.

    If CuPy was imported, its ``RawModule`` loads a cubin, else the driver. Each file is loaded
    once per device, and stays loaded until the process ends, because a CUDA graph may hold its
    kernels.
    """
    cupy = sys.modules.get("cupy")
    if cupy is not None and path.suffix == ".cubin":
        return _CupyModule(cupy, path, device)
    return _DriverModule(path, _driver.load_module(path, device))


def load_own_module(path: Path, device: int) -> Module:
    """Load a separate copy of a cubin, with its own variables; the device's context is current."""
    return _DriverModule(path, _driver.load_own_module(path, device))


class _CupyModule:
    def __init__(self, cupy: Any, path: Path, device: int) -> None:
        self.path = path
        self._cupy = cupy
        self._module = cupy.RawModule(path=str(path))
        self._device = cupy.cuda.Device(device)

    def function(self, name: str) -> int:
        with self._device:
            return int(self._module.get_function(name).kernel.ptr)

    def global_address(self, name: str) -> int | None:
        try:
            with self._device:
                return int(self._module.get_global(name).ptr)
        except self._cupy.cuda.driver.CUDADriverError:
            return None


class _DriverModule:
    def __init__(self, path: Path, module: Any) -> None:
        self.path = path
        self._module = module

    def function(self, name: str) -> int:
        return _driver.module_function(self._module, name)

    def global_address(self, name: str) -> int | None:
        return _driver.module_global(self._module, name)
