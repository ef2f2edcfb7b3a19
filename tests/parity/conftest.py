"""The two back ends: one body of a test runs on either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


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
        self.module = self._cupy = pytest.importorskip("cupy")

    def array(self, host: Any) -> Any:
        return self._cupy.asarray(host)

    def host(self, array: Any) -> Any:
        return self._cupy.asnumpy(array)


@pytest.fixture(params=["emulate", pytest.param("cuda", marks=[pytest.mark.gpu])])
def backend(request: pytest.FixtureRequest) -> Emulate | Cuda:
    return Emulate() if request.param == "emulate" else Cuda()
