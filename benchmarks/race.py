"""Candidates timed side by side: interleaved rounds, one stream, clocks recorded, results kept.

The protocol: warm up every candidate, then run rounds in which each runs one slice of calls, in an
order that differs from round to round, so that clock drift and neighbours hit all alike. A slice
begins with calls that are not timed: work that follows something lighter would else run at its
higher clock.
The number that counts is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cupy
from result_files import (
    RESULTS,
    Row,
    Section,
    kept_rows,
    name_in_paths,
    write_part,
    write_section,
)

from tmaasync._timing import (
    Timings,
    calls_per_slice,
    clocks_recorded,
    device_microseconds,
    time_interleaved,
)

_OURS = "tmaasync"
_PACKAGES = (
    "cupy-cuda13x",
    "torch",
    "triton",
    "numpy",
    "cuda-bindings",
    "cuda-core",
    "nvidia-cuda-nvrtc",
)


def race(
    candidates: dict[str, Callable[[], Any]],
    *,
    rounds: int = 7,
    seconds_per_slice: float = 0.05,
    reference: str,
    works_per_call: int = 1,
) -> dict[str, Any]:
    """Time device work: microseconds per unit, and each candidate's speed over the reference's.

    A call does ``works_per_call`` units of work; more than one where they are `captured`.
    """
    calls = calls_per_slice(candidates, seconds_per_slice)
    with clocks_recorded() as clocks:
        timings = time_interleaved(candidates, calls, rounds=rounds)
    return {
        "us": {name: round(us / works_per_call, 3) for name, us in timings.medians().items()},
        "speed_over_" + reference: _speeds(timings, reference),
        "rounds": rounds,
        "calls_per_slice": calls,
        "clocks": clocks.summary(),
    }


def plain_race(
    candidates: dict[str, Callable[[], Any]],
    *,
    rounds: int = 6,
    calls: int = 20,
    rest_s: float = 0.0,
    reference: str,
) -> dict[str, Any]:
    """Time short slices, every call of them, each after a rest of the device."""

    def timed(run: Callable[[], Any], count: int) -> float:
        time.sleep(rest_s)
        return device_microseconds(run, count, is_sustained=False)

    for run in candidates.values():
        timed(run, calls)
    timings = time_interleaved(
        candidates, dict.fromkeys(candidates, calls), rounds=rounds, microseconds=timed
    )
    return {**_speeds(timings, reference), "rounds": rounds, "calls_per_slice": calls}


def _speeds(timings: Timings[str], reference: str) -> dict[str, Any]:
    """Return each candidate's speed over the reference's: median and extremes over the rounds."""
    ratios = {name: timings.speeds(name, reference) for name in timings.microseconds}
    return {
        name: {
            "median": round(statistics.median(values), 4),
            "min": round(min(values), 4),
            "max": round(max(values), 4),
        }
        for name, values in ratios.items()
    }


def speed_text(row: Row, reference: str) -> str:
    """Return our speed over a reference's as benchmarks print it: median and extremes."""
    ratio = row[f"speed_over_{reference}"][_OURS]
    return f"{ratio['median']:.3f} x {reference} ({ratio['min']:.3f} to {ratio['max']:.3f})"


def geometric_mean(rows: Iterable[Row], reference: str) -> float:
    """Return the geometric mean of our median speeds over a reference's."""
    return statistics.geometric_mean(
        row[f"speed_over_{reference}"][_OURS]["median"] for row in rows
    )


def tera_per_second(row: Row, work: float, digits: int = 1) -> dict[str, float]:
    """Return each candidate's throughput in 1e12 of the work's unit a second."""
    return {name: round(work / us / 1e6, digits) for name, us in row["us"].items()}


def relative_error(got: Any, wanted: Any) -> float:
    """Return how far a torch tensor is from one of float64, relative to the norm."""
    return float((got.double() - wanted).norm() / wanted.norm())


def captured(works: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """Capture units of work in one CUDA graph, so that the host's cost does not count.

    They must launch on torch's current stream.
    """
    import torch  # noqa: PLC0415

    for work in works:
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    return graph.replay


def host_race(
    candidates: dict[str, Callable[[], Any]],
    *,
    rounds: int = 15,
    calls: int = 300,
    reference: str,
) -> dict[str, Any]:
    """Time the host's side alone: microseconds per call, the device drained between slices."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        for _ in range(50):
            run()
    for _ in range(rounds):
        for name, run in candidates.items():
            cupy.cuda.Device().synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            times[name].append((time.perf_counter() - begin) * 1e6 / calls)
    return {
        "us": {name: round(statistics.median(values), 3) for name, values in times.items()},
        "cost_over_" + reference: {
            name: round(
                statistics.median(
                    own / theirs for own, theirs in zip(values, times[reference], strict=True)
                ),
                3,
            )
            for name, values in times.items()
        },
        "rounds": rounds,
        "calls_per_slice": calls,
    }


def record(
    section: str,
    rows: list[Row],
    *,
    is_part: bool = False,
    versions: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write a section of this GPU's results, with date and versions; a part of it row by row.

    ``versions`` has the versions of peers that are not among the usual packages.
    """
    measured = circumstances()
    measured["packages"] |= versions
    path = RESULTS / name_in_paths(measured["gpu"]) / f"{section}.jsonl"
    write = write_part if is_part else write_section
    return write(path, Section(measured, rows))


@contextmanager
def recorded(
    section: str, *, is_part: bool = False, versions: Mapping[str, str] = MappingProxyType({})
) -> Iterator[list[Row]]:
    """Record the rows that the ``with`` adds to the list, and print the path.

    Where it is cut off, the rows that there are replace earlier ones of their cases.
    """

    def keep(rows: list[Row], is_whole: bool) -> None:
        path = record(section, rows, is_part=is_part or not is_whole, versions=versions)
        print(path, flush=True)

    with kept_rows(keep) as rows:
        yield rows


def circumstances() -> dict[str, Any]:
    """Return the date, the GPU and the versions that a section is measured with."""
    runtime = cupy.cuda.runtime
    gpu = runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": gpu,
        "driver": _driver_version(),
        "cuda_driver_api": runtime.driverGetVersion(),
        "cuda_runtime": runtime.runtimeGetVersion(),
        "nvrtc": list(cupy.cuda.nvrtc.getVersion()),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in _PACKAGES},
    }


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
