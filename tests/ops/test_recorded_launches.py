"""Operations launch what they launched when their benchmark results were recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a process launches every call again

TESTS = Path(__file__).parents[1]
RECORD = TESTS / "data" / "launches_h200.jsonl"
OPERATIONS = (
    *("matmul", "batched", "grouped", "scaled", "conv2d", "attention", "varlen", "ragged", "copy"),
)
PARTS = ("source", "kernel", "launch configuration", "arguments", "addresses")


def launches(path: Path) -> dict[str, list[list[object]]]:
    lines = map(json.loads, path.read_text().splitlines())
    return {line["call"]: line["launches"] for line in lines}


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[object]]]:
    """Every call again, in a process of its own."""
    path = tmp_path_factory.mktemp("launches") / "launches.jsonl"
    command = [sys.executable, str(TESTS / "helpers" / "launch_recorder.py"), "--short", str(path)]
    subprocess.run(command, check=True, cwd=TESTS.parent, env=None)
    return launches(path)


def differences(expected: list[list[object]], got: list[list[object]]) -> list[str]:
    if len(expected) != len(got):
        return [f"{len(got)} launches, not {len(expected)}"]
    return [
        f"launch {index}: {part} {after} instead of {before}"
        for index, (old, new) in enumerate(zip(expected, got, strict=True))
        for part, before, after in zip(PARTS, old, new, strict=True)
        if before != after
    ]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_launch_what_was_recorded(
    operation: str, replayed: dict[str, list[list[object]]]
) -> None:
    """For all details run helpers/launch_recorder.py on both commits and compare the files."""
    expected = {
        call: found for call, found in launches(RECORD).items() if call.split()[0] == operation
    }

    wrong = {call: differences(found, replayed[call]) for call, found in expected.items()}

    assert expected
    assert {call: found for call, found in wrong.items() if found} == {}


def test_every_recorded_call_is_of_an_operation_above() -> None:
    assert {call.split()[0] for call in launches(RECORD)} == set(OPERATIONS)
