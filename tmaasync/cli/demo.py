"""``demo``: the main job on this machine's GPU and on its CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from tmaasync.cli import _demo_emulated, _demo_gpu, _demo_host, _demo_pictures
from tmaasync.cli._demo_emulated import EmulatedCase, Job, OnGPU
from tmaasync.cli._demo_gpu import Case, GpuReport
from tmaasync.cli._demo_host import Compiled, HostReport
from tmaasync.cli._demo_pictures import Pictures
from tmaasync.cli._tables import AsJson, print_json, table

__all__ = ["DemoParts", "demo"]


_OUTPUT = Path("tmaasync-demo")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DemoParts:
    """The parts of the demo; by default device 0, and this machine's emulator and compiler.

    Attributes:
        why_no_gpu: The reason why there is no GPU to use; None where there is one.
        on_gpu: Runs and times the cases on the GPU.
        repeat_on_gpu: Runs an emulated job there too.
        why_no_emulator: The reason why nothing can be emulated; None where it can.
        emulated_jobs: The jobs of the emulator.
        on_host: Makes the report for machines without a GPU.
    """

    why_no_gpu: Callable[[], str | None] = _demo_gpu.why_not
    on_gpu: Callable[[], GpuReport] = _demo_gpu.run
    repeat_on_gpu: OnGPU = _demo_gpu.repeat
    why_no_emulator: Callable[[], str | None] = _demo_emulated.why_not
    emulated_jobs: tuple[Job, ...] = _demo_emulated.JOBS
    on_host: Callable[[], HostReport] = _demo_host.run


def demo(
    ctx: typer.Context,
    as_json: AsJson = False,
    output: Annotated[
        Path, typer.Option("--output", help="The folder for the timeline and the pictures.")
    ] = _OUTPUT,
) -> None:
    """Copy and multiply random arrays on the GPU, check the results and time them next to CuPy's.

    The same kernels then run on the CPU, looking for races too, and leave a timeline of their warps
    and stages. Without a Hopper GPU that comes after what needs no run: a tile, its 128 bytes, an
    illegal array with its remedy, the swizzle, and the kernels compiled to SASS.
    """
    console, parts = Console(highlight=False), ctx.ensure_object(DemoParts)
    reason = parts.why_no_gpu()
    measured: tuple[Case, ...] = ()
    if reason:
        report = _host(console, reason, parts.on_host(), as_json)
    else:
        report, measured = _gpu(console, parts, as_json)
    cases: list[EmulatedCase] = []
    no_compiler = parts.why_no_emulator()
    if no_compiler is None or reason:
        cases = _emulate(parts.emulated_jobs, None if reason else parts.repeat_on_gpu)
        pictures = _demo_pictures.save(output)
        report |= {"emulated": list(map(dataclasses.asdict, cases))}
        report |= {"pictures": dataclasses.asdict(pictures)}
        if not as_json:
            _show_emulated(console, cases)
            _show_pictures(console, pictures)
    elif not as_json:
        console.print(f"Not on the CPU too: {no_compiler}.", soft_wrap=True)
    if as_json:
        print_json(report)
    _require_passed((*measured, *cases))


def _host(console: Console, reason: str, host: HostReport, as_json: bool) -> dict[str, Any]:
    if not as_json:
        _show_host(console, reason, host)
    return {"device": None, "reason": reason, **dataclasses.asdict(host)}


def _gpu(
    console: Console, parts: DemoParts, as_json: bool
) -> tuple[dict[str, Any], tuple[Case, ...]]:
    with Console(stderr=True).status("copying and multiplying"):
        report = parts.on_gpu()
    if not as_json:
        _show_gpu(console, report)
    return dataclasses.asdict(report), report.cases


def _require_passed(cases: Sequence[Case | EmulatedCase]) -> None:
    failed = [f"{case.name} {case.size}" for case in cases if not case.passed]
    if failed:
        typer.echo(f"error: differs from its reference: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


# --- with a GPU -------------------------------------------------------------------------------


def _show_gpu(console: Console, report: GpuReport) -> None:
    shown = table(report.device, ("case", "size"), ("time", "speed", "x CuPy", "error"))
    for case in report.cases:
        shown.add_row(*_cells(case))
    console.print(shown)
    console.print(
        "x CuPy: speed over CuPy's own copy or matmul of the same arrays, timed in interleaved "
        "rounds; -: it has none."
    )


def _cells(case: Case) -> tuple[str, ...]:
    ratio = "-" if case.speed_over_cupy is None else f"{case.speed_over_cupy:.3f}"
    error = _error(case.error, "exact")
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
    shown = table(
        "The shipped kernels, compiled to SASS",
        ("kernel", "configuration"),
        ("registers", "spills", "shared", "time"),
    )
    for compiled in report.kernels:
        shown.add_row(*_compiled_cells(compiled))
    console.print()
    console.print(shown)
    console.print("Times are of this run; a kernel compiled before comes from the cache.")


def _emulate(jobs: Sequence[Job], on_gpu: OnGPU | None) -> list[EmulatedCase]:
    """Run the emulated cases with a progress bar, which shows on a terminal only."""
    cases = track(
        _demo_emulated.run(jobs, on_gpu),
        description="running the kernels on the CPU",
        total=len(jobs),
        console=Console(stderr=True),
        transient=True,
    )
    return list(cases)


def _show_emulated(console: Console, cases: Sequence[EmulatedCase]) -> None:
    with_gpu = any(case.gpu_difference is not None for case in cases)
    shown = table(
        "The same kernels run on the CPU",
        ("case", "size"),
        ("first", "time", "races", "error", *(["GPU"] if with_gpu else [])),
    )
    for case in cases:
        error = _error(case.error, "exact")
        shown.add_row(
            case.name,
            case.size,
            f"{case.first_seconds:.2f} s",
            f"{case.seconds:.3f} s",
            f"{case.races_seconds:.2f} s",
            error if case.passed else f"{error} WRONG",
            *([_error(case.gpu_difference or 0.0, "equal")] if with_gpu else []),
        )
    console.print()
    console.print(shown)
    console.print(
        "first: with the build; races: once more, every access checked against those before it, "
        "and no race found" + ("; GPU: the difference to its result." if with_gpu else ".")
    )


def _error(error: float, none: str) -> str:
    return none if error == 0 else f"{error:.1e}"


def _show_pictures(console: Console, pictures: Pictures) -> None:
    console.print()
    console.print("Pictures", style="bold")
    for path, what in pictures.files.items():
        console.print(f"{path}: {what}", markup=False, soft_wrap=True)
    if pictures.missing:
        console.print(f"No timeline.png: {pictures.missing}", markup=False, soft_wrap=True)


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
