"""Markers by folder, what happens without a GPU, and the hypothesis profiles."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tmaasync
from tmaasync import emulate
from tmaasync._driver import bindings

_GPU_TESTS = Path(__file__).parent / "gpu"
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76

# Shared machines stall: a deadline per example would fail tests for the neighbour's load.
settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile(
    "ci",
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_report_header() -> str:
    """Say which copy of the package is under test."""
    return f"tmaasync {tmaasync.__version__} from {Path(tmaasync.__file__).parent}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark everything below tests/gpu."""
    if item.path.is_relative_to(_GPU_TESTS):
        item.add_marker("gpu")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the machine cannot run, or fail it where a GPU was promised."""
    needed = {mark.name for mark in item.iter_markers()} & {"gpu", "hopper", "cluster"}
    reason = _missing(needs_hopper=bool(needed - {"gpu"})) if needed else None
    if reason is None:
        return
    if os.environ.get("TMAASYNC_REQUIRE_GPU") == "1":
        pytest.fail(f"TMAASYNC_REQUIRE_GPU=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@functools.cache
def _missing(*, needs_hopper: bool) -> str | None:
    """Return what the machine lacks for a test on the GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no CUDA driver: {error}"
    status = driver.cuInit(0)
    if status != 0:
        return f"no CUDA device: cuInit returned {status}"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        return "no CUDA device: cuDeviceGetCount says 0"
    capability = tuple(
        _attribute(driver, number)
        for number in (_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR)
    )
    if needs_hopper and capability != (9, 0):
        return f"device 0 has compute capability {capability[0]}.{capability[1]}, not 9.0"
    return None


def _attribute(driver: ctypes.CDLL, number: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
    return value.value


@pytest.fixture(autouse=True)
def races() -> Iterator[None]:
    """Every kernel that a test runs on the CPU is searched for races."""
    with emulate.scheduled(races=True):
        yield


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python then neither finds nor imports it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def use_driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Puts a stand-in, such as `fake_driver.Driver`, in the place of the driver's bindings."""
    return lambda driver: monkeypatch.setattr(bindings, "driver", lambda: driver)
