"""Device 0, for the commands that measure on it with CuPy's arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tmaasync import _driver
from tmaasync._driver import DeviceLimits
from tmaasync._wheels import install_command
from tmaasync.errors import BackendError


def why_not(
    require_device: Callable[[int], DeviceLimits] = _driver.require_device,
) -> str | None:
    """Return why nothing can be measured here; None if it can."""
    try:
        capability = require_device(0).compute_capability
    except BackendError as error:
        return str(error).partition(". ")[0]
    if capability != (9, 0):
        return f"device 0 is sm_{capability[0]}{capability[1]}, without wgmma, which matmuls need"
    try:
        importlib.import_module("cupy")
    except ImportError:
        return f"CuPy is not installed ({install_command('cuda13', 'cupy')})"
    return None


def repeat(run: Callable[..., Any], arrays: tuple[np.ndarray[Any, Any], ...]) -> Any:
    """Run a job of the emulator on copies of its arrays on device 0; its result, as NumPy's."""
    cupy = importlib.import_module("cupy")
    with cupy.cuda.Device(0):
        return cupy.asnumpy(run(*map(cupy.asarray, arrays)))
