"""Autotuning (tmaasync tune): find the fastest tile config of a GEMM by running candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._timing import Timings, calls_per_slice, device_microseconds, time_interleaved
from tmaasync.errors import ArgumentError, TMAError
from tmaasync.kernel import backend_of
from tmaasync.ops._allocation import empty_rows
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tuned import Winner
from tmaasync.ops._layouts import Layout
from tmaasync.ops._matmul import Matmul
from tmaasync.ops._operation import tile_configs

_LAYOUTS = ("nn", "nt", "tn", "tt")
_ROUGH_ROUNDS = 2
_ROUNDS = 9
_FINALISTS = 6
_SECONDS_PER_SLICE = 0.01
_LEAST_GAIN = 1.01  # over the cost model's choice; less is noise
# Error of one rounding to the output type, relative to the Frobenius norm, with room.
_TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4}


class Request(NamedTuple):
    """A GEMM to tune: ``layout`` says for A and B whether it or its transpose (t) is stored."""

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    layout: str = "nt"

    def check(self) -> None:
        for name, side in (("M", self.m), ("N", self.n), ("K", self.k)):
            if side < 1:
                raise ArgumentError.broken(name, side, "it must be 1 or more", "Pass M N K")
        if self.dtype not in _TOLERANCE:
            raise ArgumentError.broken(
                "dtype", self.dtype, f"it must be {' or '.join(_TOLERANCE)}", "Pass one"
            )
        if self.layout not in _LAYOUTS:
            raise ArgumentError.broken(
                "layout",
                self.layout,
                f"it must be one of {', '.join(_LAYOUTS)}",
                "Pass nt for a B that is stored as [N, K]",
            )


class Gemm(Protocol):
    """A GEMM that can be run in any tile config: on a device, or a stand-in for one."""

    problem: Problem
    default: TileConfig
    candidates: Sequence[TileConfig]

    def prepare(self, config: TileConfig) -> Callable[[], object]:
        """Compile, run once, and return a function that runs it again.

        Raises:
            TMAError: The tile config does not compile, or cannot be launched.
        """

    def error(self) -> float:
        """Return how far the last run's result is from the first one's, relative to its norm."""

    def microseconds(self, run: Callable[[], object], calls: int) -> float:
        """Return the time of a call, averaged over ``calls``."""


def steps(gemm: Gemm) -> int:
    """Return how often `tune` reports progress."""
    return len(_contestants(gemm)) + _ROUGH_ROUNDS + _ROUNDS


def tune(gemm: Gemm, on_step: Callable[[], object] = lambda: None) -> Winner:
    """Return the tile config that runs a GEMM fastest, in interleaved rounds.

    Tile configs that do not compile, or whose result differs from the cost model's choice, do not
    take part. The cost model's choice stays unless it is beaten by more than noise.
    """
    tolerance = _TOLERANCE[gemm.problem.output]
    runs: dict[TileConfig, Callable[[], object]] = {}
    for config in _contestants(gemm):
        try:
            run = gemm.prepare(config)
        except TMAError:
            if config == gemm.default:
                raise
        else:
            is_right = gemm.error() <= tolerance
            if is_right or config == gemm.default:
                runs[config] = run
        on_step()
    rough = _race(gemm, runs, _ROUGH_ROUNDS, on_step).medians()
    fastest = sorted(runs, key=rough.__getitem__)[:_FINALISTS]
    finalists = {config: runs[config] for config in (gemm.default, *fastest)}
    timings = _race(gemm, finalists, _ROUNDS, on_step)
    return _winner(gemm, timings)


def _contestants(gemm: Gemm) -> list[TileConfig]:
    """Return the cost model's choice first: the others are compared with its result."""
    return [gemm.default, *(other for other in gemm.candidates if other != gemm.default)]


def _race(
    gemm: Gemm,
    runs: Mapping[TileConfig, Callable[[], object]],
    rounds: int,
    on_step: Callable[[], object],
) -> Timings[TileConfig]:
    clock = gemm.microseconds
    calls = calls_per_slice(runs, _SECONDS_PER_SLICE, clock)
    return time_interleaved(runs, calls, rounds=rounds, microseconds=clock, on_round=on_step)


def _winner(gemm: Gemm, timings: Timings[TileConfig]) -> Winner:
    def gain(config: TileConfig) -> float:
        return timings.speed(config, gemm.default)

    best = max(timings.calls, key=gain)
    if gain(best) < _LEAST_GAIN:
        best = gemm.default
    medians = timings.medians()
    return Winner(gemm.problem, best, medians[best], medians[gemm.default])


# --- on a GPU ---------------------------------------------------------------------------------


class DeviceGemm:
    """A GEMM of normally distributed numbers on CuPy's current device."""

    def __init__(self, request: Request) -> None:
        """Make the matrices, the `problem` to tune, and its tile configs."""
        request.check()
        import cupy

        device = int(cupy.cuda.Device().id)
        backend = backend_of(device)
        self.gpu = backend.limits.name
        m, n, k, dtype, layout = request
        a = _normal((m, k), layout[0], dtype, device, seed=0)
        b = _normal((k, n), layout[1], dtype, device, seed=1)
        c = _blank((m, n), dtype, device)
        self._cupy = cupy
        self._views = tuple(map(_arrays.view, (a, b, c)))
        left, right, out = map(Layout.of, self._views)
        self._layouts = left, right, out._replace(owns_padding=True)
        operation, occupancy = Matmul(*self._layouts), Occupancy.of(backend)
        self.problem = operation.problem
        self.default = operation.config_on(None, occupancy)
        self.candidates = operation.candidates_on(occupancy)
        self._expected: Any = None

    def prepare(self, config: TileConfig) -> Callable[[], object]:
        operation = Matmul(*self._layouts)
        a, b, c = self._views
        owner: Any = c.owner
        owner.fill(math.nan)
        with tile_configs(lambda _: config):
            operation.run(a, b, c, None)
        binding = operation.bind([view.address for view in self._views])
        if binding is None:
            raise RuntimeError("matrices whose rows TMA can reach need no staging copies")
        launch, pointers = binding
        return launch.bind(pointers, operation.backend.stream(("cupy",)))

    def error(self) -> float:
        owner: Any = self._views[2].owner
        got = owner.astype(self._cupy.float32)
        if self._expected is None:
            self._expected = got
        norm = self._cupy.linalg.norm
        return float(norm(got - self._expected) / norm(self._expected))

    def microseconds(self, run: Callable[[], object], calls: int) -> float:
        return device_microseconds(run, calls)


def _normal(shape: tuple[int, int], stored: str, dtype: str, device: int, *, seed: int) -> Any:
    """Return normally distributed numbers; on zeros the chip would clock higher."""
    import cupy

    matrix = _blank(shape if stored == "n" else shape[::-1], dtype, device)
    numbers = cupy.random.default_rng(seed).standard_normal(matrix.shape, dtype=cupy.float32)
    matrix[...] = numbers.astype(matrix.dtype)
    return matrix if stored == "n" else matrix.T


def _blank(shape: tuple[int, int], dtype: str, device: int) -> Any:
    """Return rows that TMA can reach, whatever their length."""
    kind = element(dtype)
    like = ArrayView(0, shape, (0, 0), kind, device, False, "cupy", None)
    return empty_rows(like, shape, kind)
