"""The main job on a Hopper GPU: copies and matmuls through the public API, checked and timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import _driver, ops
from tmaasync._driver import DeviceLimits
from tmaasync._timing import Timings, calls_per_slice, time_interleaved
from tmaasync._wheels import install_command
from tmaasync.errors import BackendError

__all__ = ["Case", "GpuReport", "repeat", "run", "why_not"]

_ROUNDS = 7
_SECONDS_PER_SLICE = 0.03
_ROWS_CHECKED = 128
# One rounding to the output type, relative to the Frobenius norm, with room.
_TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation on one size; ``error`` is 0 where every bit is right."""

    name: str
    size: str
    microseconds: float
    throughput: float
    unit: str
    speed_over_cupy: float | None
    error: float
    tolerance: float
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """All cases on one device."""

    device: str
    cases: tuple[Case, ...]


def why_not(
    require_device: Callable[[int], DeviceLimits] = _driver.require_device,
) -> str | None:
    """Return why the job cannot run here; None if it can."""
    try:
        capability = require_device(0).compute_capability
    except BackendError as error:
        return str(error).partition(". ")[0]
    if capability != (9, 0):
        return f"device 0 is sm_{capability[0]}{capability[1]}, without wgmma, which matmuls need"
    try:
        _cupy()
    except ImportError:
        return f"CuPy is not installed ({install_command('cuda13', 'cupy')})"
    return None


def run() -> GpuReport:
    """Run every case on device 0."""
    with _cupy().cuda.Device(0):
        return GpuReport(device=_driver.device_limits(0).name, cases=tuple(_cases()))


def repeat(run: Callable[..., Any], arrays: tuple[np.ndarray[Any, Any], ...]) -> Any:
    """Run a job of the emulator on copies of its arrays on device 0; its result, as NumPy's."""
    cupy = _cupy()
    with cupy.cuda.Device(0):
        return cupy.asnumpy(run(*map(cupy.asarray, arrays)))


def _cupy() -> Any:
    """CuPy, for the arrays of a user: the demo is one. The package itself does not need it here."""
    return importlib.import_module("cupy")


def _cases() -> Iterator[Case]:
    flat = _normal((1 << 28,))
    yield _copy_case("copy", "1 GiB", flat, _nan_like(flat))
    whole = _normal((8192, 16384))
    window = (slice(None), slice(8192))
    yield _copy_case("copy window", "8192x8192 fp32", whole[window], _nan_like(whole)[window])
    yield _matmul_case("bfloat16", 4096, 4096, 4096)
    yield _matmul_case("bfloat16", 4001, 3999, 4008)
    yield _matmul_case("float16", 4096, 4096, 4096)


def _normal(shape: tuple[int, ...], seed: int = 0) -> Any:
    cupy = _cupy()
    return cupy.random.default_rng(seed).standard_normal(shape, dtype=cupy.float32)


def _nan_like(array: Any) -> Any:
    return _cupy().full_like(array, np.nan)


# --- copies -----------------------------------------------------------------------------------


def _copy_case(name: str, size: str, source: Any, target: Any) -> Case:
    ops.copy(source, target)
    wrong = int((source.view(np.uint32) != target.view(np.uint32)).sum())
    timings = _race(
        {
            "tmaasync": lambda: ops.copy(source, target),
            "cupy": lambda: _cupy().copyto(target, source),
        }
    )
    microseconds = timings.medians()["tmaasync"]
    return Case(
        name=name,
        size=size,
        microseconds=microseconds,
        throughput=2 * source.nbytes / microseconds / 1e6,
        unit="TB/s",
        speed_over_cupy=_speed_over_cupy(timings),
        error=wrong / source.size,
        tolerance=0.0,
        passed=wrong == 0,
    )


# --- matmuls ----------------------------------------------------------------------------------


def _matmul_case(dtype: str, m: int, n: int, k: int) -> Case:
    """A[M, K] times the transpose of B[N, K], as the weights of a layer are stored."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    a = _normal((m, k)).astype(kind)
    b = _normal((n, k), seed=1).astype(kind)
    out = ops.matmul(a, b.T)
    error = _relative_error(out, a, b)
    candidates: dict[str, Callable[[], Any]] = {"tmaasync": lambda: ops.matmul(a, b.T, out=out)}
    if _cupy_multiplies(kind):
        theirs = _cupy().empty((m, n), kind)
        candidates["cupy"] = lambda: _cupy().matmul(a, b.T, out=theirs)
    timings = _race(candidates)
    microseconds = timings.medians()["tmaasync"]
    return Case(
        name=f"matmul {dtype}",
        size=f"{m}x{n}x{k}",
        microseconds=microseconds,
        throughput=2 * m * n * k / microseconds / 1e6,
        unit="TFLOP/s",
        speed_over_cupy=_speed_over_cupy(timings),
        error=error,
        tolerance=_TOLERANCE[dtype],
        passed=error < _TOLERANCE[dtype],
    )


def _cupy_multiplies(kind: np.dtype[Any]) -> bool:
    """True if CuPy multiplies this type; bfloat16 depends on its version."""
    cupy = _cupy()
    small = cupy.zeros((16, 16), kind)
    try:
        cupy.matmul(small, small.T, out=cupy.empty_like(small))
    except Exception:  # TypeError, ValueError or cuBLAS's own, by version
        return False
    return True


def _relative_error(out: Any, a: Any, b: Any) -> float:
    """Against float64 on the GPU, on rows drawn at random."""
    cupy = _cupy()
    rows = cupy.asarray(np.random.default_rng(0).integers(len(a), size=_ROWS_CHECKED))
    got, left, right = (matrix.astype(cupy.float32) for matrix in (out, a, b))
    got, left = got[rows].astype(cupy.float64), left[rows].astype(cupy.float64)
    wanted = left @ right.astype(cupy.float64).T
    return float(cupy.linalg.norm(got - wanted) / cupy.linalg.norm(wanted))


# --- time -------------------------------------------------------------------------------------


def _race(candidates: dict[str, Callable[[], Any]]) -> Timings[str]:
    calls = calls_per_slice(candidates, _SECONDS_PER_SLICE)
    return time_interleaved(candidates, calls, rounds=_ROUNDS)


def _speed_over_cupy(timings: Timings[str]) -> float | None:
    return timings.speed("tmaasync", "cupy") if "cupy" in timings.calls else None
