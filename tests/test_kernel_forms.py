"""Launches of one kernel on a GPU, of which all but the arguments is checked once."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray

from tmaasync import Kernel, LaunchError, _driver
from tmaasync._driver import LaunchConfig
from tmaasync.kernel import builds

SOURCE = 'extern "C" __global__ void fill(float* out, int count, float value) { *out = value; }\n'


class Launch:
    """A prepared launch as it was made."""

    def __init__(
        self, function: Any, config: LaunchConfig, packed: list[bytes], *_: object
    ) -> None:
        self.config, self.packed = config, packed

    def __call__(self) -> None:
        pass


class Loaded:
    """The kernel on a device, and the launches that it was asked to allow."""

    watch, function = None, 1

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self.allowed: list[LaunchConfig] = []

    def allow(self, config: LaunchConfig, threads_per_block: int) -> None:
        assert threads_per_block == 1024
        self.allowed.append(config)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> tuple[Kernel, Loaded]:
    kernel = Kernel(SOURCE, "fill")
    found = Loaded(kernel.compile("sm_90").entries["fill"])
    limits = SimpleNamespace(compute_capability=(9, 0), shared_bytes=232448, threads_per_block=1024)
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    monkeypatch.setattr(_driver, "require_device", lambda _: limits)
    monkeypatch.setattr(_driver, "on_device", lambda _: nullcontext())
    monkeypatch.setattr(builds, "PreparedLaunch", Launch)
    monkeypatch.setattr(builds.CudaBuild, "load", lambda *_, **__: found)
    return kernel, found


def array() -> CupyArray:
    return CupyArray(np.zeros(4, np.float32))


def test_a_launch_like_an_earlier_one_is_not_checked_again(loaded: tuple[Kernel, Loaded]) -> None:
    kernel, found = loaded
    for value in range(3):
        out = array()
        launch: Any = kernel.prepare(2, (32, 2), (out, 4, float(value)))
        pointer = out.array.ctypes.data.to_bytes(8, "little")
        assert launch.packed == [pointer, (4).to_bytes(4, "little"), np.float32(value).tobytes()]
        assert launch.config == LaunchConfig((2, 1, 1), (32, 2, 1), None, 0, False, 7)
    assert len(found.allowed) == 1


def test_what_differs_is_checked(loaded: tuple[Kernel, Loaded]) -> None:
    kernel, found = loaded
    launches: list[dict[str, Any]] = [
        {}, {"stream": 11}, {"pdl": True}, {"shared_mem": 64}, {"cluster": 2},
    ]  # fmt: skip
    for _ in range(2):
        for options in launches:
            kernel(2, 32, (array(), 4, 1.0), **options)
        kernel(4, 32, (array(), 4, 1.0))
        kernel(2, 64, (array(), 4, 1.0))
    assert len(found.allowed) == len(set(found.allowed)) == len(launches) + 2


def test_extents_in_lists_are_checked_each_time(loaded: tuple[Kernel, Loaded]) -> None:
    kernel, found = loaded
    for _ in range(2):
        kernel([2, 1], 32, (array(), 4, 1.0))
    assert len(found.allowed) == 2


def test_extents_that_are_none_are_refused_though_one_equals_them(
    loaded: tuple[Kernel, Loaded],
) -> None:
    kernel, _ = loaded
    kernel(1, 32, (array(), 4, 1.0))
    with pytest.raises(LaunchError, match=r"grid is 1\.0"):
        kernel(1.0, 32, (array(), 4, 1.0))  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=r"args has 2 items; fill takes 3"):
        kernel(1, 32, (array(), 4))
    with pytest.raises(LaunchError, match=r"args\[1\] is 4\.5; the kernel takes a 4-byte integer"):
        kernel(1, 32, (array(), 4.5, 1.0))
