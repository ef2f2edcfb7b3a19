"""Matmuls with epilogues drawn at random, and what they must give, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync import ops
from tmaasync._elements import element

Array = np.ndarray[Any, Any]

# Error of one rounding to the output type, with room.
TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 2e-5, "int32": 0.0}
# Error of FP8 accumulators, relative to the magnitudes of the terms.
SUMS_TOLERANCE = 2**-10
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "uint8")


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
    """The options of a matmul; ``orders`` are the memory orders of a, b, c and out."""

    operands: str = "bfloat16"  # of float8 and 8-bit integers two, by a slash
    output: str = "bfloat16"
    orders: str = "CFCC"
    alpha: float = 1.0
    scales: str = ""  # "n" for a number, "a" for an array, of each operand
    beta: float | None = None  # None: there is no c
    in_place: bool = False
    bias: str | None = None
    activation: str | None = None

    @property
    def types(self) -> tuple[str, str]:
        """Of a and of b."""
        a, _, b = self.operands.partition("/")
        return a, b or a


KINDS = (
    Kind(bias="float32", activation="gelu"),
    Kind("float16", "float32", "CCCC", 0.5, "aa", -1.5, bias="float16", activation="silu"),
    Kind("bfloat16", "bfloat16", "FCCC", 1.0, "an", 0.25, in_place=True, activation="relu"),
    Kind("float16", "float16", "CFCF", beta=1.0, bias="float32", activation="gelu_tanh"),
    Kind("bfloat16", "float32", "FFFF", -1.0, "", 2.0, in_place=True, bias="bfloat16"),
    Kind("bfloat16", "float32", "CFCC", 2.0, "", 1.0),
    Kind(scales="na", bias="bfloat16", activation="relu"),
)

OTHER_TYPES = (
    Kind("float8_e4m3fn", scales="aa", bias="bfloat16"),
    Kind("float8_e5m2/float8_e4m3fn", "float32", scales="nn", beta=0.5, in_place=True),
    Kind("float8_e4m3fn/float8_e5m2", "float16", "FCCF", activation="gelu"),
    Kind("int8", "int32"),
    Kind("uint8/int8", "int32", "CCCF"),
    Kind("float32", "float32", "CFCC", -0.5, bias="float32", activation="silu"),
    Kind("float32", "bfloat16", "FCCC", beta=1.0),
)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    if name in INTEGERS:
        limits = np.iinfo(name)
        return rng.integers(limits.min, limits.max + 1, shape).astype(name)
    return rng.standard_normal(shape).astype(dtype_of(name))


def to_tf32(values: Array) -> Array:
    """The nearest numbers with 10 bits of fraction, of two the even one."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000
    return rounded.astype(np.uint32).view(np.float32)


def blank(dtype: np.dtype[Any]) -> Any:
    return -7 if dtype.kind in "iu" else np.nan


def among_nans(backend: Any, values: Array, order: str = "C") -> Any:
    """The values in an array of NaNs, or of integers sevens, rows or columns contiguous.

    Float8, of which CuPy has no arrays, as bytes.
    """
    stored = values.T if order == "F" else values
    *outer, last = stored.shape
    step = 16 // stored.itemsize
    shape = (*(side + 2 for side in outer), -(-last // step) * step + 2 * step)
    whole = np.full(shape, abs(blank(stored.dtype)), stored.dtype)
    middle = (*(slice(1, 1 + side) for side in outer), slice(step, step + last))
    whole[middle] = stored
    if stored.dtype in map(dtype_of, FLOAT8):
        whole = whole.view(np.uint8)
    placed = backend.array(whole)[middle]
    return placed.T if order == "F" else placed


@dataclass(frozen=True)
class Problem:
    """A matmul [m, k] x [k, n] of one kind."""

    kind: Kind
    m: int
    n: int
    k: int
    seed: int

    def check(self, backend: Any) -> None:
        """Multiply twice, the second time by the plan of the first, and compare."""
        kind, rng = self.kind, np.random.default_rng(self.seed)
        a, b = (
            drawn(rng, shape, name)
            for shape, name in zip(((self.m, self.k), (self.k, self.n)), kind.types, strict=True)
        )
        c = rng.integers(-9, 10, (self.m, self.n)).astype(dtype_of(kind.output))
        bias = None if kind.bias is None else drawn(rng, (self.n,), kind.bias)
        scales = [round(float(scale), 2) for scale in rng.uniform(0.5, 2, len(kind.scales))]
        given: dict[str, Any] = {"alpha": kind.alpha, "activation": kind.activation}
        for name, how, scale in zip(("scale_a", "scale_b"), kind.scales, scales, strict=False):
            is_array = how == "a"
            given[name] = backend.array(np.array([scale], np.float32)) if is_array else scale
        if bias is not None:
            given["bias"] = among_nans(backend, bias)
        if kind.types[0] == "float32":
            given["precision"] = "tf32"
        if kind.types[0] in FLOAT8:
            given |= dict(zip(("a_dtype", "b_dtype"), kind.types, strict=True))
        placed = [
            among_nans(backend, matrix, order)
            for matrix, order in zip((a, b, c), kind.orders, strict=False)
        ]
        for _ in range(2):
            start = c if kind.in_place else np.full_like(c, blank(c.dtype))
            out = among_nans(backend, start, kind.orders[3])
            if kind.beta is not None:
                given |= {"c": out if kind.in_place else placed[2], "beta": kind.beta}
            ops.matmul(placed[0], placed[1], out=out, **given)
            self._compare(backend.host(out), a, b, c, bias, scales)
            self._assert_nothing_outside(backend, out)

    def _compare(
        self, got: Array, a: Array, b: Array, c: Array, bias: Array | None, scales: list[float]
    ) -> None:
        kind = self.kind
        if kind.types[0] == "float32":
            a, b = to_tf32(a), to_tf32(b)
        factor = kind.alpha * math.prod(scales)
        a, b = a.astype(np.float64), b.astype(np.float64)
        wanted = factor * (a @ b)
        if kind.beta is not None:
            wanted = wanted + kind.beta * c.astype(np.float64)
        if bias is not None:
            wanted = wanted + bias.astype(np.float64)
        wanted = ACTIVATIONS[kind.activation](wanted)
        error = np.abs(got.astype(np.float64) - wanted)
        # The room for every element's error, not only for most elements.
        room = TOLERANCE[kind.output] * (np.abs(wanted) + np.abs(wanted).mean() + 1)
        if kind.types[0] in FLOAT8:
            # The activations have slopes up to 1.13.
            room += 1.13 * SUMS_TOLERANCE * abs(factor) * (np.abs(a) @ np.abs(b))
        assert (error <= room).all(), (self, float(error.max()))

    def _assert_nothing_outside(self, backend: Any, out: Any) -> None:
        dtype = backend.host(out).dtype
        out[...] = backend.array(np.full(out.shape, abs(blank(dtype)), dtype))
        whole = out
        while whole.base is not None:
            whole = whole.base
        memory = backend.host(whole).astype(np.float64)
        assert (np.isnan(memory) | (memory == abs(blank(dtype)))).all(), self
        assert np.isnan(blank(dtype)) or not np.isnan(memory).any()


def problem(number: int, most: int, kinds: Sequence[Kind]) -> Problem:
    """The kinds one after the other, of odd shapes, half of them with few rows."""
    rng = np.random.default_rng(number)
    m, n, k = (int(side) for side in rng.integers(1, most, 3))
    if number // len(kinds) % 2:
        m = min(m, int(rng.integers(1, 65)))
    return Problem(kinds[number % len(kinds)], m, n, k, number)
