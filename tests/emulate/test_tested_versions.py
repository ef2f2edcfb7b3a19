"""A warning where an adapter meets another release of its compiler."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator

import pytest

from tmaasync._tested_versions import check_version


@pytest.fixture(autouse=True)
def no_memory() -> Iterator[None]:
    check_version.cache_clear()
    yield
    check_version.cache_clear()


@pytest.mark.parametrize("installed", ["3.10.0", "3.90", "4.0", "3"])
def test_another_release_is_named(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed)
    text = rf"^triton is {installed}; tmaasync\.triton was tested with 3\.9.* triton==3\.9\.\*"
    with pytest.warns(UserWarning, match=text):
        check_version("triton", "3.9", "tmaasync.triton")


@pytest.mark.parametrize("installed", ["3.9", "3.9.0", "3.9.2+git1"])
def test_a_tested_release_passes(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_version("triton", "3.9", "tmaasync.triton")


def test_a_compiler_built_from_source_passes() -> None:
    check_version("a-distribution-that-nobody-has", "1", "tmaasync.triton")
