"""torch.autocast casts the operands of our operators, as it does for torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch_cases import CASES, as_tuple, cumulative, draw  # noqa: E402

import tmaasync.torch as operators  # noqa: E402

FLOAT, HALF = torch.float32, torch.float16
OPERANDS = {
    "matmul": 2,
    "matmul_batch": 2,
    "grouped_matmul": 2,
    "k_grouped_matmul": 2,
    "conv2d": 2,
    "attention": 3,
    "attention_with_lse": 3,
    "varlen_attention": 3,
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def autocast() -> Any:
    return torch.autocast("cpu", dtype=HALF)


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_are_cast(name: str) -> None:
    case, count = CASES[name], OPERANDS[name]
    given = case.given(9)
    wide = [one.float() for one in given[:count]] + given[count:]

    with autocast():
        found = as_tuple(case.call(*wide, **case.options))

    wanted = as_tuple(case.call(*given, **case.options))
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


ATTEND = operators.scaled_dot_product_attention
TRAINED: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul": (lambda x, w: operators.matmul(x, w.T, activation="gelu"), [(9, 16), (24, 16)]),
    "grouped_matmul": (
        lambda x, w: operators.grouped_matmul(x, w, cumulative(4, 9)),
        [(9, 16), (2, 16, 8)],
    ),
    "sdpa": (lambda q, k, v: ATTEND(q, k, v, is_causal=True), [(1, 2, 9, 16)] * 3),
    "flash_attn, padded heads": (
        lambda q, k, v: operators.flash_attn_func(q, k, v, causal=True),
        [(1, 9, 2, 12)] * 3,
    ),
}


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_weights_in_float32_get_gradients_in_float32(name: str, is_compiled: bool) -> None:
    call, shapes = TRAINED[name]
    narrow = [draw(*shape).requires_grad_() for shape in shapes]
    wide = [one.detach().float().requires_grad_() for one in narrow]
    made = torch.compile(call, backend="aot_eager", fullgraph=True) if is_compiled else call

    with autocast():
        out = made(*wide)
    out.float().sum().backward()
    same = call(*narrow)
    same.float().sum().backward()

    assert torch.equal(out, same)
    for one, other in zip(wide, narrow, strict=True):
        assert one.grad.dtype == FLOAT
        assert torch.equal(one.grad, other.grad.float())


def test_what_asks_for_tf32_is_not_cast() -> None:
    a, b = draw(8, 16, dtype=FLOAT), draw(16, 8, dtype=FLOAT)
    with autocast():
        found = operators.matmul(a, b, precision="tf32")
    assert torch.equal(found, operators.matmul(a, b, precision="tf32"))
    assert found.dtype == FLOAT
