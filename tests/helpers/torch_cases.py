"""One call of each torch operator, on the CPU or a GPU, and what float64 says about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import tmaasync.torch as operators
from tmaasync import emulate

HALF = torch.float16


@dataclass(frozen=True)
class Case:
    """Arguments of an operator, and the reference in float64.

    Attributes:
        call: A function of tmaasync.torch, or an operator.
        given: Makes the positional arguments, for a number of rows.
        options: Further arguments.
        reference: Takes the arguments in float64.
        has_out: Whether the call takes an output of the caller's as ``out``.
        has_gradient: Whether inputs may require grad.
        chip: The emulated chip.
    """

    call: Callable[..., Any]
    given: Callable[[int], list[Any]]
    reference: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    has_out: bool = True
    has_gradient: bool = False
    chip: str = "sm_90a"


def draw(*shape: int, dtype: Any = HALF) -> Any:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def attend(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, k, v, is_causal=is_causal, enable_gqa=True).transpose(1, 2)


def attend_packed(q: Any, k: Any, v: Any, cu_seqlens: Any, **options: Any) -> Any:
    parts = itertools.pairwise(cu_seqlens.long().tolist())
    return torch.cat([attend(q[None, a:b], k[None, a:b], v[None, a:b])[0] for a, b in parts])


def with_backward(attend: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return a function that makes what a backward reads, of q, k, v and further arguments."""

    def given(q: Any, k: Any, v: Any, *others: Any) -> list[Any]:
        wide = in_float64([q, k, v, *others])
        out, lse = attend(*wide)
        return [draw(*q.shape), q, k, v, out.to(HALF), lse.float(), *others]

    return given


def gradients_of(attend: Callable[..., Any]) -> Callable[..., Any]:
    def gradients(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *others: Any) -> Any:
        del out, lse
        inputs = [one.detach().requires_grad_() for one in (q, k, v)]
        with torch.enable_grad():
            return torch.autograd.grad(attend(*inputs, *others)[0], inputs, dout)

    return gradients


def attend_with_lse(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    return attend(q, k, v), log_sum_exp(q, k)


def attend_packed_with_lse(q: Any, k: Any, v: Any, cu_seqlens: Any) -> tuple[Any, Any]:
    parts = itertools.pairwise(cu_seqlens.long().tolist())
    sums = [log_sum_exp(q[None, a:b], k[None, a:b])[0] for a, b in parts]
    return attend_packed(q, k, v, cu_seqlens), torch.cat(sums, -1)


def add(target: Any, source: Any) -> Any:
    """Add in place to a copy of the target."""
    return operators.reduce_add(target.clone(), source)


def log_sum_exp(q: Any, k: Any) -> Any:
    scores = q.transpose(1, 2) @ k.transpose(1, 2).mT / q.shape[-1] ** 0.5
    return scores.logsumexp(-1)


def multiply_groups(a: Any, b: Any, offsets: Any) -> Any:
    bounds = [0, *offsets.long().tolist()]
    return torch.cat([a[bounds[g] : bounds[g + 1]] @ b[g] for g in range(len(b))])


def multiply_scaled_groups(a: Any, b: Any, left: Any, right: Any, offsets: Any) -> Any:
    a, b = a * left.repeat_interleave(128, 1), b * right.repeat_interleave(128, 1)
    return multiply_groups(a, b, offsets)


def convolve(images: Any, filters: Any, bias: Any, *window: Any) -> Any:
    images, filters = images.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2)
    return torch.nn.functional.conv2d(images, filters, bias, *window).permute(0, 2, 3, 1)


def multiply_k_groups(a: Any, b: Any, ends: Any) -> Any:
    bounds = [0, *ends.long().tolist()]
    return torch.stack([a[:, i:j] @ b[i:j] for i, j in itertools.pairwise(bounds)])


def cumulative(*bounds: int) -> Any:
    return torch.tensor(bounds, dtype=torch.int32)


def packed(rows: int) -> list[Any]:
    return [*(draw(rows, 2, 16) for _ in range(3)), cumulative(0, 3, rows)]


def pad(rows: Any, cu_seqlens: Any, length: int) -> Any:
    bounds = cu_seqlens.long().tolist()
    padded = rows.new_zeros(len(bounds) - 1, length, *rows.shape[1:])
    for i, (start, end) in enumerate(itertools.pairwise(bounds)):
        padded[i, : end - start] = rows[start:end]
    return padded


