"""A pytest plugin: tests on the CPU emulator, with races searched in every launch.

``pytest --tmaasync`` does so for all tests, the marker ``tmaasync`` for one. It is no part of the
package, whose import takes a second, because pytest imports every installed plugin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tmaasync``."""
    parser.getgroup("tmaasync").addoption(
        "--tmaasync",
        action="store_true",
        help="run Triton kernels on the CPU, and search every launch there for races",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    line = "tmaasync: run Triton kernels on the CPU, and search every launch there for races"
    config.addinivalue_line("markers", line)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let modules ask Triton for its device while pytest imports them."""
    with _searched(wanted=session.config.getoption("tmaasync")):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test and its fixtures."""
    is_marked = item.get_closest_marker("tmaasync") is not None
    with _searched(wanted=is_marked or item.config.getoption("tmaasync")):
        return (yield)


def _searched(*, wanted: bool) -> contextlib.AbstractContextManager[None]:
    if not wanted:
        return contextlib.nullcontext()
    from tmaasync._searched import searched

    return searched()
