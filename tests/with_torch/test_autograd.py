"""Gradients of tmaasync.torch on CPU tensors, against torch's in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from parity.tile_configs import one_gemm_config

from tmaasync import ArgumentError

torch: Any = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_cases import draw, error, multiply_groups  # noqa: E402

import tmaasync.torch as operators  # noqa: E402

ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with one_gemm_config():
        yield


def gradients(call: Callable[..., Any], tensors: Sequence[Any], needs: Sequence[bool]) -> Any:
    """Return the output, and the gradients of the tensors that need one, for a random gradient."""
    given = [
        None if one is None else one.detach().requires_grad_(bool(need))
        for one, need in zip(tensors, needs, strict=True)
    ]
    out = call(*given)
    torch.manual_seed(1)
    grad = torch.randn(out.shape, dtype=torch.float64).to(out.dtype)
    out.backward(grad)
    return out, [None if one is None else one.grad for one in given]


def compare(
    ours: Callable[..., Any],
    reference: Callable[..., Any],
    tensors: Sequence[Any],
    needs: Sequence[bool],
    most: float,
) -> None:
    out, found = gradients(ours, tensors, needs)
    wide = [None if one is None else one.detach().double() for one in tensors]
    exact, wanted = gradients(reference, wide, needs)
    assert error(out, exact) < most
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert (one is None) == (other is None)
        if one is not None:
            assert (one.shape, one.dtype) == (tensors[index].shape, tensors[index].dtype)
            assert torch.isfinite(one).all()
            assert error(one, other) < most, index


def strided(rng: np.random.Generator, *shape: int, dtype: Any) -> Any:
    """Draw a tensor that is contiguous, transposed, or a slice off 16 bytes."""
    kind = rng.integers(3)
    if kind == 0:
        return draw(*shape, dtype=dtype)
    if kind == 1:
        return draw(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT
    return draw(*shape[:-1], shape[-1] + 3, dtype=dtype)[..., 3:]


BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()),
    ((3,), ()),
    ((), (3,)),
    ((3,), (3,)),
    ((1,), (3,)),
    ((2, 3), ()),
    ((2, 3), (2, 3)),
    ((2, 1), (3,)),
]


# From the first 16: each batch once, and all activations, strides, and gradients of c and bias.
@pytest.mark.parametrize("case", [5, 8, 9, 10, 11, 12, 14, 15])
def test_gradients_of_matmul_agree_with_float64(case: int) -> None:
    rng = np.random.default_rng(case)
    left, right = BATCHES[case % len(BATCHES)]
    m, n, k = (int(size) for size in rng.integers(1, 40, 3))
    dtype = [torch.bfloat16, torch.float16][case % 2]
    activation = list(ACTIVATIONS)[case % len(ACTIVATIONS)]
    alpha, beta = (float(x) for x in rng.choice([1.0, 0.5, -2.0], 2))
    batch = torch.broadcast_shapes(left, right)
    tensors = [
        strided(rng, *left, m, k, dtype=dtype),
        strided(rng, *right, k, n, dtype=dtype),
        draw(*batch, m, n, dtype=dtype) if rng.integers(2) else None,
        draw(n, dtype=[dtype, torch.float32][int(rng.integers(2))]) if rng.integers(2) else None,
    ]
    needs = [one is not None and bool(rng.integers(2)) for one in tensors]
    needs[int(rng.integers(2))] = True

    def ours(a: Any, b: Any, c: Any, bias: Any) -> Any:
        epilogue: dict[str, Any] = {"alpha": alpha, "activation": activation}
        added = {} if c is None else {"c": c, "beta": beta}
        return operators.matmul(a, b, bias=bias, **added, **epilogue)

    def reference(a: Any, b: Any, c: Any, bias: Any) -> Any:
        out = alpha * (a @ b)
        out = out if c is None else out + beta * c
        return ACTIVATIONS[activation](out if bias is None else out + bias)

    compare(ours, reference, tensors, needs, 3e-2 if dtype is torch.bfloat16 else 4e-3)


def test_gradients_agree_with_finite_differences() -> None:
    a, b, bias = draw(9, 24, dtype=torch.float32), draw(24, 8, dtype=torch.float32), draw(8)
    a.requires_grad_()

    def loss(a: Any) -> Any:
        out = operators.matmul(a, b, bias=bias.float(), activation="silu", precision="tf32")
        return out.double().sum()

    (found,) = torch.autograd.grad(loss(a), a)
    with torch.no_grad():
        along = torch.randn_like(a)
        step = 2**-4  # tf32 rounds operands to 2^-11
        change = (loss(a + step * along) - loss(a - step * along)) / (2 * step)
    assert float((found * along).sum()) == pytest.approx(float(change), rel=1e-2)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_scales_and_another_output_type_have_gradients_too(activation: str | None) -> None:
    scale = torch.tensor([0.25])

    def ours(a: Any, b: Any) -> Any:
        factors = {"scale_a": scale, "scale_b": scale, "alpha": 3.0}
        return operators.matmul(a, b, **factors, activation=activation, dtype=torch.float32)

    def reference(a: Any, b: Any) -> Any:
        return ACTIVATIONS[activation](3 / 16 * (a @ b))

    compare(ours, reference, [draw(20, 16), draw(16, 8)], [True, True], 2e-3)


def test_tf32_operands_have_gradients() -> None:
    tensors = [draw(10, 12, dtype=torch.float32), draw(12, 20, dtype=torch.float32)]

    def ours(a: Any, b: Any) -> Any:
        return operators.matmul(a, b, precision="tf32")

    compare(ours, torch.matmul, tensors, [True, True], 2e-3)


def test_an_expanded_gradient_is_read() -> None:
    a, b = draw(8, 16).requires_grad_(), draw(16, 24).requires_grad_()

    operators.matmul(a, b).sum().backward()

    assert error(a.grad, b.detach().double().sum(1).expand(8, 16)) < 1e-3
    assert error(b.grad, a.detach().double().sum(0)[:, None].expand(16, 24)) < 1e-3


@pytest.mark.parametrize("case", range(8))
def test_gradients_of_grouped_matmul_agree_with_float64(case: int) -> None:
    rng = np.random.default_rng(case)
    groups = int(rng.integers(1, 5))
    lengths = rng.integers(0, 20, groups)
    lengths[0] += 1
    n, k = (int(size) for size in rng.integers(1, 40, 2))
    dtype = [torch.bfloat16, torch.float16][case % 2]
    offsets = torch.tensor(lengths.cumsum(), dtype=torch.int32)
    tensors = [
        strided(rng, int(offsets[-1]), k, dtype=dtype),
        strided(rng, groups, k, n, dtype=dtype),
    ]
    needs = [case % 3 != 1, case % 3 != 2]

    compare(
        lambda a, b: operators.grouped_matmul(a, b, offsets),
        lambda a, b: multiply_groups(a, b, offsets),
        tensors,
        needs,
        2e-2 if dtype is torch.bfloat16 else 2e-3,
    )


def test_rows_after_the_last_group_get_zeros() -> None:
    a, b = draw(12, 16).requires_grad_(), draw(2, 16, 8).requires_grad_()
    out = operators.grouped_matmul(a, b, torch.tensor([3, 7]))

    (a_grad, b_grad) = torch.autograd.grad(out, (a, b), torch.ones_like(out))

    assert (a_grad[7:] == 0).all()
    assert (a_grad[:7] != 0).any()
    assert error(b_grad[1], a.detach().double()[3:7].sum(0)[:, None].expand(16, 8)) < 1e-3


def test_compiled_code_has_the_same_gradients() -> None:
    torch._dynamo.reset()
    x, weight, bias = draw(9, 16), draw(24, 16), draw(24)
    experts, offsets = draw(2, 24, 16), torch.tensor([4, 9])

    def call(x: Any, weight: Any, bias: Any, experts: Any) -> Any:
        hidden = operators.matmul(x, weight.T, bias=bias, activation="gelu")
        return operators.grouped_matmul(hidden, experts, offsets)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    needs = [True] * 4
    out, found = gradients(compiled, [x, weight, bias, experts], needs)
    same, wanted = gradients(call, [x, weight, bias, experts], needs)

    assert torch.equal(out, same)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


RECORDED: dict[str, Callable[..., Any]] = {
    "matmul": lambda x: operators.matmul(x[0, :, 0], x[0, :, 0].mT, activation="gelu"),
    "attention": lambda x: operators.attention(x, x, x, causal=True),
    "varlen_attention": lambda x: operators.varlen_attention(
        x[0], x[0], x[0], torch.tensor([0, 3, 9], dtype=torch.int32)
    ),
}


@pytest.mark.filterwarnings("ignore")  # of torch's own code
@pytest.mark.parametrize("name", RECORDED)
def test_autograd_has_what_it_has_for_torchs_own_functions(name: str) -> None:
    """Hooks, checkpoints, saved-tensor hooks, and the error of tensors that changed."""
    call, x = RECORDED[name], draw(1, 9, 2, 16).requires_grad_()
    seen: list[Any] = []

    def keep(tensor: Any) -> Any:
        seen.append(tensor)
        return tensor

    def gradient(out: Any) -> Any:
        (found,) = torch.autograd.grad(out.float().square().sum(), x)
        return found

    wanted = gradient(call(x))
    for is_reentrant in (False, True):
        out = checkpoint(lambda x: call(x).float().square().sum(), x, use_reentrant=is_reentrant)
        x.grad = None
        out.backward()
        assert torch.equal(x.grad, wanted)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = call(x)
    assert seen
    out.register_hook(keep)
    assert torch.equal(gradient(out), wanted)
    assert seen[-1].shape == out.shape

    kept = x.detach().clone().requires_grad_()
    out = call(kept)
    with torch.no_grad():
        kept.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    with pytest.raises(ArgumentError, match="cannot be differentiated again"):
        torch.autograd.grad(call(x).sum(), x, create_graph=True)


def test_what_has_no_gradient_is_refused() -> None:
    a, b = draw(8, 16), draw(16, 8)
    with pytest.raises(ArgumentError, match="scale_a requires grad; matmul has no backward for"):
        operators.matmul(a, b, scale_a=torch.ones(1, requires_grad=True))
    eight = a.to(torch.float8_e4m3fn).requires_grad_()
    with pytest.raises(ArgumentError, match=r"a holds torch.float8_e4m3fn and requires grad"):
        operators.matmul(eight, eight.detach().T)


def test_a_gradient_reaches_the_bias_of_float8_operands() -> None:
    eight, bias = draw(8, 16).to(torch.float8_e4m3fn), draw(8, dtype=torch.float32)
    bias.requires_grad_()

    operators.matmul(eight, eight.T, bias=bias, activation="relu").sum().backward()

    wide = eight.double()
    assert (bias.grad == ((wide @ wide.T + bias.detach()) > 0).sum(0)).all()


# --- attention --------------------------------------------------------------------------------


def heads_first(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, v: call(*(one.transpose(1, 2) for one in (q, k, v))).transpose(1, 2)


def attend_exactly(q: Any, k: Any, v: Any) -> Any:
    attend = torch.nn.functional.scaled_dot_product_attention
    return heads_first(lambda *given: attend(*given, is_causal=True, enable_gqa=True))(q, k, v)


def draw_heads() -> list[Any]:
    return [
        torch.randn(1, 70, heads, 64, dtype=torch.float64).to(torch.float16) for heads in (2, 1, 1)
    ]


def test_attention() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return operators.attention(q, k, v, causal=True)

    compare(attend, attend_exactly, draw_heads(), (True, True, True), 2e-3)
    compare(attend, attend_exactly, draw_heads(), (True, False, False), 2e-3)


def test_drop_ins_of_attention_have_its_gradients() -> None:
    sdpa = operators.scaled_dot_product_attention
    for attend in (
        heads_first(lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True)),
        lambda q, k, v: operators.flash_attn_func(q, k, v, causal=True),
    ):
        compare(attend, attend_exactly, draw_heads(), (True, True, True), 2e-3)


def test_varlen_attention_and_its_log_sum_exp_without_gradient() -> None:
    ends = torch.tensor([0, 70], dtype=torch.int32)

    def attend(q: Any, k: Any, v: Any) -> Any:
        out, lse = operators.varlen_attention(q[0], k[0], v[0], ends, causal=True, return_lse=True)
        assert not lse.requires_grad
        return out[None]

    compare(attend, attend_exactly, draw_heads(), (True, True, True), 2e-3)


def test_attention_without_a_backward_refuses_what_requires_grad() -> None:
    q = torch.ones(1, 8, 1, 136, dtype=torch.float16).requires_grad_()

    with pytest.raises(ArgumentError, match="requires grad"):
        operators.attention(q, q, q)
    with pytest.raises(ArgumentError, match="up to 128 columns"):
        torch.ops.tmaasync.attention_with_lse(q, q, q)
    with pytest.raises(ArgumentError, match="no backward for it"):
        operators.scaled_dot_product_attention(q, q, q)