def unpad(padded: Any, cu_seqlens: Any, rows: int) -> Any:
    lengths = cu_seqlens.long().diff().tolist()
    packed_rows = torch.cat([one[:length] for one, length in zip(padded, lengths, strict=True)])
    return torch.cat(
        [packed_rows, packed_rows.new_zeros(rows - len(packed_rows), *padded.shape[2:])]
    )


CASES: dict[str, Case] = {
    "matmul": Case(
        operators.matmul,
        lambda rows: [draw(rows, 40), draw(40, 24)],
        lambda a, b: a @ b,
        has_gradient=True,
    ),
    "matmul_epilogue": Case(
        lambda a, b, c, bias, **options: operators.matmul(a, b, c=c, bias=bias, **options),
        lambda rows: [draw(rows, 40), draw(40, 24), draw(rows, 24), draw(24)],
        lambda a, b, c, bias: torch.relu(0.5 * a @ b + 2 * c + bias),
        {"alpha": 0.5, "beta": 2.0, "activation": "relu"},
        has_gradient=True,
    ),
    "matmul_batch": Case(
        operators.matmul,
        lambda rows: [draw(rows, 2, 8, 16), draw(2, 16, 13)],
        lambda a, b: a @ b,
        has_gradient=True,
    ),
    "grouped_matmul": Case(
        operators.grouped_matmul,
        lambda rows: [draw(rows, 16), draw(3, 16, 12), cumulative(2, 2, rows)],
        multiply_groups,
        has_gradient=True,
    ),
    "k_grouped_matmul": Case(
        operators.k_grouped_matmul,
        lambda rows: [draw(rows, 16).T, draw(rows, 12), cumulative(2, 2, rows)],
        multiply_k_groups,
    ),
    "scaled_matmul": Case(
        operators.scaled_matmul,
        lambda rows: [
            draw(rows, 256, dtype=torch.float8_e4m3fn),
            draw(24, 256, dtype=torch.float8_e4m3fn).T,
            torch.rand(rows, 2) + 0.5,
            torch.rand(2, 1) + 0.5,
        ],
        lambda a, b, left, right: (
            (a * left.repeat_interleave(128, 1)) @ (b * right.repeat_interleave(128, 0))
        ),
        {"dtype": torch.float32},
    ),
    "scaled_grouped_matmul": Case(
        operators.scaled_grouped_matmul,
        lambda rows: [
            draw(rows, 256, dtype=torch.float8_e4m3fn),
            draw(3, 24, 256, dtype=torch.float8_e4m3fn).mT,
            torch.rand(rows, 2) + 0.5,
            torch.rand(3, 2, 1) + 0.5,
            cumulative(2, 2, rows),
        ],
        multiply_scaled_groups,
        {"dtype": torch.float32},
        chip="sm_100a",
    ),
    "conv2d": Case(
        lambda images, filters, bias, **options: operators.conv2d(
            images, filters, bias=bias, **options
        ),
        lambda rows: [draw(rows, 5, 6, 8), draw(12, 3, 3, 8), draw(12)],
        lambda images, filters, bias: convolve(images, filters, bias, (2, 1), 1),
        {"padding": 1, "stride": (2, 1)},
    ),
    "attention": Case(
        operators.attention,
        lambda rows: [draw(rows, 10, 2, 16), draw(rows, 10, 1, 16), draw(rows, 10, 1, 16)],
        lambda q, k, v: attend(q, k, v, is_causal=True),
        {"causal": True},
        has_gradient=True,
    ),
    "attention_with_lse": Case(
        operators.attention,
        lambda rows: [draw(2, rows, 2, 16) for _ in range(3)],
        attend_with_lse,
        {"return_lse": True},
        has_gradient=True,
    ),
    "attention_backward": Case(
        torch.ops.tmaasync.attention_backward,
        lambda rows: with_backward(attend_with_lse)(*(draw(2, rows, 2, 16) for _ in range(3))),
        gradients_of(attend_with_lse),
        has_out=False,
    ),
    "varlen_attention": Case(
        operators.varlen_attention, packed, attend_packed, {"max_seqlen_q": 32}, has_gradient=True
    ),
    "varlen_attention_with_lse": Case(
        operators.varlen_attention,
        packed,
        attend_packed_with_lse,
        {"max_seqlen_q": 32, "return_lse": True},
        has_gradient=True,
    ),
    "varlen_attention_backward": Case(
        torch.ops.tmaasync.varlen_attention_backward,
        lambda rows: with_backward(attend_packed_with_lse)(*packed(rows)),
        gradients_of(attend_packed_with_lse),
        {"max_seqlen_q": 32},
        has_out=False,
    ),
    "copy": Case(operators.copy, lambda rows: [draw(rows, 24)], lambda source: source),
    "reduce_add": Case(
        add,
        lambda rows: [draw(rows, 24), draw(2, rows, 24)],
        lambda target, source: target + source.sum(0),
        has_out=False,
    ),
    "ragged_load": Case(
        lambda rows, cu_seqlens, **out: operators.ragged_load(rows, cu_seqlens, 40, **out),
        lambda rows: [draw(rows, 2, 8), cumulative(0, 3, rows)],
        lambda rows, cu_seqlens: pad(rows, cu_seqlens, 40),
    ),
    "ragged_store": Case(
        lambda padded, cu_seqlens, **out: operators.ragged_store(padded, cu_seqlens, 40, **out),
        lambda rows: [draw(2, rows, 2, 8), cumulative(0, 3, 5)],
        lambda padded, cu_seqlens: unpad(padded, cu_seqlens, 40),
    ),
}
"""Rows of all sorts for each operator of `registered`."""

