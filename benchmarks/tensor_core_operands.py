"""Operands of tensor cores that tell models of their sums apart: a family in each tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tensor_core_model import F16, Element, values

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Draw:
    """Random elements of types, as bits in 32-bit words."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def elements(
        self, element: Element, shape: Shape, low: int, high: int, zeros: float = 0.0
    ) -> Array:
        """Exponents from low to high, cut to the type's range; below it, subnormal numbers."""
        last = element.last_field - int(element.has_infinity)
        field = np.clip(self.rng.integers(low, high + 1, shape) + element.bias, 0, last)
        fraction = self.rng.integers(0, element.last_fraction + 1, shape)
        if not element.has_infinity:  # no NaN
            fraction = np.where(field == last, fraction & ~1, fraction)
        bits = (field << element.fraction_bits) | fraction
        bits = np.where(self.rng.random(shape) < zeros, 0, bits)
        return self._stored(bits, element)

    def bits(self, element: Element, shape: Shape) -> Array:
        return np.asarray(self.rng.integers(0, 1 << 8 * element.bytes, shape)).astype(np.uint32)

    def specials(self, element: Element, bits: Array, share: float) -> Array:
        """Put zeros, infinities and NaNs in place of some."""
        top = element.last_field << element.fraction_bits
        kinds = np.array([0, top, top | 1, top | element.last_fraction])
        chosen = self._stored(kinds[self.rng.integers(0, 4, bits.shape)], element)
        return np.where(self.rng.random(bits.shape) < share, chosen, bits)

    def _stored(self, bits: Array, element: Element) -> Array:
        """With a random sign, and random bits where none are read."""
        negative = np.asarray(self.rng.integers(0, 2, bits.shape))
        sign = negative << (element.exponent_bits + element.fraction_bits)
        low = self.rng.integers(0, 1 << element.low_bits, bits.shape)
        return np.asarray(((bits | sign) << element.low_bits) | low, np.uint32)


