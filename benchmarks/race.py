"""Contestants timed side by side: interleaved rounds, one stream, clocks recorded, results kept.

The protocol: warm every contestant up, then rounds in which each one runs in turn, so that whatever
the clocks and the neighbours do, they do to all. The number that counts is the median over rounds
of the ratio within a round.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cupy

RESULTS = Path(__file__).parent / "results"
_PACKAGES = (
    "cupy-cuda13x",
    "torch",
    "triton",
    "numpy",
    "cuda-bindings",
    "cuda-core",
    "nvidia-cuda-nvrtc",
)


@dataclass
class Clocks:
    """SM clock in MHz and power in W, sampled while a race runs."""

    sm_mhz: list[int] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        if not self.sm_mhz:
            return {}
        return {
            "sm_mhz_median": statistics.median(self.sm_mhz),
            "sm_mhz_min": min(self.sm_mhz),
            "power_w_median": statistics.median(self.power_w),
        }


@contextlib.contextmanager
def clocks_recorded(period_s: float = 0.02) -> Iterator[Clocks]:
    """Sample the device's clocks in a thread; without NVML nothing is recorded."""
    clocks = Clocks()
    try:
        import pynvml  # noqa: PLC0415

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(cupy.cuda.Device().id)
    except Exception:  # NVML is an extra: the race counts without it
        yield clocks
        return
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(period_s):
            clocks.sm_mhz.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
            clocks.power_w.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield clocks
    finally:
        stop.set()
        thread.join()


def race(
    contestants: dict[str, Callable[[], Any]],
    *,
    rounds: int = 7,
    seconds_per_turn: float = 0.05,
    reference: str,
    works_per_call: int = 1,
) -> dict[str, Any]:
    """Time device work: microseconds per piece, and each contestant's speed over the reference's.

    A call does ``works_per_call`` pieces of it; more than one where they are `captured`.
    """
    turns = {name: _calls_for(run, seconds_per_turn) for name, run in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    with clocks_recorded() as clocks:
        for _ in range(rounds):
            for name, run in contestants.items():
                times[name].append(_device_us(run, turns[name]) / works_per_call)
    ratios = {
        name: [theirs / own for theirs, own in zip(times[reference], own_times, strict=True)]
        for name, own_times in times.items()
    }
    return {
        "us": {name: round(statistics.median(values), 3) for name, values in times.items()},
        "speed_over_" + reference: {
            name: {
                "median": round(statistics.median(values), 4),
                "min": round(min(values), 4),
                "max": round(max(values), 4),
            }
            for name, values in ratios.items()
        },
        "rounds": rounds,
        "calls_per_turn": turns,
        "clocks": clocks.summary(),
    }


def captured(works: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """Pieces of work as one CUDA graph, so that short ones are not timed by their host's cost.

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


def _calls_for(run: Callable[[], Any], seconds: float) -> int:
    for _ in range(3):
        run()
    cupy.cuda.get_current_stream().synchronize()
    return max(3, int(seconds * 1e6 / max(_device_us(run, 3), 1.0)))


def _device_us(run: Callable[[], Any], calls: int) -> float:
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1000 / calls


def host_race(
    contestants: dict[str, Callable[[], Any]],
    *,
    rounds: int = 15,
    calls: int = 300,
    reference: str,
) -> dict[str, Any]:
    """Time the host's side alone: microseconds per call, the device drained between turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        for _ in range(50):
            run()
    for _ in range(rounds):
        for name, run in contestants.items():
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
        "calls_per_turn": calls,
    }


def record(section: str, rows: Any) -> Path:
    """Put a benchmark's rows into the results file of this GPU, with date and versions."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    name = properties["name"].decode()
    path = RESULTS / f"{name.lower().replace(' ', '_')}.json"
    whole = json.loads(path.read_text()) if path.exists() else {}
    whole[section] = {"measured": _circumstances(name), "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    return path


def _circumstances(gpu: str) -> dict[str, Any]:
    runtime = cupy.cuda.runtime
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
