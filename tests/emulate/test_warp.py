"""Warp kernels on the CPU: right numbers, and a race and a fault. Needs Warp, and no GPU."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import ArgumentError, EmulatedFault, EmulatedRace, emulate
from tmaasync import warp as on_emulator

pytest.importorskip("warp", reason="Warp is not installed")
kernels: Any = importlib.import_module("emulate.ptx_modules.warp_kernels")

RNG = np.random.default_rng(6)

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def nothing(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


def add() -> Pair:
    a, b, c = numbers(1000), numbers(1000), nothing(1000)
    on_emulator.launch(kernels.add, 1000, [a, b], [c, 3.0])
    return c, a + 3.0 * b.astype(np.float64)


def transpose() -> Pair:
    x, out = numbers(30, 50), nothing(50, 30)
    on_emulator.launch(kernels.transpose, (30, 50), [x], [out], block_dim=128)
    return out, x.T


def lengths() -> Pair:
    x, out = numbers(100, 3), nothing(100)
    on_emulator.launch(kernels.lengths, 100, [x], [out])
    return out, np.sqrt((x.astype(np.float64) ** 2).sum(1))


def histogram() -> Pair:
    x, out = RNG.integers(0, 20, 1000, np.int32), np.zeros(20, np.int32)
    on_emulator.launch(kernels.histogram, 1000, [x], [out])
    return out, np.bincount(x, minlength=20)


@pytest.mark.parametrize("launch", [add, transpose, lengths, histogram])
def test_a_kernel_equals_numpy(launch: Any) -> None:
    with emulate.scheduled(races=True):
        out, wanted = launch()
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


def test_a_race_names_the_array() -> None:
    x, out = RNG.integers(0, 20, 1000, np.int32), np.zeros(20, np.int32)
    with emulate.scheduled(races=True), pytest.raises(EmulatedRace, match=r"a race on out\["):
        on_emulator.launch(kernels.count, 1000, [x], [out])


def test_an_access_outside_names_the_array() -> None:
    a, b, c = numbers(1000), numbers(1000), nothing(1000)
    with emulate.scheduled(), pytest.raises(EmulatedFault, match=r"\[1000\], right after the end"):
        on_emulator.launch(kernels.add, 1001, [a, b], [c, 3.0])


def test_what_is_no_kernel_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"it has no @wp\.kernel"):
        on_emulator.launch(numbers, 3)
    with pytest.raises(ArgumentError, match="add takes 4"):
        on_emulator.launch(kernels.add, 3, [numbers(3)])
