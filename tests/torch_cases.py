"""One call of each torch operator, on the CPU or a GPU, and what float64 says about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import tmaasync.torch as operators

HALF = torch.float16


@dataclass(frozen=True)
class Case:
    """Arguments of an operator, and the reference in float64.

    Attributes:
        call: The function of tmaasync.torch.
        given: Makes the positional arguments, for a number of rows.
        options: Further arguments.
        reference: Takes the arguments in float64.
    """

    call: Callable[..., Any]
    given: Callable[[int], list[Any]]
    reference: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)


def draw(*shape: int, dtype: Any = HALF) -> Any:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def attend(q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, k, v, is_causal=is_causal, enable_gqa=True).transpose(1, 2)


def attend_packed(q: Any, k: Any, v: Any, cu_seqlens: Any, **options: Any) -> Any:
    parts = itertools.pairwise(cu_seqlens.long().tolist())
    return torch.cat([attend(q[None, a:b], k[None, a:b], v[None, a:b])[0] for a, b in parts])


def log_sum_exp(q: Any, k: Any) -> Any:
    scores = q.transpose(1, 2) @ k.transpose(1, 2).mT / q.shape[-1] ** 0.5
    return scores.logsumexp(-1)


def multiply_groups(a: Any, b: Any, offsets: Any) -> Any:
    bounds = [0, *offsets.long().tolist()]
    return torch.cat([a[bounds[g] : bounds[g + 1]] @ b[g] for g in range(len(b))])


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
        operators.matmul, lambda rows: [draw(rows, 40), draw(40, 24)], lambda a, b: a @ b
    ),
    "matmul_epilogue": Case(
        lambda a, b, c, bias, **options: operators.matmul(a, b, c=c, bias=bias, **options),
        lambda rows: [draw(rows, 40), draw(40, 24), draw(rows, 24), draw(24)],
        lambda a, b, c, bias: torch.relu(0.5 * a @ b + 2 * c + bias),
        {"alpha": 0.5, "beta": 2.0, "activation": "relu"},
    ),
    "matmul_batch": Case(
        operators.matmul,
        lambda rows: [draw(rows, 2, 8, 16), draw(2, 16, 13)],
        lambda a, b: a @ b,
    ),
    "grouped_matmul": Case(
        operators.grouped_matmul,
        lambda rows: [draw(rows, 16), draw(3, 16, 12), cumulative(2, 2, rows)],
        multiply_groups,
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
        lambda rows: [draw(rows, 10, 4, 16), draw(rows, 10, 2, 16), draw(rows, 10, 2, 16)],
        lambda q, k, v: attend(q, k, v, is_causal=True),
        {"causal": True},
    ),
    "attention_with_lse": Case(
        operators.attention,
        lambda rows: [draw(rows, 10, 2, 16) for _ in range(3)],
        lambda q, k, v: (attend(q, k, v), log_sum_exp(q, k)),
        {"return_lse": True},
    ),
    "varlen_attention": Case(
        operators.varlen_attention, packed, attend_packed, {"max_seqlen_q": 32}
    ),
    "copy": Case(operators.copy, lambda rows: [draw(rows, 24)], lambda source: source),
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


def in_float64(arguments: list[Any]) -> list[Any]:
    return [one.double() if torch.is_tensor(one) else one for one in arguments]


def error(found: Any, wanted: Any) -> float:
    """Return the relative error, of the whole."""
    found, wanted = (one.detach().double().cpu() for one in (found, wanted))
    return float((found - wanted).norm() / wanted.norm())


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
