"""``demo``: a bug found on the CPU, the ready-made kernels, their speed, and pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax

import tmaasync
from tmaasync._elements import element
from tmaasync.cli import _demo_bug, _demo_emulated, _demo_pictures, _gpu
from tmaasync.cli._bench_jobs import Operation, Request
from tmaasync.cli._demo_bug import BugReport
from tmaasync.cli._demo_emulated import EmulatedCase, Job, OnGPU
from tmaasync.cli._demo_pictures import Pictures
from tmaasync.cli._tables import AsJson, print_json, table
from tmaasync.cli.bench import GpuBench, measured, show
from tmaasync.emulate.runtime_library import RUNTIME_SECONDS, build_runtime, runtime_is_built
from tmaasync.errors import ArgumentError, BackendError, TensorMapError
from tmaasync.tile import create_tma_tile

_OUTPUT = Path("tmaasync-demo")
_TIMED = (
    Request.of(Operation.COPY, (), element("float32"), is_causal=False),
    Request.of(Operation.MATMUL, (), element("bfloat16"), is_causal=False),
    Request.of(Operation.ATTENTION, (), element("bfloat16"), is_causal=True),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DemoParts:
    """The parts of the demo; by default device 0, and this machine's emulator.

    Attributes:
        gpu: The GPU that operations are timed on.
        repeat_on_gpu: Runs an emulated job there too.
        why_no_emulator: The reason why nothing can be emulated; None where it can.
        find_bug: Runs the kernel with the bug on the CPU.
        emulated_jobs: The jobs of the emulator.
    """

    gpu: GpuBench = dataclasses.field(default_factory=GpuBench)
    repeat_on_gpu: OnGPU = _gpu.repeat
    why_no_emulator: Callable[[], str | None] = _demo_emulated.why_not
    find_bug: Callable[[], BugReport] = _demo_bug.run
    emulated_jobs: tuple[Job, ...] = _demo_emulated.JOBS


def demo(
    ctx: typer.Context,
    as_json: AsJson = False,
    output: Annotated[
        Path, typer.Option("--output", help="The folder for the timeline and the pictures.")
    ] = _OUTPUT,
) -> None:
    """Find a bug in a kernel, run every ready-made kernel, measure the speed, and draw pictures.

    The kernels run on the CPU, which checks their results and looks for races. With a Hopper GPU
    they run there too, and operations are timed next to torch's and CuPy's.
    """
    parts = ctx.ensure_object(DemoParts)
    no_emulator = parts.why_no_emulator()
    if no_emulator is None:
        _make_folder(output)
    shown = _Demo(Console(highlight=False, quiet=as_json), parts, parts.gpu.why_not())
    shown.say_where(no_emulator)
    with _without_build_notices():
        if no_emulator is None:
            shown.find_bug()
            shown.run_jobs()
        shown.measure()
        shown.show_illegal_tile()
        if no_emulator is None:
            shown.draw(output)
    if as_json:
        print_json(shown.report)
    if no_emulator and shown.no_gpu:
        raise BackendError(no_emulator)
    shown.require_passed()


def _make_folder(folder: Path) -> None:
    """Make the folder of the pictures before the half minute of the demo."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError.broken(
            "--output",
            f"{str(folder)!r}",
            f"it cannot be made ({error.strerror})",
            "Pass a folder of yours",
        ) from error


@contextlib.contextmanager
def _without_build_notices() -> Iterator[None]:
    """Keep the lines about slow builds out of the progress bars, which report them already."""
    log = logging.getLogger("tmaasync")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


