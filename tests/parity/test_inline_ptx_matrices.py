"""mma.sync, ldmatrix and wgmma of inline PTX, whose operands make every result exact."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tmaasync import Kernel

pytestmark = [pytest.mark.slow, pytest.mark.chips("sm_90a")]


class Form(NamedTuple):
    """mma.sync of m16n8: its types in PTX, K, and the types of NumPy."""

    a: str
    b: str
    k: int
    total: str
    kind: Any
    b_kind: Any
    out: Any


FORMS = (
    Form("f16", "f16", 16, "f32", np.float16, np.float16, np.float32),
    Form("f16", "f16", 8, "f16", np.float16, np.float16, np.float16),
    Form("bf16", "bf16", 8, "f32", ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32),
    Form("tf32", "tf32", 8, "f32", np.float32, np.float32, np.float32),
    Form("s8", "u8", 32, "s32", np.int8, np.uint8, np.int32),
    Form("e4m3", "e5m2", 32, "f32", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float32),
)


def registers(letter: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def multiply(index: int, form: Form) -> str:
    """Return the function of one form, with the fragments of the PTX ISA."""
    size = np.dtype(form.kind).itemsize
    a_words, b_words = form.k * size // 8, form.k * size // 16
    d_words = 2 if form.total == "f16" else 4
    opcode = f"mma.sync.aligned.m16n8k{form.k}.row.col.{form.total}.{form.a}.{form.b}.{form.total}"
    letter, kind = ("f", "float") if form.total == "f32" else ("r", "unsigned")
    outputs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(d_words))
    inputs = ", ".join(
        [*(f'"r"(a[{i}])' for i in range(a_words)), *(f'"r"(b[{i}])' for i in range(b_words))]
    )
    d, a = registers("d", 0, d_words), registers("a", d_words, a_words)
    b = registers("b", d_words + a_words, b_words)
    row_words = form.k * size // 4
    stride = 8 * np.dtype(form.out).itemsize // 4
    return f"""
extern "C" __global__ void multiply_{index}(const unsigned* x, const unsigned* y, unsigned* out) {{
    const int row = threadIdx.x / 4, t = threadIdx.x % 4;
    unsigned a[{a_words}], b[{b_words}];
    for (int i = 0; i < {a_words}; ++i) {{
        a[i] = x[(row + i % 2 * 8) * {row_words} + i / 2 * 4 + t];
    }}
    for (int i = 0; i < {b_words}; ++i) b[i] = y[row * {row_words} + i * 4 + t];
    {kind} d[{d_words}];
    for (int i = 0; i < {d_words}; ++i) d[i] = 0;
    asm volatile("{opcode} {d}, {a}, {b}, {d};" : {outputs} : {inputs});
    const unsigned* words = reinterpret_cast<const unsigned*>(d);
    for (int i = 0; i < {d_words}; ++i) {{
        const int per_row = {d_words} / 2;
        out[(row + i / per_row * 8) * {stride} + t * per_row + i % per_row] = words[i];
    }}
}}
"""


WGMMA = Path(__file__).with_name("raw_ptx").joinpath("matrices.cu").read_text()


@functools.cache
def kernel(name: str) -> Kernel:
    return Kernel("".join(map(multiply, range(len(FORMS)), FORMS)) + WGMMA, name)


@pytest.mark.parametrize("index", range(len(FORMS)), ids=lambda index: f"{FORMS[index][:4]}")
def test_mma_sync_equals_numpy(backend: Any, index: int) -> None:
    form = FORMS[index]
    rng = np.random.default_rng(index)
    low = 0 if form.b == "u8" else -4
    a = rng.integers(-4, 5, (16, form.k)).astype(form.kind)
    b = rng.integers(low, 5, (8, form.k)).astype(form.b_kind)
    out = backend.array(np.full((16, 8), 99, form.out).view(np.uint32))

    kernel(f"multiply_{index}")(
        1, 32, (backend.array(a.view(np.uint32)), backend.array(b.view(np.uint32)), out)
    )

    wanted = a.astype(np.int64) @ b.astype(np.int64).T
    assert np.array_equal(backend.host(out).view(form.out).astype(np.int64), wanted)


def test_wgmma_takes_a_from_registers(backend: Any) -> None:
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 16), (8, 16)))
    out = backend.array(np.full((64, 8), np.nan, np.float32))

    kernel("wgmma_registers")(
        1, 128, (backend.array(a.view(np.uint32)), backend.array(b.view(np.uint32)), out)
    )

    other = a.astype(np.float64)
    other.reshape(4, 2, 8, 16)[:, 1, :, 8:] = 1
    wanted = (a.astype(np.float64) - other) @ b.astype(np.float64).T
    assert np.array_equal(backend.host(out), wanted)


def test_ldmatrix_transposes(backend: Any) -> None:
    x = np.random.default_rng(3).integers(0, 2**16, (16, 16)).astype(np.uint16)
    out = backend.array(np.zeros((16, 8), np.uint32))

    kernel("turned")(1, 32, (backend.array(x.view(np.uint32)), out))

    assert np.array_equal(backend.host(out).view(np.uint16), x.T)


def test_mma_sync_of_doubles_equals_numpy(backend: Any) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-99, 99, shape).astype(np.float64) for shape in ((16, 16), (8, 16)))
    out = backend.array(np.full((2, 16, 8), np.nan))

    kernel("doubles")(1, 32, (backend.array(a), backend.array(b), out))

    assert np.array_equal(backend.host(out)[0], a @ b.T)
    assert np.array_equal(backend.host(out)[1, :8], a[:8, :4] @ b[:, :4].T)


def test_mma_sync_of_integers_saturates(backend: Any) -> None:
    out = backend.array(np.full((32, 8), 9, np.int32))

    kernel("saturated")(1, 32, (out,))

    assert np.array_equal(backend.host(out), [[2**31 - 1] * 4 + [-(2**31) + 32 * 4] * 4] * 32)


def test_movmatrix_transposes(backend: Any) -> None:
    x = np.random.default_rng(5).integers(0, 2**16, (8, 8)).astype(np.uint16)
    out = backend.array(np.zeros((8, 4), np.uint32))

    kernel("moved")(1, 32, (backend.array(x.view(np.uint32)), out))

    assert np.array_equal(backend.host(out).view(np.uint16), x.T)
