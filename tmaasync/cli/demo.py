"""``demo``: the main job on this machine's GPU; without one, what needs none."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tmaasync.cli import _demo_gpu, _demo_host
from tmaasync.cli._demo_gpu import Case, GpuReport
from tmaasync.cli._demo_host import Compiled, HostReport

__all__ = ["demo"]


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
) -> None:
    """Copy and multiply random arrays on the GPU, check the results and time them beside CuPy's.

    Without a Hopper GPU it shows what needs none: a tile, its 128 bytes, an illegal array with its
    remedy, the swizzle, and the shipped kernels compiled.
    """
    console = Console(highlight=False)
    reason = _demo_gpu.why_not()
    if reason is not None:
        host = _demo_host.run()
        if as_json:
            typer.echo(json.dumps({"device": None, "reason": reason, **dataclasses.asdict(host)}))
        else:
            _show_host(console, reason, host)
        return
    with Console(stderr=True).status("copying and multiplying"):
        report = _demo_gpu.run()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
    else:
        _show_gpu(console, report)
    _require_passed(report)


def _require_passed(report: GpuReport) -> None:
    failed = [f"{case.name} {case.size}" for case in report.cases if not case.passed]
    if failed:
        typer.echo(f"error: differs from its reference: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def _table(title: str, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, collapse_padding=True)
    for column in words:
        table.add_column(column)
    for column in numbers:
        table.add_column(column, justify="right")
    return table


# --- with a GPU -------------------------------------------------------------------------------


def _show_gpu(console: Console, report: GpuReport) -> None:
    table = _table(report.device, ("case", "size"), ("time", "speed", "x CuPy", "error"))
    for case in report.cases:
        table.add_row(*_cells(case))
    console.print(table)
    console.print(
        "x CuPy: speed over CuPy's own copy or product of the same arrays, timed in turns; "
        "-: it has none."
    )


def _cells(case: Case) -> tuple[str, ...]:
    ratio = "-" if case.speed_over_cupy is None else f"{case.speed_over_cupy:.3f}"
    error = "exact" if case.error == 0 else f"{case.error:.1e}"
    return (
        case.name,
        case.size,
        f"{case.microseconds:.1f} us",
        f"{case.rate:.4g} {case.unit}",
        ratio,
        error if case.passed else f"{error} WRONG",
    )


# --- without ----------------------------------------------------------------------------------


def _show_host(console: Console, reason: str, report: HostReport) -> None:
    console.print(f"No Hopper GPU to use: {reason}. What follows needs none.", soft_wrap=True)
    _section(console, "A tile of a NumPy array", report.tile)
    _section(console, "Its 128 bytes, decoded", report.decoded)
    _section(console, "A tensor that TMA cannot read, and the nearest that it can", report.illegal)
    _section(console, "Where the 16-byte chunks of a small tile land", report.swizzle)
    table = _table(
        "The shipped kernels, compiled to SASS",
        ("kernel", "configuration"),
        ("registers", "spills", "shared", "time"),
    )
    for compiled in report.kernels:
        table.add_row(*_compiled_cells(compiled))
    console.print()
    console.print(table)
    console.print("Time is that of this run; a kernel compiled before comes from the cache.")


def _section(console: Console, title: str, text: str) -> None:
    console.print()
    console.print(title, style="bold")
    console.print(text, markup=False, soft_wrap=True)


def _compiled_cells(compiled: Compiled) -> tuple[str, ...]:
    return (
        compiled.kernel,
        compiled.configuration,
        str(compiled.registers),
        f"{compiled.spill_bytes} B",
        f"{compiled.shared_bytes / 1024:.0f} KiB",
        f"{compiled.seconds:.2f} s",
    )
