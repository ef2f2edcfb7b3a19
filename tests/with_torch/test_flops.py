"""FlopCounterMode counts the operators as it counts torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_wrong_calls import without_launches  # noqa: E402

import tmaasync.torch as tt  # noqa: E402


def flops(call: Callable[[], Any]) -> int:
    """Return what a call counts; values play no part, so no kernel runs."""
    with FlopCounterMode(display=False) as counter, without_launches():
        call()
    total: int = counter.get_total_flops()
    return total


def halves(*shape: int, grad: bool = False) -> Any:
    return torch.randn(shape).to(torch.bfloat16).requires_grad_(grad)


MATMULS = {
    "matrices": ((33, 40), (40, 24)),
    "batches": ((3, 33, 40), (3, 40, 24)),
    "one matrix for all": ((3, 33, 40), (40, 24)),
    "no batch": ((0, 33, 40), (40, 24)),
    "four dimensions": ((2, 3, 5, 40), (40, 24)),
}


@pytest.mark.parametrize("case", MATMULS)
def test_matmul(case: str) -> None:
    a, b = (halves(*shape) for shape in MATMULS[case])
    expected = flops(lambda: torch.matmul(a, b))
    assert flops(lambda: tt.matmul(a, b)) == expected
    assert flops(lambda: tt.matmul(a, b, activation="relu")) == expected
    assert expected == 2 * a.numel() * b.shape[-1]


def test_matmul_into_an_output_and_its_gradients() -> None:
    a, b = halves(33, 40, grad=True), halves(40, 24, grad=True)
    out = torch.empty(33, 24, dtype=torch.bfloat16)
    assert flops(lambda: tt.matmul(a.detach(), b.detach(), out=out)) == 2 * 33 * 40 * 24
    expected = flops(lambda: torch.matmul(a, b).sum().backward())
    assert flops(lambda: tt.matmul(a, b).float().sum().backward()) == expected == 6 * 33 * 40 * 24


def test_grouped_matmuls() -> None:
    a, b = halves(70, 40, grad=True), halves(4, 40, 24, grad=True)
    offsets = torch.tensor([10, 10, 33, 70], dtype=torch.int32)
    one = flops(lambda: [torch.mm(rows, b[g]) for g, rows in enumerate(a.split((10, 0, 23, 37)))])
    assert flops(lambda: tt.grouped_matmul(a, b, offsets)) == one == 2 * 70 * 40 * 24
    assert flops(lambda: tt.grouped_matmul(a, b, offsets).float().sum().backward()) == 3 * one
    assert flops(lambda: tt.k_grouped_matmul(a.detach().T, halves(70, 24), offsets)) == one


def test_scaled_matmul() -> None:
    a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((33, 256), (128, 256)))
    scale_a, scale_b = torch.ones(33, 2), torch.ones(2, 1)
    assert flops(lambda: tt.scaled_matmul(a, b.T, scale_a, scale_b)) == 2 * 33 * 256 * 128


def test_conv2d() -> None:
    images, filters = halves(2, 9, 11, 16), halves(12, 3, 2, 16)
    window: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    expected = flops(
        lambda: functional.conv2d(images.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2), **window)
    )
    assert flops(lambda: tt.conv2d(images, filters, **window)) == expected > 0
    out = torch.empty(tt.conv2d(images, filters, **window).shape, dtype=torch.bfloat16)
    assert flops(lambda: tt.conv2d(images, filters, **window, out=out)) == expected


def of_heads(*arrays: Any) -> Any:
    """Return arrays as torch's attention has them, in the math form, whose matmuls are counted."""
    return [array.transpose(1, 2) for array in arrays]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients(causal: bool) -> None:
    q, k, v = halves(2, 12, 4, 32, grad=True), *(halves(2, 20, 4, 32, grad=True) for _ in "kv")
    with sdpa_kernel(SDPBackend.MATH):
        forward = flops(lambda: functional.scaled_dot_product_attention(*of_heads(q, k, v)))
    backward = 2.5 * forward  # dV, dP, dQ, dK, and Q K^T again, as torch counts fused kernels
    assert forward == 4 * 2 * 4 * 12 * 20 * 32
    with torch.no_grad():
        assert flops(lambda: tt.attention(q, k, v, causal=causal)) == forward
        assert flops(lambda: tt.attention(q, k, v, return_lse=True)) == forward
    both = flops(lambda: tt.attention(q, k, v, causal=causal).float().sum().backward())
    assert both == forward + backward


def test_query_heads_count_in_gqa() -> None:
    q, k = halves(2, 12, 4, 32), halves(2, 20, 2, 32)
    assert flops(lambda: tt.attention(q, k, k)) == 4 * 2 * 4 * 12 * 20 * 32


def test_varlen_attention_counts_each_sequence() -> None:
    q, k = halves(20, 4, 32, grad=True), halves(30, 2, 32, grad=True)
    cu_q, cu_k = (torch.tensor(one, dtype=torch.int32) for one in ([0, 5, 5, 20], [0, 9, 10, 30]))
    pairs = 5 * 9 + 0 * 1 + 15 * 20
    with torch.no_grad():
        assert flops(lambda: tt.varlen_attention(q, k, k, cu_q, cu_k)) == 4 * 4 * 32 * pairs
        assert flops(lambda: tt.varlen_attention(q, q, q, cu_q)) == 4 * 4 * 32 * (25 + 225)

    def both() -> None:
        tt.varlen_attention(q, k, k, cu_q, cu_k, 15, 20).float().sum().backward()

    assert flops(both) == 14 * 4 * 32 * pairs


def test_tensors_without_memory_count_their_longest_sequences() -> None:
    with torch.device("meta"):
        q, cu_seqlens = torch.empty(20, 4, 32, dtype=torch.bfloat16), torch.empty(4).int()
        assert flops(lambda: tt.varlen_attention(q, q, q, cu_seqlens, None, 15)) == (
            4 * 4 * 32 * 3 * 15 * 15
        )
