"""What has no backward refuses tensors that require grad, in grad mode, before it launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tmaasync import ArgumentError, Kernel, create_tma_tile, ops, plan_copy

torch: Any = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

KERNEL = """
extern "C" __global__ void twice(const float* x, float* out) {
    out[threadIdx.x] = 2 * x[threadIdx.x];
}
"""


def half(*shape: int) -> Any:
    return torch.ones(shape, dtype=torch.float16)


SUMS = torch.tensor([0, 3, 8], dtype=torch.int32)
SCALES = torch.ones(8, 1), torch.ones(1, 8)
BYTES = half(8, 16).to(torch.float8_e4m3fn)

CALLS: dict[str, tuple[Callable[..., object], list[Any]]] = {
    "matmul": (ops.matmul, [half(8, 16), half(16, 8)]),
    "matmul with bias": (lambda a, bias: ops.matmul(a, a.T, bias=bias), [half(8, 16), half(8)]),
    "grouped_matmul": (
        lambda a, b: ops.grouped_matmul(a, b, [3, 8]),
        [half(8, 16), half(2, 16, 8)],
    ),
    "k_grouped_matmul": (
        lambda a, b: ops.k_grouped_matmul(a.T, b, [3, 8]),
        [half(8, 16), half(8, 8)],
    ),
    "scaled_matmul": (lambda a, b: ops.scaled_matmul(BYTES, BYTES.T, a, b), list(SCALES)),
    "conv2d": (ops.conv2d, [half(1, 4, 4, 8), half(8, 3, 3, 8)]),
    "attention": (ops.attention, [half(1, 8, 1, 16), half(1, 8, 1, 16), half(1, 8, 1, 16)]),
    "varlen_attention": (
        lambda q, k, v: ops.varlen_attention(q, k, v, SUMS, max_seqlen_q=5),
        [half(8, 1, 16), half(8, 1, 16), half(8, 1, 16)],
    ),
    "copy": (ops.copy, [half(8, 16), half(8, 16)]),
    "reduce_add": (ops.reduce_add, [half(8, 16), half(8, 16)]),
    "ragged_store": (lambda x: ops.ragged_store(x, [1, 2]), [half(2, 4, 8)]),
    "ragged_load": (lambda x: ops.ragged_load(x, [1, 2]), [half(3, 8)]),
    "plan_copy": (plan_copy, [half(8, 16), half(8, 16)]),
    "Kernel": (
        lambda x, out: Kernel(KERNEL, "twice")(1, 8, (x, out)),
        [torch.ones(8), torch.ones(8)],
    ),
    "create_tma_tile": (lambda x: create_tma_tile(x, (8, 16)), [half(8, 16)]),
}


@pytest.mark.parametrize(
    ("name", "which"), [(name, i) for name, (_, given) in CALLS.items() for i in range(len(given))]
)
def test_an_input_that_requires_grad_is_refused_in_grad_mode(name: str, which: int) -> None:
    call, given = CALLS[name]
    arrays = [array.detach().clone() for array in given]
    arrays[which].requires_grad_()

    with pytest.raises(ArgumentError, match=r"requires grad.*torch.no_grad\(\).*tmaasync.torch"):
        call(*arrays)
    assert all((array == kept).all() for array, kept in zip(arrays, given, strict=True))


@pytest.mark.filterwarnings("ignore")  # of torch's own code
@pytest.mark.parametrize("name", CALLS)
def test_a_tangent_is_refused_with_gradients_or_without(name: str) -> None:
    call, given = CALLS[name]
    for which in range(len(given)):
        arrays = [array.detach().clone() for array in given]
        with forward_ad.dual_level(), torch.set_grad_enabled(which % 2 == 0):
            arrays[which] = forward_ad.make_dual(arrays[which], torch.ones_like(arrays[which]))
            with pytest.raises(ArgumentError, match=r"with a tangent.*unpack_dual.*primal"):
                call(*arrays)
            call(*(forward_ad.unpack_dual(array).primal for array in arrays))


@pytest.mark.parametrize("name", CALLS)
def test_outside_of_grad_mode_and_detached_it_is_taken(name: str) -> None:
    call, given = CALLS[name]
    arrays = [array.detach().clone().requires_grad_() for array in given]

    with torch.no_grad():
        call(*arrays)
    call(*(array.detach() for array in arrays))


WRITES: dict[str, Callable[[Any], object]] = {
    "matmul": lambda out: ops.matmul(half(8, 16), half(16, 16), out=out),
    "copy": lambda target: ops.copy(half(8, 16), target),
    "reduce_add": lambda target: ops.reduce_add(target, half(8, 16)),
    "ragged_store": lambda out: ops.ragged_store(half(2, 4, 16), [4, 4], out),
    "attention": lambda out: ops.attention(*[half(1, 8, 1, 16)] * 3, out=out[None, :, None]),
}


@pytest.mark.parametrize("name", WRITES)
def test_an_inference_tensor_is_written_in_inference_mode_alone(name: str) -> None:
    with torch.inference_mode():
        out = torch.zeros(8, 16, dtype=torch.float16)
        WRITES[name](out)
        assert out.all()
        out.zero_()

    with pytest.raises(
        ArgumentError, match=r"^(out|target) is an inference tensor of shape .*, ou"
    ):
        WRITES[name](out)

    assert not out.any()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside"):
        out.add_(1)  # torch has the same rule


def test_an_inference_tensor_off_16_bytes_is_refused_before_the_launch() -> None:
    """It would be written through a staging copy, by torch."""
    with torch.inference_mode():
        out = torch.zeros(8, 13, dtype=torch.float16)
    with pytest.raises(ArgumentError, match=r"Call it inside torch.inference_mode\(\), or pass"):
        ops.matmul(half(8, 16), half(16, 13), out=out)
    ops.matmul(half(8, 16), half(16, 13), out=torch.zeros_like(out))
    with torch.inference_mode():
        assert (ops.matmul(half(8, 16), half(16, 13), out=out) == 16).all()
