"""``verify``: explore all interleavings of a script's kernels on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tmaasync._searched import on_cpu
from tmaasync.cli._scripts import run_script, text_of
from tmaasync.cli._tables import AsJson, print_json
from tmaasync.emulate.launch.verdict import Verdict
from tmaasync.emulate.launch.verify import verifying
from tmaasync.errors import ArgumentError

_EXIT_CODES = {"clean": 0, "violated": 1, "incomplete": 2}


def verify(
    file: Annotated[str, typer.Argument(metavar="SCRIPT.py", help="A Python script.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the script; options after --."),
    ] = None,
    max_runs: Annotated[int, typer.Option(help="Maximum number of runs for each launch.")] = 1000,
    max_seconds: Annotated[float, typer.Option(help="Maximum seconds for each launch.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Run a script's kernels on the CPU in all interleavings, and give a verdict on each launch.

    The exit code is 1 if one is violated or the script fails, whatever its own code; else 2 if
    something was not checked, and 0 if all are clean.
    """
    with (
        on_cpu(text_of(file)),
        verifying(max_runs=max_runs, max_seconds=max_seconds) as verification,
    ):
        wanted = "a Python script"
        code = run_script(Path(file), arguments or [], quietly=as_json, wanted=wanted)
    verdict = Verdict(tuple(verification.verdicts))
    if not verdict.launches and not code:
        rule, remedy = "it launches no kernel on the CPU", "Pass a script that launches some"
        raise ArgumentError.broken("file", f"{file!r}", rule, remedy)
    if as_json:
        print_json({"file": file, **verdict.as_dict()})
    else:
        typer.echo(str(verdict))
    raise typer.Exit(1 if code else _EXIT_CODES[verdict.status])
