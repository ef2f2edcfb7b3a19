"""Tuning on the chip: every candidate runs, and ops.matmul takes the winner that was kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import ops
from tmaasync.ops import _tuning
from tmaasync.ops._gemm import tuned
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.legal_tiles import is_legal
from tmaasync.ops._operation import tile_configs
from tmaasync.ops._tuning import DeviceGemm, Request, tune

cupy = pytest.importorskip("cupy")

REQUESTS = [
    Request(640, 520, 264, "bfloat16", "nt"),
    Request(500, 300, 100, "float16", "nn"),
    Request(300, 500, 72, "float16", "tn"),
    Request(9, 1000, 136, "bfloat16", "nt"),
]
TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4}


class Watched(DeviceGemm):
    """Notes how far each result is from NumPy's in float64."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.errors: list[float] = []
        a, b, _ = (cupy.asnumpy(view.owner) for view in self._views)
        self.wanted = a.astype(np.float64) @ b.astype(np.float64)

    def distance(self, array: Any) -> float:
        error = np.linalg.norm(cupy.asnumpy(array).astype(np.float64) - self.wanted)
        return float(error / np.linalg.norm(self.wanted))

    def error(self) -> float:
        self.errors.append(self.distance(self._views[2].owner))
        return super().error()


@pytest.fixture(autouse=True)
def own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_tuning, "_SECONDS_PER_SLICE", 0.001)
    tuned.forget()
    yield
    tuned.forget()


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_every_candidate_runs_and_the_winner_is_taken(request_: Request) -> None:
    gemm = Watched(request_)

    winner = tune(gemm)

    assert is_legal(winner.config, gemm.problem)
    assert len(gemm.errors) == len({gemm.default, *gemm.candidates})
    assert max(gemm.errors) < TOLERANCE[request_.dtype]
    other = next(one for one in gemm.candidates if one != gemm.default)
    tuned.keep(gemm.gpu, [tuned.Winner(gemm.problem, other, 1.0, 1.0)])
    taken: list[TileConfig] = []

    def noted(config: TileConfig) -> TileConfig:
        taken.append(config)
        return config

    a, b, _ = (view.owner for view in gemm._views)
    with tile_configs(noted):
        assert gemm.distance(ops.matmul(a, b)) < TOLERANCE[request_.dtype]
    assert taken == [other]
