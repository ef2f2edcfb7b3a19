"""Random convolutions, and what they must give: every tap in turn, in float64.

A problem follows from its number alone. Its values are small integers, which fp32 adds exactly in
any order, so that results are compared bit by bit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from parity.random_matmuls import ACTIVATIONS

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]

# Operands, bias, activation, output: few, since each is a build.
VARIANTS: tuple[tuple[str, str | None, str | None, str], ...] = (
    ("bfloat16", None, None, "bfloat16"),
    ("bfloat16", "float32", "relu", "float32"),
    ("float16", "float16", None, "float16"),
    ("bfloat16", "bfloat16", "relu", "bfloat16"),
)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True)
class Problem:
    """One convolution; everything outermost first, padding as (before, after) per side."""

    number: int
    images: tuple[int, int, int, int]
    filters: tuple[int, int, int]  # K, R, S
    stride: Pair
    dilation: Pair
    padding: tuple[Pair, Pair]
    dtype: str = "bfloat16"
    bias: str | None = None
    activation: str | None = None
    out: str = "bfloat16"

    @property
    def outputs(self) -> Pair:
        sides = zip(
            self.images[1:3],
            self.filters[1:],
            self.stride,
            self.dilation,
            self.padding,
            strict=True,
        )
        high, wide = (
            (extent + sum(padding) - (taps - 1) * dilation - 1) // stride + 1
            for extent, taps, stride, dilation, padding in sides
        )
        return high, wide

    @property
    def window(self) -> dict[str, Any]:
        return {"stride": self.stride, "dilation": self.dilation, "padding": self.padding}

    def operands(self) -> tuple[Array, Array, Array | None]:
        rng = np.random.default_rng(self.number)
        filters, *taps = self.filters
        images = rng.integers(-4, 5, self.images)
        weights = rng.integers(-3, 4, (filters, *taps, self.images[3]))
        bias = None
        if self.bias is not None:
            bias = rng.integers(-50, 50, filters).astype(dtype_of(self.bias))
        return images.astype(dtype_of(self.dtype)), weights.astype(dtype_of(self.dtype)), bias

    def result(self) -> Array:
        """Return the output: per tap, a matmul of the padded images and the filters."""
        images, filters, bias = (
            None if array is None else array.astype(np.float64) for array in self.operands()
        )
        assert images is not None
        assert filters is not None
        (p, q), (n, *_) = self.outputs, images.shape
        padded = np.pad(images, ((0, 0), *self.padding, (0, 0)))
        total = np.zeros((n, p, q, filters.shape[0]))
        for r in range(filters.shape[1]):
            for s in range(filters.shape[2]):
                down, across = r * self.dilation[0], s * self.dilation[1]
                seen = padded[:, down :: self.stride[0], across :: self.stride[1]][:, :p, :q]
                total += seen @ filters[:, r, s].T
        if bias is not None:
            total += bias
        return np.asarray(ACTIVATIONS[self.activation](total)).astype(dtype_of(self.out))


def problem(number: int, *, most: int) -> Problem:
    """The problem of this number, of at most ``most`` multiplications or so."""
    rng = random.Random(number)
    while True:
        found = _drawn(rng, number)
        high, wide = found.outputs
        if high < 1 or wide < 1:
            continue
        n, _, _, channels = found.images
        filters, r, s = found.filters
        if n * high * wide * r * s * channels * filters <= most:
            return found


def _drawn(rng: random.Random, number: int) -> Problem:
    dtype, bias, activation, out = VARIANTS[number % len(VARIANTS)]
    # A quarter of the problems has a number of filters that no sector divides.
    filters = 8 * rng.choice((1, 1, 2, 3, 5, 9, 17, 20, 33))
    if rng.random() < 0.25:
        filters = rng.randint(1, 70)
    return Problem(
        number,
        (rng.randint(1, 4), rng.randint(1, 40), rng.randint(1, 40), 8 * rng.randint(1, 18)),
        (filters, rng.randint(1, 7), rng.randint(1, 7)),
        (rng.randint(1, 3), rng.randint(1, 3)),
        (rng.randint(1, 3), rng.randint(1, 3)),
        ((rng.randint(0, 6), rng.randint(0, 6)), (rng.randint(0, 6), rng.randint(0, 6))),
        dtype,
        bias,
        activation,
        out,
    )