class Tiles:
    """Families of tiles of one form: A [tiles, rows, K], B [tiles, columns, K] and C."""

    def __init__(self, seed: int, types: tuple[Element, Element, Element], extents: Shape) -> None:
        self.draw = Draw(seed)
        self.a, self.b, self.c = types
        self.rows, self.columns, self.depth = extents

    def pair(
        self, tiles: int, a: tuple[int, int], b: tuple[int, int], zeros: float = 0.0
    ) -> tuple[Array, Array]:
        return (
            self.draw.elements(self.a, (tiles, self.rows, self.depth), *a, zeros),
            self.draw.elements(self.b, (tiles, self.columns, self.depth), *b, zeros),
        )

    def addends(self, tiles: int, low: int, high: int, zeros: float = 0.0) -> Array:
        return self.draw.elements(self.c, (tiles, self.rows, self.columns), low, high, zeros)

    def near(self, n: int) -> tuple[Array, Array, Array]:
        return *self.pair(n, (-3, 0), (-3, 0)), self.addends(n, -3, 3)

    def wide(self, n: int) -> tuple[Array, Array, Array]:
        return *self.pair(n, (-13, 13), (-13, 13)), self.addends(n, -40, 40)

    def full(self, n: int) -> tuple[Array, Array, Array]:
        return *self.pair(n, (-130, 130), (-130, 130)), self.addends(n, -130, 130)

    def sparse(self, n: int) -> tuple[Array, Array, Array]:
        return *self.pair(n, (-10, 10), (-10, 10), 0.6), self.addends(n, -32, 24, 0.4)

    def cancelled(self, n: int) -> tuple[Array, Array, Array]:
        """Each term has its negative somewhere along K, but for some bits."""
        a, b = self.pair(n, (-6, 6), (-6, 6))
        half = self.depth // 2
        sign = np.uint32(1 << (8 * self.a.bytes - 1))
        changes = self.draw.rng.random((n, self.rows, half)) < 0.2
        step = np.uint32(1 << self.a.low_bits)
        a[:, :, half:] = a[:, :, :half] ^ sign ^ np.where(changes, step, np.uint32(0))
        b[:, :, half:] = b[:, :, :half]
        order = self.draw.rng.permutation(self.depth)
        return a[:, :, order], b[:, :, order], self.addends(n, -40, 6, 0.2)

    def against(self, n: int) -> tuple[Array, Array, Array]:
        """The accumulator is nearly the negative sum of the terms."""
        a, b = self.pair(n, (-6, 6), (-6, 6), 0.2)
        dots = values(np, a, self.a) @ values(np, b, self.b).transpose(0, 2, 1)
        kind = np.float16 if self.c is F16 else np.float32
        with np.errstate(over="ignore"):
            c = (-dots * (1 + self.draw.rng.integers(-1, 2, dots.shape) * 2.0**-12)).astype(kind)
        return a, b, c.view(np.uint16 if self.c is F16 else np.uint32).astype(np.uint32)

    def zero_by_large(self, n: int) -> tuple[Array, Array, Array]:
        """Zeros of A meet large elements of B, small ones meet small ones."""
        a, b = self.pair(n, (-9, -6), (-9, -6))
        large = self.draw.elements(self.b, b.shape, 130, 130)
        ks = self.draw.rng.random((n, 1, self.depth)) < 0.3
        return np.where(ks, a & 0, a), np.where(ks, large, b), self.addends(n, -20, -16, 0.5)

    def subnormal(self, n: int) -> tuple[Array, Array, Array]:
        least = 1 - self.a.bias
        a, b = self.pair(n, (least - 2, least + 1), (-self.b.bias - 1, self.b.bias), 0.2)
        return a, b, self.addends(n, -130, -110, 0.2)

    def tiny(self, n: int) -> tuple[Array, Array, Array]:
        """Results near the least number of the accumulator."""
        half = (1 - self.c.bias - self.c.fraction_bits) // 2
        a, b = self.pair(n, (half - 2, half + 8), (half - 2, half + 8))
        return a, b, self.addends(n, 2 * half - 2, 2 * half + 20, 0.2)

    def large(self, n: int) -> tuple[Array, Array, Array]:
        """Results near the greatest number of the accumulator, or beyond."""
        half = self.c.bias // 2
        a, b = self.pair(n, (half - 4, half), (half - 4, half))
        return a, b, self.addends(n, self.c.bias - 2, self.c.bias, 0.2)

    def special(self, n: int) -> tuple[Array, Array, Array]:
        draw = self.draw
        a, b, c = self.near(n)
        return (
            draw.specials(self.a, a, 0.03),
            draw.specials(self.b, b, 0.03),
            draw.specials(self.c, c, 0.1),
        )

    def any_bits(self, n: int) -> tuple[Array, Array, Array]:
        return (
            self.draw.bits(self.a, (n, self.rows, self.depth)),
            self.draw.bits(self.b, (n, self.columns, self.depth)),
            self.draw.bits(self.c, (n, self.rows, self.columns)),
        )


FAMILIES: tuple[Callable[[Tiles, int], tuple[Array, Array, Array]], ...] = (
    Tiles.near,
    Tiles.wide,
    Tiles.full,
    Tiles.sparse,
    Tiles.cancelled,
    Tiles.against,
    Tiles.zero_by_large,
    Tiles.subnormal,
    Tiles.tiny,
    Tiles.large,
    Tiles.special,
    Tiles.any_bits,
)


def drawn(
    seed: int, types: tuple[Element, Element, Element], extents: Shape, tiles: int
) -> tuple[Array, Array, Array]:
    """`tiles` tiles of each family, one family after the other."""
    of = Tiles(seed, types, extents)
    parts = zip(*(family(of, tiles) for family in FAMILIES), strict=True)
    a, b, c = (np.concatenate(part) for part in parts)
    return a, b, c
