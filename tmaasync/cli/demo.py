"""``demo``: the main job on this machine's GPU; without one, what needs none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tmaasync.cli import _demo_emulated, _demo_gpu, _demo_host
from tmaasync.cli._demo_emulated import EmulatedCase
from tmaasync.cli._demo_gpu import Case, GpuReport
from tmaasync.cli._demo_host import Compiled, HostReport

__all__ = ["demo"]


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of tables.")
    ] = False,
) -> None:
    """Copy and multiply random arrays on the GPU, check the results and time them beside CuPy's.

    Without a Hopper GPU the same kernels run on the CPU, after what needs no run: a tile, its 128
    bytes, an illegal array with its remedy, the swizzle, and the kernels compiled to SASS.
    """
    console = Console(highlight=False)
    reason = _demo_gpu.why_not()
    if reason is not None:
        host = _demo_host.run()
        if not as_json:
            _show_host(console, reason, host)
        cases = _emulate()
        if as_json:
            whole = dataclasses.asdict(host) | {"emulated": list(map(dataclasses.asdict, cases))}
            typer.echo(json.dumps({"device": None, "reason": reason, **whole}))
        else:
            _show_emulated(console, cases)
        _require_passed(cases)
        return
    with Console(stderr=True).status("copying and multiplying"):
        report = _demo_gpu.run()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
    else:
        _show_gpu(console, report)
    _require_passed(report.cases)


def _require_passed(cases: Sequence[Case | EmulatedCase]) -> None:
    failed = [f"{case.name} {case.size}" for case in cases if not case.passed]
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


def _emulate() -> list[EmulatedCase]:
    """Run the emulated cases behind a progress bar, which shows on a terminal only."""
    console = Console(stderr=True)
    cases = track(
        _demo_emulated.run(),
        description="running the kernels on the CPU",
        total=len(_demo_emulated.CASES),
        console=console,
        transient=True,
    )
    return list(cases)


def _show_emulated(console: Console, cases: Sequence[EmulatedCase]) -> None:
    table = _table(
        "The same kernels run on the CPU", ("case", "size"), ("with build", "time", "error")
    )
    for case in cases:
        error = "exact" if case.error == 0 else f"{case.error:.1e}"
        table.add_row(
            case.name,
            case.size,
            f"{case.first_seconds:.2f} s",
            f"{case.seconds:.3f} s",
            error if case.passed else f"{error} WRONG",
        )
    console.print()
    console.print(table)


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
