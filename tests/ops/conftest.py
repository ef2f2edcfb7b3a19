"""Fixtures of the calls that are found again, and of what is tuned."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_arrays import Cupy, CupyArray, Tensor, Torch

from tmaasync._source.cache_folder import cache_dir
from tmaasync.ops import _all_gather_matmul, _matmul_reduce
from tmaasync.ops._gemm import tuned

Make = Callable[..., Any]


def on_device(array: Any, device: str = "cuda:0") -> Tensor:
    return Tensor(array, device=device)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


@pytest.fixture(params=["cupy", "torch", "torch without guards"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes an array of one of the frameworks over NumPy memory."""
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    monkeypatch.setitem(sys.modules, "torch", Torch(has_guards=request.param == "torch"))
    return CupyArray if request.param == "cupy" else on_device


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Tuned configs of this test's own."""
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path))
    tuned.forget()
    yield cache_dir() / "tuned"
    tuned.forget()


@pytest.fixture
def overlapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matmuls of several ranks run in one kernel, however few rows there are."""
    monkeypatch.setattr(_all_gather_matmul, "_FEW_ROWS", 0)
    for kind in (_matmul_reduce.MatmulReduceScatter, _matmul_reduce.MatmulAllReduce):
        monkeypatch.setattr(kind, "few_rows", 0)
