"""Tuning on the chip: every candidate runs, and products take the winner that was kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import ops
from tmaasync.ops._launches import LaunchCache
from tmaasync.ops.gemm import gemm_kernel, operation, plan, tuned
from tmaasync.ops.gemm import tune as tuning
from tmaasync.ops.gemm.candidates import candidates, is_legal
from tmaasync.ops.gemm.tune import DeviceProduct, Request, tune

cupy = pytest.importorskip("cupy")

REQUESTS = [
    Request(640, 520, 264, "bfloat16", "nt"),
    Request(500, 300, 100, "float16", "nn"),
    Request(300, 500, 72, "float16", "tn"),
    Request(9, 1000, 136, "bfloat16", "nt"),
]
TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4}


class Watched(DeviceProduct):
    """Notes how far each result is from float64, and what NumPy says the product is."""

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
    monkeypatch.setattr(tuned, "_folder", lambda: tmp_path / "tuned")
    monkeypatch.setattr(tuning, "_SECONDS_PER_TURN", 0.001)
    monkeypatch.setattr(operation, "_LAUNCHES", LaunchCache())
    tuned._blockings.cache_clear()
    plan.plan_for.cache_clear()
    yield
    tuned._blockings.cache_clear()
    plan.plan_for.cache_clear()


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_every_candidate_runs_and_the_winner_is_taken(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = Watched(request_)

    winner = tune(product)

    assert is_legal(winner.blocking, product.problem)
    assert len(product.errors) == len({product.default, *candidates(product.problem, 132)})
    assert max(product.errors) < TOLERANCE[request_.dtype]
    other = next(one for one in candidates(product.problem, 132) if one != product.default)
    tuned.keep(product.gpu, [tuned.Winner(product.problem, other, 1.0, 1.0)])
    taken: list[Any] = []

    def kernel_of(*described: Any) -> Any:
        taken.append(described[-1])
        return gemm_kernel(*described)

    monkeypatch.setattr(plan, "gemm_kernel", kernel_of)
    a, b, _ = (view.owner for view in product._views)
    assert product.distance(ops.matmul(a, b)) < TOLERANCE[request_.dtype]
    assert taken == [other]
