"""The activations of epilogues against float64, on either back end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel
from tmaasync.ops._gemm.epilogue import activation_of

SOURCE = """
#include <tmaasync/activation.cuh>
using namespace tmaasync;

extern "C" __global__ void activate(const float* x, float* y) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    y[i] = activated<static_cast<Activation>(ACTIVATION)>(x[i]);
}
"""
Numbers = Any


def gelu(x: Numbers) -> Numbers:
    return np.array([0.5 * value * math.erfc(-value / math.sqrt(2)) for value in x])


def gelu_tanh(x: Numbers) -> Numbers:
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + np.exp(-2 * u))


def silu(x: Numbers) -> Numbers:
    return x / (1 + np.exp(-x))


def applied(backend: Any, name: str, x: Numbers) -> Numbers:
    out = backend.array(np.full_like(x, np.nan))
    kernel = Kernel(SOURCE, "activate", constants={"ACTIVATION": int(activation_of(name))})
    kernel(len(x) // 64, 64, (backend.array(x), out))
    return backend.host(out)


@pytest.mark.parametrize(
    ("oracle", "absolute", "relative"),
    [(gelu, 1e-6, 1e-6), (gelu_tanh, 1e-6, 1e-6), (silu, 1e-7, 2e-6)],
)
def test_activations_of_any_size(
    backend: Any, oracle: Any, absolute: float, relative: float
) -> None:
    drawn = np.random.default_rng(7).normal(0, 6, 960)
    edges = [0, 1e-30, 9.99, 10, 10.01, 30, 80, 126, 127, 128, 129, 200, 1e4, 1e12, 3e19, 3e38]
    x = np.array([*drawn, *edges, *edges], np.float32)
    x[-len(edges) :] *= -1

    with np.errstate(over="ignore"):
        wanted = oracle(x.astype(np.float64))
    found = applied(backend, oracle.__name__, np.resize(x, 1024)).astype(np.float64)[: len(x)]

    assert (np.abs(found - wanted) <= absolute + relative * np.abs(wanted)).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_of_nan_and_infinity(backend: Any, name: str) -> None:
    x = np.resize(np.array([np.nan, np.inf, -np.inf, 0], np.float32), 64)

    found = applied(backend, name, x)

    assert np.isnan(found[::4]).all()
    assert (found[1::4] == np.inf).all()
    assert (found[2::4] == 0).all()
