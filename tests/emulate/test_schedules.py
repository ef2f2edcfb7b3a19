"""The shipped kernels and the examples end well, and exactly, under several interleavings.

`make false-alarms` tries 200 of each.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, ops
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy

EXAMPLES = Path(__file__).parents[2] / "examples"
SEEDS: list[tuple[Policy, int]] = [
    (policy, seed) for policy in ("random", "adversarial") for seed in range(4)
]


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
