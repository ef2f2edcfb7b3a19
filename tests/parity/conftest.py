"""The two back ends: one body of a test runs on either."""

from __future__ import annotations

import pytest
from parity.backends import Backend, Cuda, Emulate


@pytest.fixture(params=["emulate", pytest.param("cuda", marks=[pytest.mark.gpu])])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "emulate":
        return Emulate()
    pytest.importorskip("cupy")
    return Cuda()
