"""``bench``: time an operation on this GPU, interleaved with torch and CuPy."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from tmaasync import _driver
from tmaasync._elements import element
from tmaasync._timing import (
    Clocks,
    Timings,
    calls_per_slice,
    clocks_recorded,
    device_microseconds,
    time_interleaved,
)
from tmaasync.cli._bench_jobs import Job, Operation, Request, prepare
from tmaasync.cli._gpu import why_not
from tmaasync.cli._tables import AsJson, print_json, table

_OURS = "tmaasync"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBench:
    """The GPU that candidates are timed on; by default device 0.

    Attributes:
        why_not: The reason why nothing can be timed; None where it can.
        name: The name of the GPU.
        prepare: Makes the arrays and the candidates.
        microseconds: Times back-to-back calls.
        clocks_recorded: Samples clock and power meanwhile.
    """

    why_not: Callable[[], str | None] = why_not
    name: Callable[[], str] = lambda: _driver.device_limits(0).name
    prepare: Callable[[Request], Job] = prepare
    microseconds: Callable[[Callable[[], object], int], float] = device_microseconds
    clocks_recorded: Callable[[], AbstractContextManager[Clocks]] = clocks_recorded


def bench(  # noqa: PLR0913 - the work, and how long to time it
    ctx: typer.Context,
    operation: Annotated[Operation, typer.Argument(help="What to time.")],
    sides: Annotated[
        list[int] | None,
        typer.Argument(help="matmul M N K, attention BATCH POSITIONS HEADS HEAD_DIM, copy SIDES."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Element type, as in bf16 or fp16.")] = "bfloat16",
    causal: Annotated[bool, typer.Option("--causal", help="Attention with a causal mask.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds.")] = 7,
    seconds: Annotated[
        float, typer.Option(min=0.001, help="Seconds of each candidate in a round.")
    ] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Time an operation on this GPU, interleaved with torch and CuPy on the same arrays."""
    request = Request.of(operation, sides or (), element(dtype), causal)
    gpu = ctx.ensure_object(GpuBench)
    if (reason := gpu.why_not()) is not None:
        typer.echo(f"error: there is nothing to measure on: {reason}.", err=True)
        raise typer.Exit(2)
    report = measured(request, gpu, rounds, seconds)
    if as_json:
        print_json(report)
    else:
        show(report, Console(highlight=False))


def measured(
    request: Request, gpu: GpuBench, rounds: int = 7, seconds: float = 0.05
) -> dict[str, Any]:
    """Time the candidates of a request in interleaved rounds, and return the figures of each."""
    job = gpu.prepare(request)
    calls = calls_per_slice(job.candidates, seconds, gpu.microseconds)
    with gpu.clocks_recorded() as clocks:
        timings = time_interleaved(
            job.candidates, calls, rounds=rounds, microseconds=gpu.microseconds
        )
    report = _facts(request, job, timings, gpu.name())
    return report | {"rounds": rounds, "clocks": clocks.summary()}


def _facts(request: Request, job: Job, timings: Timings[str], gpu: str) -> dict[str, Any]:
    medians = timings.medians()
    return {
        "operation": request.operation,
        "sides": request.sides,
        "dtype": request.element.name,
        "causal": request.is_causal,
        "gpu": gpu,
        "unit": request.unit,
        "contestants": {
            name: {
                "microseconds": round(medians[name], 3),
                "throughput": round(request.work / medians[name] / 1e6, 3),
                "calls_per_turn": timings.calls[name],
                "tmaasync_is_faster": _spread(timings.speeds(_OURS, name)),
            }
            for name in job.candidates
        },
        "absent": job.absent,
    }


def _spread(ratios: list[float]) -> dict[str, float]:
    """Return the smallest and largest ratio within a round."""
    spread = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return {name: round(ratio, 4) for name, ratio in spread.items()}


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures of `measured`."""
    causal = " causal" if report["causal"] else ""
    sides = " x ".join(map(str, report["sides"]))
    title = f"{report['operation']}{causal} {sides} {report['dtype']} on {report['gpu']}"
    shown = table(title, ("",), ("time", "throughput", "speed-up", "min", "max"))
    for name, facts in report["contestants"].items():
        ratios = facts["tmaasync_is_faster"].values() if name != _OURS else ()
        shown.add_row(
            name,
            f"{facts['microseconds']:.1f} us",
            f"{facts['throughput']:.4g} {report['unit']}",
            *(f"{ratio:.3f} x" for ratio in ratios),
        )
    console.print(shown)
    for name, reason in report["absent"].items():
        console.print(f"Without {name}: {reason}.")
    console.print(f"Medians of {report['rounds']} interleaved rounds.")
    if report["clocks"]:
        clocks = report["clocks"]
        console.print(
            f"SM clock {clocks['sm_mhz_median']:.0f} MHz, never below {clocks['sm_mhz_min']}; "
            f"{clocks['power_w_median']:.0f} W."
        )
