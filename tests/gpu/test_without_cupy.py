"""Everything on torch tensors, in a process where CuPy cannot be imported."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("without_cupy.py")


def part_names() -> list[str]:
    """The functions without parameters that the script has as parts, read without running it."""
    tree = ast.parse(SCRIPT.read_text())
    (parts,) = (
        node.value.generators[0].iter
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.DictComp)
    )
    assert isinstance(parts, ast.Tuple)
    return [part.id for part in parts.elts if isinstance(part, ast.Name)]


@functools.cache
def outcomes() -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=280, check=False
    )
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line["error"] for line in lines} | {"stderr": run.stderr}


@pytest.mark.hopper
@pytest.mark.parametrize("name", part_names())
def test_a_part_is_right_without_cupy(name: str) -> None:
    found = outcomes()

    assert name in found, f"the process ended before: {found['stderr']}"
    assert found[name] is None, found[name]
