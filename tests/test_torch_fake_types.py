"""Fake kernels refuse the types that the kernels refuse, with the same message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tmaasync import TMAError

torch: Any = pytest.importorskip("torch")

from torch_cases import cumulative  # noqa: E402

import tmaasync.torch as operators  # noqa: E402

FLOAT, HALF, BFLOAT, BYTE = torch.float32, torch.float16, torch.bfloat16, torch.uint8
E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8


def ones(*shape: int, dtype: Any = HALF) -> Any:
    return torch.ones(shape).to(dtype)


SQUARE, HEADS = (16, 16), (1, 16, 1, 16)
WRONG: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "matmul of float32": (operators.matmul, [ones(*SQUARE, dtype=FLOAT)] * 2),
    "matmul of two types": (operators.matmul, [ones(*SQUARE), ones(*SQUARE, dtype=BFLOAT)]),
    "matmul of float64": (operators.matmul, [ones(*SQUARE, dtype=torch.float64)] * 2),
    "tf32 of halves": (lambda a: operators.matmul(a, a, precision="tf32"), [ones(*SQUARE)]),
    "another precision": (lambda a: operators.matmul(a, a, precision="fp8"), [ones(*SQUARE)]),
    "another activation": (lambda a: operators.matmul(a, a, activation="tanh"), [ones(*SQUARE)]),
    "matmul into int8": (lambda a: operators.matmul(a, a, dtype=INT8), [ones(*SQUARE)]),
    "matmul with out= of int8": (
        lambda a, out: operators.matmul(a, a, out=out),
        [ones(*SQUARE), ones(*SQUARE, dtype=INT8)],
    ),
    "bias of another type": (
        lambda a, bias: operators.matmul(a, a, bias=bias),
        [ones(*SQUARE), ones(16, dtype=BFLOAT)],
    ),
    "c of another type": (
        lambda a, c: operators.matmul(a, a, c=c),
        [ones(*SQUARE), ones(*SQUARE, dtype=FLOAT)],
    ),
    "a scale in half": (lambda a, s: operators.matmul(a, a, scale_a=s), [ones(*SQUARE), ones(1)]),
    "integers with an epilogue": (
        lambda a: operators.matmul(a, a.T, activation="relu"),
        [ones(*SQUARE, dtype=INT8)],
    ),
    "grouped_matmul of float32": (
        operators.grouped_matmul,
        [ones(*SQUARE, dtype=FLOAT), ones(1, 16, 16, dtype=FLOAT), cumulative(16)],
    ),
    "k_grouped_matmul of two types": (
        operators.k_grouped_matmul,
        [ones(*SQUARE).T, ones(*SQUARE, dtype=BFLOAT), cumulative(16)],
    ),
    "scaled_matmul of halves": (
        operators.scaled_matmul,
        [ones(*SQUARE), ones(*SQUARE), ones(16, 1, dtype=FLOAT), ones(1, 1, dtype=FLOAT)],
    ),
    "scales in half": (
        operators.scaled_matmul,
        [ones(*SQUARE, dtype=E4M3), ones(*SQUARE, dtype=E4M3), ones(16, 1), ones(1, 1)],
    ),
    "conv2d of float32": (
        operators.conv2d,
        [ones(1, 4, 4, 8, dtype=FLOAT), ones(8, 3, 3, 8, dtype=FLOAT)],
    ),
    "conv2d into int8": (
        lambda x, w: operators.conv2d(x, w, dtype=INT8),
        [ones(1, 4, 4, 8), ones(8, 3, 3, 8)],
    ),
    "attention of float32": (operators.attention, [ones(*HEADS, dtype=FLOAT)] * 3),
    "attention of two types": (
        operators.attention,
        [ones(*HEADS), ones(*HEADS, dtype=BFLOAT), ones(*HEADS, dtype=BFLOAT)],
    ),
    "attention of float8_e5m2": (operators.attention, [ones(*HEADS, dtype=E5M2)] * 3),
    "attention with out= of another type": (
        lambda q, out: operators.attention(q, q, q, out=out),
        [ones(*HEADS), ones(*HEADS, dtype=FLOAT)],
    ),
    "varlen_attention of float32": (
        lambda q, ends: operators.varlen_attention(q, q, q, ends, max_seqlen_q=16),
        [ones(16, 1, 16, dtype=FLOAT), cumulative(0, 16)],
    ),
    "attention_backward of two types": (
        torch.ops.tmaasync.attention_backward,
        [ones(*HEADS, dtype=BFLOAT), *[ones(*HEADS)] * 4, ones(1, 1, 16, dtype=FLOAT)],
    ),
    "a log-sum-exp in half": (
        torch.ops.tmaasync.attention_backward,
        [*[ones(*HEADS)] * 5, ones(1, 1, 16)],
    ),
    "a copy of complex numbers": (operators.copy, [ones(*SQUARE, dtype=torch.complex128)]),
    "reduce_add of two types": (operators.reduce_add, [ones(*SQUARE), ones(*SQUARE, dtype=FLOAT)]),
    "reduce_add of bytes": (
        operators.reduce_add,
        [ones(*SQUARE, dtype=BYTE), ones(*SQUARE, dtype=BYTE)],
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_type_is_refused_on_meta_as_with_memory(what: str) -> None:
    call, given = WRONG[what]
    with pytest.raises(TMAError) as real:
        call(*given)

    with pytest.raises(type(real.value)) as fake:
        call(*(one.to("meta") for one in given))

    if "out=" not in what:
        assert str(fake.value) == str(real.value)


def test_compiled_code_is_refused_when_it_is_traced() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(operators.matmul, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="a holds float32; the tensor cores round that to tf32"):
        compiled(ones(*SQUARE, dtype=FLOAT), ones(*SQUARE, dtype=FLOAT))


@pytest.mark.parametrize("dtype", [None, HALF, FLOAT])
def test_types_that_the_kernels_have_pass(dtype: Any) -> None:
    a = ones(*SQUARE, dtype=E4M3).to("meta")
    scale = ones(1, dtype=FLOAT).to("meta")
    found = operators.matmul(
        a, a.T, scale_a=scale, bias=ones(16, dtype=FLOAT).to("meta"), dtype=dtype
    )
    assert found.dtype == (dtype or BFLOAT)
    wide = ones(*SQUARE, dtype=FLOAT).to("meta")
    assert operators.matmul(wide, wide, precision="tf32").dtype == FLOAT
    out = wide.to(HALF)
    assert operators.matmul(wide.to(BFLOAT), wide.to(BFLOAT), out=out) is out
