"""mma.sync, ldmatrix and wgmma of inline PTX, whose operands make every result exact."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tmaasync import Kernel


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
    """Return the function of one form: fragments come from rows of words, as the manual has them."""
    size = np.dtype(form.kind).itemsize
    a_words, b_words = form.k * size // 8, form.k * size // 16
    d_words = 2 if form.total == "f16" else 4
    opcode = (
        f"mma.sync.aligned.m16n8k{form.k}.row.col.{form.total}.{form.a}.{form.b}.{form.total}"
    )
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
    for (int i = 0; i < {a_words}; ++i) a[i] = x[(row + i % 2 * 8) * {row_words} + i / 2 * 4 + t];
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


WGMMA = r"""
// A of 64 x 16 in registers, B of 8 x 16 in shared memory, K-major and not swizzled; twice.
extern "C" __global__ void wgmma_registers(const unsigned* x, const unsigned* y, float* out) {
    __shared__ __align__(128) unsigned tile[64];
    const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, lane = t % 4;
    if (t < 64) tile[t / 32 * 32 + t % 32] = y[t % 32 / 4 * 8 + t / 32 * 4 + t % 4];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned a[4];
    for (int i = 0; i < 4; ++i) a[i] = x[(row + i % 2 * 8) * 8 + i / 2 * 4 + lane];
    const unsigned long long address = __cvta_generic_to_shared(tile);
    const unsigned long long b = address >> 4 | 8ull << 16 | 8ull << 32;
    float d[4];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, %8, p, 1, 1, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, %8, p, -1, 1, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(0x3c003c00), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * 8 + lane * 2 + i % 2] = d[i];
}

// The transpose of 16 x 16 halves.
extern "C" __global__ void turned(const unsigned* x, unsigned* out) {
    __shared__ __align__(128) unsigned tile[128];
    const int t = threadIdx.x;
    for (int i = t; i < 128; i += 32) tile[i] = x[i];
    __syncwarp();
    unsigned m[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"((unsigned)__cvta_generic_to_shared(tile) + (t % 8 + t / 16 * 8) * 32 + t / 8 % 2 * 16));
    for (int i = 0; i < 4; ++i) out[(t / 4 + i % 2 * 8) * 8 + i / 2 * 4 + t % 4] = m[i];
}
"""


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
        1,
        32,
        (backend.array(a.view(np.uint32)), backend.array(b.view(np.uint32)), out),
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
