"""Fixtures of tests whose ranks share one GPU, or all."""

from __future__ import annotations

from typing import Any

import pytest

from tmaasync import enable_peer_access


@pytest.fixture(params=["one GPU", "all GPUs"])
def devices(ranks: int, request: pytest.FixtureRequest) -> list[int]:
    """Return the device of each rank; the test module has the fixture ``ranks``."""
    cupy = pytest.importorskip("cupy")
    if request.param == "one GPU":
        return [0] * ranks
    count = int(cupy.cuda.runtime.getDeviceCount())
    if count < 2:
        pytest.skip("this process sees one GPU")
    enable_peer_access(range(count))
    return [rank % count for rank in range(ranks)]


@pytest.fixture
def streams(devices: list[int]) -> list[Any]:
    """Return a stream of each rank's device."""
    cupy = pytest.importorskip("cupy")
    own = []
    for device in devices:
        with cupy.cuda.Device(device):
            own.append(cupy.cuda.Stream(non_blocking=True))
    return own
