"""The shipped kernels and the examples end well, and exactly, under several interleavings.

`make false-alarms` tries 200 of each.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import ArgumentError, _arrays, ops
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel, gemm_tiles

EXAMPLES = Path(__file__).parents[2] / "examples"
SEEDS: list[tuple[Policy, int]] = [
    (policy, seed) for policy in ("random", "adversarial") for seed in range(4)
]


def integers(rows: int, columns: int) -> Any:
    drawn = np.random.default_rng(rows).integers(-4, 5, (rows, columns))
    return drawn.astype(ml_dtypes.bfloat16)


def multiply(a: Any, b: Any, config: TileConfig) -> Any:
    (m, k), n = a.shape, b.shape[1]
    c = np.full((m, n), np.nan, np.float32)
    views = [_arrays.view(array) for array in (a, b, c)]
    tiles = gemm_tiles(views[0], views[1], views[2], config, False, False)
    kernel = gemm_kernel([tile.cuda_type for tile in tiles], False, False, config)
    # Fewer clusters than tiles, so that the ring goes on from one tile to the next.
    kernel(
        config.cluster,
        128 * (1 + config.consumers),
        (*tiles, m, n, k, 1),
        cluster=config.cluster,
    )
    return c


def test_a_persistent_gemm_in_a_cluster_is_exact_under_every_seed() -> None:
    a, b = integers(300, 520), integers(520, 200)
    wanted = a.astype(np.float64) @ b.astype(np.float64)

    for policy, seed in SEEDS:
        with scheduled(policy, seed=seed):
            assert np.array_equal(multiply(a, b, TileConfig(2, 128, 2)), wanted), (policy, seed)


def test_copies_are_exact_under_every_seed() -> None:
    x = np.random.default_rng(0).random((200, 300), np.float32)

    for policy, seed in SEEDS:
        with scheduled(policy, seed=seed):
            assert np.array_equal(ops.copy(x), x), (policy, seed)
            whole = np.full((200, 304), -1, np.float32)
            ops.copy(x, whole[:, :300])
            assert np.array_equal(whole[:, :300], x), (policy, seed)
            assert (whole[:, 300:] == -1).all()


def test_ragged_batches_are_exact_under_every_seed() -> None:
    lengths = [37, 0, 5, 36, 1]
    padded = np.random.default_rng(0).random((5, 37, 3, 32), np.float32)
    inside = np.arange(37) < np.array(lengths)[:, None]

    for policy, seed in SEEDS:
        with scheduled(policy, seed=seed):
            packed = ops.ragged_store(padded, lengths)
            assert np.array_equal(packed, padded[inside]), (policy, seed)
            spread = ops.ragged_load(packed, lengths)
            wanted = np.where(inside[..., None, None], padded, 0)
            assert np.array_equal(spread, wanted), (policy, seed)


@pytest.mark.parametrize("name", ["copy_tile", "pipelined_scale"])
def test_an_example_runs_on_the_cpu_without_cupy_and_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)

    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    assert "on the CPU, as there is no CuPy with a GPU" in capsys.readouterr().out


def test_a_policy_that_does_not_exist_lists_those_that_do() -> None:
    policy: Any = "fair"

    with pytest.raises(
        ArgumentError, match="policy is 'fair'; there are round_robin, random, adversarial"
    ):
        scheduled(policy).__enter__()
