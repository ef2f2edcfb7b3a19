"""Examples run on the CPU, and schedules have names."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tmaasync import ArgumentError
from tmaasync.emulate import scheduled

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.sampled(1)
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
