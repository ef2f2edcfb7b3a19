"""Launches of one kernel on a GPU, of which all but the arguments is checked once."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray
from fake_driver import Driver

from tmaasync import Kernel, LaunchError
from tmaasync._driver import DeviceLimits, LaunchConfig, PreparedLaunch
from tmaasync.emulate import LIMITS
from tmaasync.kernel.arguments import views
from tmaasync.kernel.builds import CudaBuild, LaunchRequest, Recipe
from tmaasync.kernel.source import source_of

SOURCE = 'extern "C" __global__ void fill(float* out, int count, float value) { *out = value; }\n'


class Loaded:
    """The kernel on a device, and the launches that it was asked to allow."""

    watch, function = None, 1

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self.allowed: list[LaunchConfig] = []

    def allow(self, config: LaunchConfig, limits: DeviceLimits) -> None:
        assert limits == LIMITS
        self.allowed.append(config)


class Fill:
    """The kernel on a device, and the driver that is given its launches."""

    def __init__(self) -> None:
        self.driver = Driver(argument_sizes=(8, 4, 4))
        self.loaded: Any = Loaded(Kernel(SOURCE, "fill").compile("sm_90").entries["fill"])
        recipe = Recipe(source_of(SOURCE), "fill", None, None, lambda: None)
        self._build = CudaBuild(recipe, 0, lambda *_: self.loaded)

    def prepare(
        self, grid: Any, block: Any, args: tuple[Any, ...], *, stream: object = None, **more: Any
    ) -> PreparedLaunch:
        options = {"cluster": None, "shared_mem": None, "pdl": False, **more}
        request = LaunchRequest(grid, block, **options)
        return self._build.prepare(request, args, views(args), stream)


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch, use_driver: Callable[[object], None]) -> Fill:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    fill = Fill()
    use_driver(fill.driver)
    return fill


def array() -> CupyArray:
    return CupyArray(np.zeros(4, np.float32))


def test_a_launch_like_an_earlier_one_is_not_checked_again(fill: Fill) -> None:
    for value in range(3):
        out = array()
        fill.prepare(2, (32, 2), (out, 4, float(value)))()
        packed = [struct.pack("<Q", out.array.ctypes.data), struct.pack("<i", 4)]
        assert fill.driver.launched[-1] == (7, 0, [*packed, struct.pack("<f", value)])
    native = fill.driver.launch_configs[-1]
    assert (native.gridDimX, native.gridDimY, native.gridDimZ) == (2, 1, 1)
    assert (native.blockDimX, native.blockDimY, native.blockDimZ) == (32, 2, 1)
    assert (native.sharedMemBytes, native.numAttrs) == (0, 0)
    assert fill.loaded.allowed == [LaunchConfig((2, 1, 1), (32, 2, 1), None, 0, False, 7)]


def test_what_differs_is_checked(fill: Fill) -> None:
    launches: list[dict[str, Any]] = [
        {}, {"stream": 11}, {"pdl": True}, {"shared_mem": 64}, {"cluster": 2},
    ]  # fmt: skip
    for _ in range(2):
        for options in launches:
            fill.prepare(2, 32, (array(), 4, 1.0), **options)
        fill.prepare(4, 32, (array(), 4, 1.0))
        fill.prepare(2, 64, (array(), 4, 1.0))
    allowed = fill.loaded.allowed
    assert len(allowed) == len(set(allowed)) == len(launches) + 2


def test_extents_in_lists_are_checked_each_time(fill: Fill) -> None:
    for _ in range(2):
        fill.prepare([2, 1], 32, (array(), 4, 1.0))
    assert len(fill.loaded.allowed) == 2


def test_extents_that_are_none_are_refused_though_one_equals_them(fill: Fill) -> None:
    fill.prepare(1, 32, (array(), 4, 1.0))
    with pytest.raises(LaunchError, match=r"grid is 1\.0"):
        fill.prepare(1.0, 32, (array(), 4, 1.0))
    with pytest.raises(LaunchError, match=r"args has 2 items; fill takes 3"):
        fill.prepare(1, 32, (array(), 4))
    with pytest.raises(LaunchError, match=r"args\[1\] is 4\.5; the kernel takes a 4-byte integer"):
        fill.prepare(1, 32, (array(), 4.5, 1.0))
