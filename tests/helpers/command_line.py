"""How tests call the command line."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from tmaasync.cli import app


def run(*arguments: str, columns: int = 200, on: object = None) -> Any:
    """Run a command, on a terminal so wide that no cell is broken.

    ``on`` is what the command asks instead of this machine, such as a `Machine`.
    """
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, list(arguments), obj=on)


def json_of(*arguments: str, on: object = None, exit_code: int = 0) -> dict[str, Any]:
    """Return the document that a command prints with ``--json``."""
    ran = run(*arguments, "--json", on=on)
    assert ran.exit_code == exit_code, (ran.output, ran.exception)
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def assert_refused(sentence: str, *arguments: str, on: object = None) -> None:
    """Bad input: one sentence that begins like this, exit code 2, and nothing else."""
    ran = run(*arguments, on=on)
    assert ran.exit_code == 2, ran.output
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"error: {sentence}"), ran.stderr
    assert ran.stderr.count("\n") == 1
