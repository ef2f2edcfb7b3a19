"""Where a test's arrays lie, and so what runs its kernels."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

__all__ = ["Backend", "Cuda", "Emulate"]


class Emulate:
    """Host arrays, which the emulator takes."""

    module: Any = np

    def array(self, host: Any) -> Any:
        return host.copy()

    def host(self, array: Any) -> Any:
        return np.asarray(array)


class Cuda:
    """The same values in CuPy arrays."""

    def __init__(self) -> None:
        self.module: Any = importlib.import_module("cupy")

    def array(self, host: Any) -> Any:
        return self.module.asarray(host)

    def host(self, array: Any) -> Any:
        return self.module.asnumpy(array)


Backend = Emulate | Cuda
