"""The fastest blocking of a product, found by running all that are legal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._streams import stream_of
from tmaasync._timing import Timings, calls_per_slice, device_microseconds, time_interleaved
from tmaasync.errors import ArgumentError, TMAError
from tmaasync.ops._blocking import Blocking
from tmaasync.ops._results import empty_rows
from tmaasync.ops.gemm.arguments import check_operands
from tmaasync.ops.gemm.candidates import candidates
from tmaasync.ops.gemm.choice import default_blocking
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.plan import new_plan
from tmaasync.ops.gemm.problem import Problem
from tmaasync.ops.gemm.tuned import Winner

__all__ = ["DeviceProduct", "Product", "Request", "steps", "tune"]

_LAYOUTS = ("nn", "nt", "tn", "tt")
_ROUGH_ROUNDS = 2
_ROUNDS = 9
_FINALISTS = 6
_SECONDS_PER_SLICE = 0.01
_LEAST_GAIN = 1.01  # what the model's choice must be beaten by: less is noise
# Of one rounding to the output type, relative to the Frobenius norm, with room.
_TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4}


class Request(NamedTuple):
    """A product to tune: ``layout`` says for A and B whether it or its transpose (t) is stored."""

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    layout: str = "nt"

    def check(self) -> None:
        """Refuse what is no product.

        Raises:
            ArgumentError: A side is not positive, or type or layout are unknown.
        """
        for name, side in (("M", self.m), ("N", self.n), ("K", self.k)):
            if side < 1:
                raise ArgumentError(f"{name} is {side}; it must be 1 or more. Pass M N K.")
        if self.dtype not in _TOLERANCE:
            raise ArgumentError(
                f"dtype is {self.dtype}; it must be {' or '.join(_TOLERANCE)}. Pass one."
            )
        if self.layout not in _LAYOUTS:
            raise ArgumentError(
                f"layout is {self.layout}; it must be one of {', '.join(_LAYOUTS)}. Pass nt for "
                "the product with a matrix stored as [N, K]."
            )


class Product(Protocol):
    """A product that can be run in any blocking: on a device, or a stand-in for one."""

    problem: Problem
    default: Blocking
    multiprocessors: int

    def prepare(self, blocking: Blocking) -> Callable[[], object]:
        """Compile, run once, and return what runs it again.

        Raises:
            TMAError: The blocking does not compile, or cannot be launched.
        """

    def error(self) -> float:
        """How far the last run's result is from the first one's, relative to its norm."""

    def microseconds(self, run: Callable[[], object], calls: int) -> float:
        """The time of a call, in so many."""


def steps(product: Product) -> int:
    """How often `tune` reports progress."""
    return len(_contestants(product)) + _ROUGH_ROUNDS + _ROUNDS


def tune(product: Product, on_step: Callable[[], object] = lambda: None) -> Winner:
    """The blocking that runs a product fastest, in rounds in which all take turns.

    Blockings that do not compile, or whose result is not that of the model's choice, do not take
    part. The model's choice stays unless it is beaten by more than noise.
    """
    tolerance = _TOLERANCE[product.problem.output]
    runs: dict[Blocking, Callable[[], object]] = {}
    for blocking in _contestants(product):
        try:
            run = product.prepare(blocking)
        except TMAError:
            if blocking == product.default:
                raise
        else:
            is_right = product.error() <= tolerance
            if is_right or blocking == product.default:
                runs[blocking] = run
        on_step()
    rough = _race(product, runs, _ROUGH_ROUNDS, on_step).medians()
    fastest = sorted(runs, key=rough.__getitem__)[:_FINALISTS]
    finalists = {blocking: runs[blocking] for blocking in (product.default, *fastest)}
    turns = _race(product, finalists, _ROUNDS, on_step)
    return _winner(product, turns)


def _contestants(product: Product) -> list[Blocking]:
    """The model's choice first: its result is what the others are compared with."""
    found = candidates(product.problem, product.multiprocessors)
    return [product.default, *(other for other in found if other != product.default)]


def _race(
    product: Product,
    runs: Mapping[Blocking, Callable[[], object]],
    rounds: int,
    on_step: Callable[[], object],
) -> Timings[Blocking]:
    clock = product.microseconds
    calls = calls_per_slice(runs, _SECONDS_PER_SLICE, clock)
    return time_interleaved(runs, calls, rounds=rounds, microseconds=clock, on_round=on_step)


def _winner(product: Product, turns: Timings[Blocking]) -> Winner:
    def gain(blocking: Blocking) -> float:
        return turns.speed(blocking, product.default)

    best = max(turns.calls, key=gain)
    if gain(best) < _LEAST_GAIN:
        best = product.default
    medians = turns.medians()
    return Winner(product.problem, best, medians[best], medians[product.default])


# --- on a GPU ---------------------------------------------------------------------------------


class DeviceProduct:
    """A product of matrices of normally distributed numbers on CuPy's current device."""

    def __init__(self, request: Request) -> None:
        """Make the matrices; `problem` and `default` say what is to be tuned.

        Raises:
            ArgumentError: The request is no product.
            BackendError: There is no GPU that has TMA.
        """
        request.check()
        import cupy

        device = int(cupy.cuda.Device().id)
        limits = _driver.require_device(device)
        m, n, k, dtype, layout = request
        a = _normal((m, k), layout[0], dtype, device, seed=0)
        b = _normal((k, n), layout[1], dtype, device, seed=1)
        c = _blank((m, n), dtype, device)
        self.gpu = limits.name
        self._cupy = cupy
        self._views = tuple(map(_arrays.view, (a, b, c)))
        left, right, out = map(Matrix.of, self._views)
        check_operands(left, right)
        self._matrices = left, right, out._replace(owns_padding=True)
        self.problem = new_plan(*self._matrices).problem
        self.multiprocessors = limits.multiprocessors
        self.default = default_blocking(self.problem, self.multiprocessors)
        self._expected: Any = None

    def prepare(self, blocking: Blocking) -> Callable[[], object]:
        """See `Product`."""
        plan = new_plan(*self._matrices, blocking)
        a, b, c = self._views
        owner: Any = c.owner
        owner.fill(math.nan)
        plan.run(a, b, c, None)
        addresses = [view.address for view in self._views]
        stream = stream_of(("cupy",), c.device)
        return lambda: plan.start(addresses, stream)

    def error(self) -> float:
        """See `Product`."""
        owner: Any = self._views[2].owner
        got = owner.astype(self._cupy.float32)
        if self._expected is None:
            self._expected = got
        norm = self._cupy.linalg.norm
        return float(norm(got - self._expected) / norm(self._expected))

    def microseconds(self, run: Callable[[], object], calls: int) -> float:
        """See `Product`."""
        return device_microseconds(run, calls)


def _normal(shape: tuple[int, int], stored: str, dtype: str, device: int, *, seed: int) -> Any:
    """Normally distributed numbers; on zeros the chip would clock higher."""
    import cupy

    matrix = _blank(shape if stored == "n" else shape[::-1], dtype, device)
    numbers = cupy.random.default_rng(seed).standard_normal(matrix.shape, dtype=cupy.float32)
    matrix[...] = numbers.astype(matrix.dtype)
    return matrix if stored == "n" else matrix.T


def _blank(shape: tuple[int, int], dtype: str, device: int) -> Any:
    """Rows that TMA can reach, whatever their length."""
    kind = element(dtype)
    like = ArrayView(0, shape, (0, 0), kind, device, False, "cupy", None)
    return empty_rows(like, shape, kind)
