"""Products with epilogues drawn at random, and what they must give, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync import ops
from tmaasync._elements import element

Array = np.ndarray[Any, Any]

# Error of one rounding to the output type, relative to the Frobenius norm, with room.
TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 2e-5}


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


ACTIVATIONS: dict[str | None, Any] = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}


def dtype_of(name: str) -> np.dtype[Any]:
    return element(name).dtype


@dataclass(frozen=True)
class Kind:
    """What a product is asked for; orders are those of a, b, c and out in memory."""

    operands: str = "bfloat16"
    output: str = "bfloat16"
    orders: str = "CFCC"
    alpha: float = 1.0
    scales: str = ""  # "n" for a number, "a" for an array, of each operand
    beta: float | None = None  # None: there is no c
    in_place: bool = False
    bias: str | None = None
    activation: str | None = None


KINDS = (
    Kind(bias="float32", activation="gelu"),
    Kind("float16", "float32", "CCCC", 0.5, "aa", -1.5, bias="float16", activation="silu"),
    Kind("bfloat16", "bfloat16", "FCCC", 1.0, "an", 0.25, in_place=True, activation="relu"),
    Kind("float16", "float16", "CFCF", beta=1.0, bias="float32", activation="gelu_tanh"),
    Kind("bfloat16", "float32", "FFFF", -1.0, "", 2.0, in_place=True, bias="bfloat16"),
    Kind("bfloat16", "float32", "CFCC", 2.0, "", 1.0),
    Kind(scales="na", bias="bfloat16", activation="relu"),
)


def among_nans(backend: Any, values: Array, order: str = "C") -> Any:
    """The values in the middle of an array of NaNs, rows or columns contiguous."""
    stored = values.T if order == "F" else values
    *outer, last = stored.shape
    whole = np.full((*(side + 2 for side in outer), -(-last // 8) * 8 + 16), np.nan, values.dtype)
    middle = (*(slice(1, 1 + side) for side in outer), slice(8, 8 + last))
    whole[middle] = stored
    placed = backend.array(whole)[middle]
    return placed.T if order == "F" else placed


@dataclass(frozen=True)
class Problem:
    """A product [m, k] x [k, n] of one kind."""

    kind: Kind
    m: int
    n: int
    k: int
    seed: int

    def check(self, backend: Any) -> None:
        """Multiply twice, the second time by the plan of the first, and compare."""
        kind, rng = self.kind, np.random.default_rng(self.seed)

        def drawn(shape: tuple[int, ...], name: str) -> Array:
            return rng.standard_normal(shape).astype(dtype_of(name))

        a, b = drawn((self.m, self.k), kind.operands), drawn((self.k, self.n), kind.operands)
        c = drawn((self.m, self.n), kind.output)
        bias = None if kind.bias is None else drawn((self.n,), kind.bias)
        scales = [round(float(scale), 2) for scale in rng.uniform(0.5, 2, len(kind.scales))]
        given: dict[str, Any] = {"alpha": kind.alpha, "activation": kind.activation}
        for name, how, scale in zip(("scale_a", "scale_b"), kind.scales, scales, strict=False):
            is_array = how == "a"
            given[name] = backend.array(np.array([scale], np.float32)) if is_array else scale
        if bias is not None:
            given["bias"] = among_nans(backend, bias)
        placed = [
            among_nans(backend, matrix, order)
            for matrix, order in zip((a, b, c), kind.orders, strict=False)
        ]
        for _ in range(2):
            start = c if kind.in_place else np.full_like(c, np.nan)
            out = among_nans(backend, start, kind.orders[3])
            if kind.beta is not None:
                given |= {"c": out if kind.in_place else placed[2], "beta": kind.beta}
            ops.matmul(placed[0], placed[1], out=out, **given)
            self._compare(backend.host(out), a, b, c, bias, scales)
            self._assert_nothing_beside(backend, out)

    def _compare(
        self, got: Array, a: Array, b: Array, c: Array, bias: Array | None, scales: list[float]
    ) -> None:
        kind = self.kind
        wanted = kind.alpha * math.prod(scales) * (a.astype(np.float64) @ b.astype(np.float64))
        if kind.beta is not None:
            wanted = wanted + kind.beta * c.astype(np.float64)
        if bias is not None:
            wanted = wanted + bias.astype(np.float64)
        wanted = ACTIVATIONS[kind.activation](wanted)
        error = np.abs(got.astype(np.float64) - wanted)
        # Of every element, not only of most.
        room = TOLERANCE[kind.output] * (np.abs(wanted) + np.abs(wanted).mean() + 1)
        assert (error <= room).all(), (self, float((error / room).max()))

    def _assert_nothing_beside(self, backend: Any, out: Any) -> None:
        out[...] = backend.array(np.full(out.shape, np.nan, backend.host(out).dtype))
        whole = out.base if out.base.ndim == 2 and out.base.base is None else out.base.base
        assert np.isnan(backend.host(whole).astype(np.float32)).all(), self


def problem(number: int, most: int) -> Problem:
    """The kinds one after the other, of odd shapes, half of them with few rows or columns."""
    rng = np.random.default_rng(number)
    m, n, k = (int(side) for side in rng.integers(1, most, 3))
    if number // len(KINDS) % 2:
        m = min(m, int(rng.integers(1, 65)))
    return Problem(KINDS[number % len(KINDS)], m, n, k, number)