class _Demo:
    """The blocks of the demo: each one shows itself and adds to the report."""

    def __init__(self, console: Console, parts: DemoParts, no_gpu: str | None) -> None:
        self._console, self._parts, self.no_gpu = console, parts, no_gpu
        self._cases: list[EmulatedCase] = []
        self._blocks = 0
        self.report: dict[str, Any] = {"device": None, "reason": no_gpu}

    def say_where(self, no_emulator: str | None) -> None:
        devices = [("CPU", no_emulator), ("GPU", self.no_gpu)]
        runs = " and the ".join(name for name, reason in devices if reason is None)
        lacks = [f"Not on the {name}: {reason.rstrip('.')}." for name, reason in devices if reason]
        here = [f"Kernels run on the {runs}."] if runs else []
        self._console.print(f"tmaasync {tmaasync.__version__}.", *here, *lacks, markup=False)

    def find_bug(self) -> None:
        _build_runtime()
        found = self._parts.find_bug()
        self.report["bug"] = dataclasses.asdict(found)
        line = _demo_bug.LINE
        self._title(f"A short kernel with a bug in line {line}, run on the CPU")
        self._console.print(_highlighted(found.source, line))
        self._console.print()
        self._console.print(found.message, style="red", markup=False)
        self._console.print(
            f"\nWith {_demo_bug.FIX} in line {line} it copies the corner, and zeros outside the "
            "image:",
            markup=False,
        )
        self._console.print(found.output, markup=False)
        self._takeaway(
            "The same CUDA C++ runs on the CPU and on the GPU. On the CPU a deadlock, a race or an "
            "illegal access is an error with its line."
        )

    def run_jobs(self) -> None:
        cases = _emulate(
            self._parts.emulated_jobs, None if self.no_gpu else self._parts.repeat_on_gpu
        )
        self._cases += cases
        self.report["emulated"] = list(map(dataclasses.asdict, cases))
        self._title("The ready-made kernels, run on the CPU")
        self._console.print(_emulated_table(cases))
        self._console.print(
            "first: with compilation; races: a run that checks the order of all memory accesses; "
            "error: relative to float64" + ("." if self.no_gpu else "; GPU: to its own result.")
        )
        self._takeaway(
            "tmaasync.ops takes NumPy, CuPy, torch and JAX arrays. Every result is checked, and no "
            "race was found."
        )

    def measure(self) -> None:
        self._title("How fast they are")
        if self.no_gpu:
            self._console.print(
                "Not measured here: that takes an H100 or H200. There this block times operations "
                "next to torch's and CuPy's, as `tmaasync bench` does. The page Benchmarks of the "
                "documentation has the recorded results."
            )
            return
        with Console(stderr=True).status("timing operations on the GPU"):
            timed = [measured(request, self._parts.gpu) for request in _TIMED]
        self.report |= {"device": self._parts.gpu.name(), "timed": timed}
        for one in timed:
            show(one, self._console)
        self._takeaway("`tmaasync bench` times an operation of your sizes and types.")

    def show_illegal_tile(self) -> None:
        illegal, error = _illegal_tile()
        self.report |= {"illegal": illegal, "error": error}
        self._title("A tile that TMA cannot load")
        self._console.print(f">>> {illegal}", markup=False)
        self._console.print(error, style="red", markup=False)
        self._takeaway("Every broken rule is reported at once, before a launch, with the remedy.")

    def draw(self, folder: Path) -> None:
        pictures = _demo_pictures.save(folder)
        self.report["pictures"] = dataclasses.asdict(pictures)
        self._title("Pictures")
        _show_pictures(self._console, pictures)
        self._takeaway(
            "`tmaasync trace --plot timeline.png script.py` draws the timeline of your own kernels."
        )

    def require_passed(self) -> None:
        failed = [f"{case.name} {case.size}" for case in self._cases if not case.passed]
        if failed:
            typer.echo(f"error: differs from its reference: {', '.join(failed)}", err=True)
            raise typer.Exit(1)

    def _title(self, title: str) -> None:
        self._blocks += 1
        self._console.print(f"\n{self._blocks}. {title}\n", style="bold")

    def _takeaway(self, sentence: str) -> None:
        self._console.print(f"\n-> {sentence}", style="green", markup=False)


def _illegal_tile() -> tuple[str, str]:
    """Return a call with rows of 511 elements and tiles of 60, and its error."""
    call = "create_tma_tile(np.zeros((1000, 511), np.float16), (64, 60))"
    try:
        create_tma_tile(np.zeros((1000, 511), np.float16), (64, 60))
    except TensorMapError as error:
        return call, str(error)
    return call, ""


# --- the CPU ----------------------------------------------------------------------------------


def _progress(*columns: Any) -> Progress:
    """Return a progress bar, which shows on a terminal only."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _build_runtime() -> None:
    if runtime_is_built():
        return
    with _progress() as progress:
        progress.add_task(f"building the emulator (once, {RUNTIME_SECONDS})", total=None)
        build_runtime(notice=False)


def _emulate(jobs: Sequence[Job], on_gpu: OnGPU | None) -> list[EmulatedCase]:
    cases: list[EmulatedCase] = []
    with _progress(TextColumn("{task.completed} of {task.total}")) as progress:
        task = progress.add_task("", total=len(jobs))
        for job in jobs:
            progress.update(task, description=f"compiling and running {job.name} on the CPU")
            cases += _demo_emulated.run([job], on_gpu)
            progress.advance(task)
    return cases


def _highlighted(source: str, line: int) -> Syntax:
    return Syntax(
        source.rstrip(),
        "cuda",
        theme="ansi_dark",
        background_color="default",
        line_numbers=True,
        highlight_lines={line},
    )


def _emulated_table(cases: Sequence[EmulatedCase]) -> Any:
    with_gpu = any(case.gpu_difference is not None for case in cases)
    shown = table(
        None,
        ("tmaasync.ops", "what"),
        ("first", "next", "races", "error", *(["GPU"] if with_gpu else [])),
    )
    for case in cases:
        error = _error(case.error, "exact")
        shown.add_row(
            case.name,
            case.what,
            f"{case.first_seconds:.2f} s",
            f"{case.seconds:.3f} s",
            f"{case.races_seconds:.2f} s",
            error if case.passed else f"{error} WRONG",
            *([_error(case.gpu_difference or 0.0, "equal")] if with_gpu else []),
        )
    return shown


def _error(error: float, none: str) -> str:
    return none if error == 0 else f"{error:.1e}"


def _show_pictures(console: Console, pictures: Pictures) -> None:
    for path, what in pictures.files.items():
        console.print(f"{path}: {what}", markup=False, soft_wrap=True)
    if pictures.missing:
        console.print(f"No timeline.png: {pictures.missing}", markup=False, soft_wrap=True)
