"""The two back ends, and the emulated chips: one body of a test runs on each."""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from parity.backends import Backend, Cuda, Emulate

from tmaasync import emulate

CHIPS = ("sm_90a", "sm_100a", "sm_120a")
_SAMPLE, _SHORT_SAMPLE = 48, 144
"""`make test-all` and `make test` run one case of this number on chips other than Hopper."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on the emulated chips, or on the chips of its marker."""
    marker = metafunc.definition.get_closest_marker("chips")
    hopper = getattr(pytest, "HIDDEN_PARAM", "sm_90a")
    chips = marker.args if marker else CHIPS
    ids = [hopper if chip == "sm_90a" else chip for chip in chips]
    metafunc.parametrize("chip", chips, ids=ids, indirect=True)


@pytest.fixture(autouse=True)
def chip(request: pytest.FixtureRequest) -> Iterator[str]:
    name = getattr(request, "param", "sm_90a")  # a doctest has no parameters
    with emulate.chip(name):
        yield str(name)


@pytest.fixture(params=["emulate", pytest.param("cuda", marks=[pytest.mark.gpu])])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "emulate":
        return Emulate()
    pytest.importorskip("cupy")
    return Cuda()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Leave to a GPU the cases that `on_the_cpu` does not number, and sample other chips."""
    found = yield
    if not isinstance(found, list):
        return found
    numbers = found and found[0].get_closest_marker("on_the_cpu")
    if numbers:
        kept = []
        for one in CHIPS:
            emulated = [item for item in found if _parameters(item) == ("emulate", one)]
            if emulated or one == "sm_90a":  # an IndexError without a back end
                kept += [emulated[number] for number in numbers.args]
        found = [item for item in found if item in kept or _parameters(item)[0] != "emulate"]
    return [item for item in found if _is_kept(item)]


def _is_kept(item: Any) -> bool:
    if _parameters(item)[1] in (None, "sm_90a"):
        return True
    if item.get_closest_marker("gpu"):
        return False
    number = zlib.crc32(item.nodeid.encode())
    if number % _SHORT_SAMPLE:
        item.add_marker("slow")
    return number % _SAMPLE == 0 or "TMAASYNC_EVERY_CHIP" in os.environ


def _parameters(item: Any) -> tuple[object, object]:
    case = getattr(item, "callspec", None)
    return (case.params.get("backend"), case.params.get("chip")) if case else (None, None)