WITH_GRADIENT = sorted(name for name, case in CASES.items() if case.has_gradient)
WITHOUT_GRADIENT = sorted(set(CASES) - set(WITH_GRADIENT))
FORMS = [
    (name, is_out) for name, case in CASES.items() for is_out in (False, True)[: 1 + case.has_out]
]
"""Each case, with a new output and with one of the caller's."""


def checks_of(name: str) -> tuple[str, ...]:
    """Return the checks of opcheck that torch can do: it compares no float8."""
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    return checks if name.startswith("scaled") else ("test_schema", *checks)


def chip_of(request: Any) -> Any:
    """Return a context in which the case of a test's parameter ``name`` has its emulated chip."""
    name = getattr(request.node, "callspec", None) and request.node.callspec.params.get("name")
    return emulate.chip(CASES[name].chip if name in CASES else "sm_90a")


def registered() -> set[str]:
    """Return the names of all operators in ``torch.ops.tmaasync``, with their overloads."""
    names = torch._C._dispatch_get_all_op_names()
    return {name for name in names if name.startswith("tmaasync::")}


class Calls(TorchDispatchMode):  # type: ignore[misc]
    """Notes the calls of our operators, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "tmaasync":
            self.made.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))


def outputs_like(case: Case, given: list[Any], *, is_out: bool) -> dict[str, Any]:
    """Return ``out`` for a call, of zeros, or nothing."""
    if not is_out:
        return {}
    return {"out": torch.zeros_like(as_tuple(case.call(*given, **case.options))[0])}


def call_of(case: Case, given: list[Any], *, is_out: bool) -> tuple[Any, Any, Any]:
    """Return the operator that a case calls, with its arguments."""
    with emulate.chip(case.chip), torch.no_grad():
        out = outputs_like(case, given, is_out=is_out)
        with Calls() as calls:
            case.call(*given, **case.options, **out)
    (made,) = calls.made
    function, args, kwargs = made
    return function, args, kwargs


def results(case: Case, given: list[Any], out: dict[str, Any]) -> tuple[Any, ...]:
    """Return the results of a call with `outputs_like`, if any, and of a call without."""
    written = as_tuple(case.call(*given, **case.options, **out)) if out else ()
    return (*written, *as_tuple(case.call(*given, **case.options)))


def compiled(case: Case) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """Return twice the `results` of a case as a function, the same compiled whole, and a counter.

    Both functions take the arguments, and `outputs_like`. The counter counts graphs.
    """
    counter = CompileCounterWithBackend("aot_eager")

    def call(given: Any, out: Any) -> Any:
        return tuple(one * 2 for one in results(case, given, out))

    return call, torch.compile(call, backend=counter, fullgraph=True), counter


def exported(case: Case, *given: Any, **options: Any) -> Any:
    """Return the exported program of a case's `results`, as a module that is called like it.

    Args:
        case: Of the operator.
        given: The list of its arguments, and what `outputs_like` returns, or the list alone.
        options: Of ``torch.export.export``.
    """

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, given: Any, out: Any = None) -> Any:
            return results(case, given, out or {})

    return torch.export.export(Module(), given, **options).module()


def in_float64(arguments: list[Any]) -> list[Any]:
    return [one.double() if torch.is_tensor(one) else one for one in arguments]


def error(found: Any, wanted: Any) -> float:
    """Return the relative error, of the whole."""
    found, wanted = (one.detach().double().cpu() for one in (found, wanted))
    return float((found - wanted).norm() / wanted.norm())


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
