"""The two back ends: one body of a test runs on either."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from parity.backends import Backend, Cuda, Emulate


@pytest.fixture(params=["emulate", pytest.param("cuda", marks=[pytest.mark.gpu])])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "emulate":
        return Emulate()
    pytest.importorskip("cupy")
    return Cuda()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Leave to a GPU the cases of a test that `on_the_cpu` does not number."""
    found = yield
    if not isinstance(found, list):
        return found
    numbers = found and found[0].get_closest_marker("on_the_cpu")
    if not numbers:
        return found
    emulated = [item for item in found if _back_end(item) == "emulate"]
    kept = [emulated[number] for number in numbers.args]  # an IndexError without a back end
    return [item for item in found if item in kept or item not in emulated]


def _back_end(item: Any) -> object:
    case = getattr(item, "callspec", None)
    return case and case.params.get("backend")
