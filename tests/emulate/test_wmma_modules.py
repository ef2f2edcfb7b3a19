"""wmma in PTX modules, as nvcc writes it for <mma.h>."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import CompileError, EmulatedRace, Kernel, emulate

OF_16 = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
# By the type of the factors: its dtype, and the accumulators' types.
FACTORS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "f16": (np.float16, ("f16", "f32")),
    "bf16": (ml_dtypes.bfloat16, ("f32",)),
    "s8": (np.int8, ("s32",)),
    "u8": (np.uint8, ("s32",)),
    "tf32": (np.float32, ("f32",)),
    "f64": (np.float64, ("f64",)),
}
SUMS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "s32": np.int32, "f64": np.float64}
SHAPES = {"tf32": ((16, 16, 8),), "f64": ((8, 8, 4),)}
CASES = [
    (kind, shape, total)
    for kind, (_, totals) in FACTORS.items()
    for shape in SHAPES.get(kind, OF_16)
    for total in totals
]


def registers(name: str, kind: str, elements: int) -> tuple[str, str]:
    """Return the declaration and the list of a fragment's registers."""
    count = max(1, elements * {"f16": 2, "bf16": 2, "s8": 1, "u8": 1}.get(kind, 4) // 4)
    if kind == "f64":
        count = elements
    listed = ", ".join(f"%{name}{i}" for i in range(count))
    return f".reg .{'f64' if kind == 'f64' else 'b32'} %{name}<{count}>;", f"{{{listed}}}"


def module(kind: str, shape: tuple[int, int, int], total: str, layouts: str = "row.col") -> str:
    """Return a kernel d = a * b + c of one warp."""
    m, n, k = shape
    name, (left, right) = f"m{m}n{n}k{k}", layouts.split(".")
    # PTX ISA, "Matrix Fragments for WMMA": a factor of halves has eight registers in every shape.
    a_declared, a = registers("a", kind, 16 if kind == "f16" else m * k // 32)
    b_declared, b = registers("b", kind, 16 if kind == "f16" else k * n // 32)
    c_declared, c = registers("c", total, m * n // 32)
    types = f"{total}.{total}" if kind == "f16" else f"{total}.{kind}.{kind}.{total}"
    rounding = ".rn" if kind == "f64" else ""
    pitch_a, pitch_b = k if left == "row" else m, n if right == "row" else k
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry multiply(.param .u64 pa, .param .u64 pb, .param .u64 pc)
{{
    {a_declared} {b_declared} {c_declared}
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd0, [pa];
    ld.param.u64 %rd1, [pb];
    ld.param.u64 %rd2, [pc];
    mov.b32 %r0, {n};
    mov.b32 %r1, {pitch_a};
    wmma.load.a.sync.aligned.{left}.{name}.global.{kind} {a}, [%rd0], %r1;
    wmma.load.b.sync.aligned.{right}.{name}.global.{kind} {b}, [%rd1], {pitch_b};
    wmma.load.c.sync.aligned.row.{name}.global.{total} {c}, [%rd2], %r0;
    wmma.mma.sync.aligned.{layouts}.{name}{rounding}.{types} {c}, {a}, {b}, {c};
    wmma.store.d.sync.aligned.row.{name}.global.{total} [%rd2], {c}, %r0;
    ret;
}}
"""


def operands(
    kind: str, shape: tuple[int, int, int], total: str
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    m, n, k = shape
    rng, least = np.random.default_rng(5), 0 if kind == "u8" else -4
    a, b, c = (rng.integers(least, 5, sides) for sides in ((m, k), (k, n), (m, n)))
    dtype = FACTORS[kind][0]
    return a.astype(dtype), b.astype(dtype), c.astype(SUMS[total])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "shape", "total"), CASES)
def test_a_matmul_equals_numpy(kind: str, shape: tuple[int, int, int], total: str) -> None:
    a, b, c = operands(kind, shape, total)
    expected = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    with emulate.scheduled(races=True):
        Kernel(module(kind, shape, total))(1, 32, (a, np.asfortranarray(b).T, c))
    assert (c == expected).all()


@pytest.mark.parametrize("layouts", ["row.row", "col.row", "col.col"])
def test_a_factor_has_either_layout(layouts: str) -> None:
    a, b, c = operands("bf16", (32, 8, 16), "f32")
    left, right = layouts.split(".")
    given = a if left == "row" else a.T.copy(), b if right == "row" else b.T.copy()
    Kernel(module("bf16", (32, 8, 16), "f32", layouts))(1, 32, (*given, c))
    a, b, before = operands("bf16", (32, 8, 16), "f32")
    assert (c == a.astype(np.float64) @ b.astype(np.float64) + before).all()


def test_two_warps_that_store_one_tile_race_at_the_store() -> None:
    text = module("f16", (16, 16, 16), "f32")
    line = next(i for i, one in enumerate(text.split("\n"), 1) if "wmma.store" in one)
    a, b, c = operands("f16", (16, 16, 16), "f32")
    with emulate.scheduled(races=True, tolerate=()), pytest.raises(EmulatedRace) as caught:
        Kernel(text)(1, 64, (a, np.asfortranarray(b).T, c))
    assert f"at kernel.ptx:{line}: ordinary write" in str(caught.value)


def test_a_statement_of_asm_is_refused_with_the_header() -> None:
    text = """__global__ void k(float* x) {
    unsigned a, b, c, d;
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.global.bf16 {%0, %1, %2, %3}, [%4], 16;"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(x));
}"""
    with pytest.raises(CompileError, match=r"kernel\.cu:3.* is of PTX modules\. Use .* <mma\.h>"):
        Kernel(text, "k")(1, 32, (np.zeros(64, np.float32),))
