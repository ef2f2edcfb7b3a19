"""Markers by folder, what happens without a GPU or a package, and the hypothesis profiles."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import device_memory
import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

import tmaasync
from tmaasync import Kernel, emulate
from tmaasync._driver import bindings

_GPU_TESTS = Path(__file__).parent / "gpu"
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76
_LIVING = (0, 201)  # CUDA_SUCCESS; CUDA_ERROR_INVALID_CONTEXT where the thread has no context

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


# `make test-all` installs these; where one is missing, other commands skip the tests that need it.
_PACKAGES = (
    *("cupy", "cutlass_library", "elftools", "hatchling", "matplotlib", "ml_dtypes", "torch"),
    "transformers",
)


def pytest_configure() -> None:
    """Fail where a package was promised, so that no test is skipped without a word."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if os.environ.get("TMAASYNC_REQUIRE_EXTRAS") == "1" and missing:
        raise pytest.UsageError(f"TMAASYNC_REQUIRE_EXTRAS=1, but {', '.join(missing)} are missing")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no doctests in test modules: finding that they have none takes seconds."""
    found = yield
    is_test = file_path.name.startswith("test_")
    return [one for one in found if not (is_test and isinstance(one, DoctestModule))]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark everything below tests/gpu."""
    if item.path.is_relative_to(_GPU_TESTS):
        item.add_marker("gpu")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drop the CPU's twins of cases for a GPU, and mark as slow what a sampled test leaves out."""
    items[:] = [
        item
        for item in items
        if not (_is_on_gpu(item) and _parameter(item, "backend") == "emulate")
    ]
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not (_is_on_gpu(item) or _is_of_chips(item)):
            cases.setdefault((item.path, item.nodeid.partition("[")[0]), []).append(item)
    for group in cases.values():
        (count,) = _argument(group[0], "sampled")
        kept = {index * len(group) // count for index in range(count)}
        for index, item in enumerate(group):
            if index not in kept:
                item.add_marker("slow")


def _is_of_chips(item: pytest.Item) -> bool:
    """Return whether parity/conftest.py samples the case, as it does on chips other than Hopper."""
    return item.path.parent.name == "parity" and _parameter(item, "chip") not in (None, "sm_90a")


def _parameter(item: pytest.Item, name: str) -> object:
    case = getattr(item, "callspec", None)
    return case and case.params.get(name)


def _argument(item: pytest.Item, name: str) -> tuple[Any, ...]:
    mark = item.get_closest_marker(name)
    return mark.args if mark else ()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the machine cannot run, or fail it where a GPU was promised."""
    needed = {mark.name for mark in item.iter_markers()} & {"gpu", "hopper", "cluster"}
    reason = _missing(needs_hopper=bool(needed - {"gpu"})) if needed else None
    if reason is None:
        return
    if os.environ.get("TMAASYNC_REQUIRE_GPU") == "1":
        pytest.fail(f"TMAASYNC_REQUIRE_GPU=1, but {reason}", pytrace=False)
    pytest.skip(reason)


_LARGEST_SHOWN = 10
_POOLED = "pooled device bytes"
_sampler: device_memory.PeakSampler | None = None
_pooled: dict[str, int] = {}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Watch the memory of a GPU that is promised, in the process that starts the workers."""
    global _sampler
    if os.environ.get("TMAASYNC_REQUIRE_GPU") == "1" and not hasattr(session.config, "workerinput"):
        _sampler = device_memory.PeakSampler()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector pass over what is imported and collected.

    Millions of objects stay to the end, and tests that wait for memory to be given back collect.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Leave no memory of the GPU in pools, and note how much there was."""
    yield
    if _is_on_gpu(item) and _missing(needs_hopper=False) is None:
        pooled = device_memory.pooled_bytes()
        item.user_properties.append((_POOLED, pooled))
        if pooled > device_memory.KEPT_BYTES:
            device_memory.free_pools()


def pytest_runtest_logfinish() -> None:
    """End a worker whose context a test has killed: all that it ran after would fail.

    pytest-xdist then reports the test once more, as a crash, and starts another worker.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") and _missing(needs_hopper=False) is None:
        status = ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()
        if status not in _LIVING:
            sys.stderr.write(f"a test has killed the CUDA context (error {status})\n")
            os._exit(1)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect what the tests of all workers held."""
    for name, value in report.user_properties:
        if report.when == "teardown" and name == _POOLED:
            _pooled[report.nodeid] = int(str(value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the most memory of the GPU in use, and the tests that held most."""
    if _sampler is None:
        return
    _sampler.stop()
    gib = float(1 << 30)
    terminalreporter.section("memory of the GPU")
    if _sampler.total_bytes:
        peak, total = _sampler.peak_bytes / gib, _sampler.total_bytes / gib
        terminalreporter.line(f"at most {peak:.1f} GiB of {total:.1f} GiB, of all processes")
    else:
        terminalreporter.line("NVML does not say how much was used")
    largest = sorted(_pooled.items(), key=lambda one: -one[1])[:_LARGEST_SHOWN]
    for name, held_bytes in largest:
        terminalreporter.line(f"{held_bytes / gib:6.2f} GiB {name}")


def _is_on_gpu(item: pytest.Item) -> bool:
    return any(mark.name in {"gpu", "hopper", "cluster"} for mark in item.iter_markers())


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
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every launch that was prepared: compiled if needed, its arguments checked and packed."""
    calls: list[object] = []
    original = Kernel.prepare

    def prepare(kernel: Kernel, *args: Any, **options: Any) -> Any:
        calls.append(args)
        return original(kernel, *args, **options)

    monkeypatch.setattr(Kernel, "prepare", prepare)
    return calls


@pytest.fixture
def use_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object], None]]:
    """Puts a stand-in, such as `fake_driver.Driver`, in the place of the driver's bindings.

    What the test leaves and a traceback keeps alive is given back to that driver. The
    collector looks at what the test made alone: all objects of torch take it 0.9 s.
    """
    gc.freeze()
    yield lambda driver: monkeypatch.setattr(bindings, "driver", lambda: driver)
    gc.collect()
