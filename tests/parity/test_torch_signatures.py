"""The signatures that users of torch and flash_attn know, used as an outsider would use them."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from parity.tile_configs import one_gemm_config

torch: Any = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from tmaasync import ArgumentError, ArrayTypeError  # noqa: E402

tma: Any = importlib.import_module("tmaasync.torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's own code
HALF = torch.float16
SDPA = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(
    autouse=True,
    params=["cpu", pytest.param("cuda", marks=[pytest.mark.hopper, pytest.mark.gpu])],
    name="device",
)
def _device(request: pytest.FixtureRequest) -> Iterator[str]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.device(request.param), one_gemm_config():
        yield request.param


def draw(*shape: int, dtype: Any = HALF) -> Any:
    return torch.randn(shape).to(dtype)


def near(found: Any, wanted: Any, most: float = 3e-3) -> None:
    found, wanted = found.detach().double(), wanted.detach().double()
    assert found.shape == wanted.shape
    assert float((found - wanted).norm()) <= most * float(wanted.norm())


def gradients(call: Callable[..., Any], *tensors: Any) -> Any:
    given = [one.detach().clone().requires_grad_() for one in tensors]
    out = call(*given)
    torch.manual_seed(1)
    return torch.autograd.grad(out, given, torch.randn(out.shape, device=out.device).to(out.dtype))


def positions_first(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: call(*(one.transpose(1, 2) for one in given)).transpose(1, 2)


# --- torch.ops.tmaasync.matmul(a, b), torch.ops.tmaasync.attention(q, k, v) ---------------------


@pytest.mark.chips("sm_90a", "sm_100a")  # the backward needs their shared memory
def test_the_operators_compute_and_have_gradients_by_position_and_by_name() -> None:
    a, b, (q, k, v) = draw(20, 16), draw(16, 24), (draw(2, 9, 4, 16) for _ in range(3))
    matmul, attention = torch.ops.tmaasync.matmul, torch.ops.tmaasync.attention

    near(matmul(a, b), a.double() @ b.double())
    assert torch.equal(matmul(b=b, a=a), matmul(a, b))
    near(attention(q, k, v), positions_first(SDPA)(q.double(), k.double(), v.double()))
    assert torch.equal(attention(v=v, q=q, k=k), attention(q, k, v))
    wide = gradients(torch.matmul, a.double(), b.double())
    for call in (matmul, lambda a, b: matmul(b=b, a=a), matmul.default):
        for one, other in zip(gradients(call, a, b), wide, strict=True):
            near(one, other)
    wide = gradients(positions_first(SDPA), q.double(), k.double(), v.double())
    for call in (attention, lambda q, k, v: attention(v=v, k=k, q=q), attention.default):
        for one, other in zip(gradients(call, q, k, v), wide, strict=True):
            near(one, other)


# --- strides, sizes, types ----------------------------------------------------------------------


def test_tensors_of_all_layouts_are_taken() -> None:
    square = draw(24, 24)
    layouts: dict[str, Any] = {
        "transposed": square.T,
        "every second row": draw(48, 24)[::2],
        "every second column": draw(24, 48)[:, ::2],
        "off 16 bytes": draw(24, 27)[:, 3:],
        "expanded rows": draw(1, 24).expand(24, 24),
        "expanded columns": draw(24, 1).expand(24, 24),
        "rows in another order": square[torch.arange(23, -1, -1)],
        "negated by a bit": torch._neg_view(square),
    }
    for one in layouts.values():
        near(torch.ops.tmaasync.matmul(one, square), one.double() @ square.double())
        near(torch.ops.tmaasync.matmul(square, one), square.double() @ one.double())
        found = gradients(torch.ops.tmaasync.matmul, one, square)
        wide = gradients(torch.matmul, one.double(), square.double())
        for mine, other in zip(found, wide, strict=True):
            near(mine, other)
        heads = one.unflatten(1, (1, 24))[None]
        near(tma.attention(heads, heads, heads), positions_first(SDPA)(*[heads.double()] * 3))


def test_sizes_of_zero_are_taken() -> None:
    a, b = draw(8, 16), draw(16, 13)
    for left, right in ((a[:0], b), (a[:, :0], b[:0]), (a, b[:, :0])):
        found = torch.ops.tmaasync.matmul(left, right)
        wanted = left @ right
        assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
        assert torch.equal(found, wanted)
        for one in gradients(torch.ops.tmaasync.matmul, left, right):
            assert not one.any()
    q = draw(2, 8, 2, 16)
    assert not tma.attention(q, q[:, :0], q[:, :0]).any()
    assert tma.flash_attn_func(q[:, :0], q, q).shape == (2, 0, 2, 16)


def test_a_lazily_negated_output_is_refused_with_a_remedy() -> None:
    out, x = torch._neg_view(torch.zeros(16, 16, dtype=HALF)), draw(16, 16)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: tma.matmul(x, x, out=out),
        lambda: tma.reduce_add(out, x),
    )
    for call in calls:
        with pytest.raises(ArrayTypeError, match=r"lazy negation .* Pass tensor.resolve_neg"):
            call()


# --- modes --------------------------------------------------------------------------------------


def test_modes_of_autograd_hold() -> None:
    a, b = draw(8, 16).requires_grad_(), draw(16, 8)
    q = draw(1, 8, 1, 16).requires_grad_()
    with torch.no_grad():
        assert not torch.ops.tmaasync.matmul(a, b).requires_grad
        assert not torch.ops.tmaasync.attention(q, q, q).requires_grad
    with torch.inference_mode():
        assert torch.ops.tmaasync.matmul(a, b).is_inference()
        assert torch.ops.tmaasync.attention(q, q, q).is_inference()
        made = draw(8, 16)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        torch.ops.tmaasync.matmul(made, b.clone().requires_grad_())
    with torch.no_grad(), torch.enable_grad():
        assert torch.ops.tmaasync.matmul(a, b).requires_grad


@pytest.mark.chips("sm_90a", "sm_100a")
def test_autocast_casts_float32(device: str) -> None:
    x, weight = torch.randn(8, 16), torch.randn(8, 16).requires_grad_()
    q = torch.randn(1, 2, 8, 16).requires_grad_()
    # On the CPU, where each type is a build, the tests of autocast have the other one.
    for dtype in (torch.bfloat16, torch.float16)[: 1 if device == "cpu" else 2]:
        with torch.autocast(device, dtype=dtype):
            out = torch.ops.tmaasync.matmul(x, weight.T)
            attended = tma.scaled_dot_product_attention(q, q, q, is_causal=True)
            flash = torch.ops.tmaasync.attention(q, q, q, causal=True)
        assert out.dtype == attended.dtype == flash.dtype == dtype
        for one, other in ((out, weight), (attended, q), (flash, q)):
            (grad,) = torch.autograd.grad(one.float().sum(), other)
            assert grad.dtype == torch.float32


# --- modules ------------------------------------------------------------------------------------


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(draw(32, 16))
        self.multiply, self.attend = tma.matmul, tma.scaled_dot_product_attention

    def forward(self, x: Any) -> Any:
        hidden = self.multiply(x, self.weight.T).unflatten(-1, (2, 16)).transpose(0, 1)
        return self.attend(hidden, hidden, hidden, is_causal=True)


@pytest.mark.chips("sm_90a", "sm_100a")
def test_modules_are_copied_saved_traced_and_checkpointed() -> None:
    layer, x = Layer(), draw(9, 16)
    wanted = layer(x)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)

    assert torch.equal(copy.deepcopy(layer)(x), wanted)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), wanted)
    assert torch.equal(torch.load(saved, weights_only=False)(x), wanted)
    assert torch.equal(torch.func.functional_call(layer, dict(layer.named_parameters()), x), wanted)
    (grad,) = torch.autograd.grad(layer(x).float().square().sum(), layer.weight)
    for is_reentrant in (False, True):
        needing = x.clone().requires_grad_()
        out = checkpoint(layer, needing, use_reentrant=is_reentrant)
        near(torch.autograd.grad(out.float().square().sum(), layer.weight)[0], grad, 1e-3) if (
            not is_reentrant
        ) else out.float().square().sum().backward()
    near(layer.weight.grad, grad, 1e-3)
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Identity(), Product()))
    assert "torch.ops.tmaasync.matmul" in traced.code
    assert torch.equal(traced(x), Product()(x))


class Product(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return tma.matmul(x, x.mT)


@pytest.mark.parametrize("name", ["grouped_matmul", "attention"])
def test_several_gradients_at_once_are_refused_in_one_way(name: str) -> None:
    x = draw(8, 1, 16).requires_grad_()
    ends = torch.tensor([8], dtype=torch.int32)
    call: Callable[[Any], Any] = {
        "grouped_matmul": lambda x: tma.grouped_matmul(x[:, 0], x[:, 0].mT[None], ends),
        "attention": lambda x: tma.attention(x[None], x[None], x[None]),
    }[name]
    out = call(x)

    def refused() -> Any:
        return pytest.raises(ArgumentError, match=r"torch.func, or for several gradients at once")

    with refused():
        torch.autograd.grad(out, x, torch.ones(3, *out.shape).to(HALF), is_grads_batched=True)
    with refused():
        torch.autograd.functional.jacobian(call, x, vectorize=True)
    with refused():
        torch.func.jacrev(call)(x.detach())
    with refused():
        torch.vmap(call)(x.detach()[None])
    with pytest.raises(ArgumentError, match=r"with a tangent|torch.func"):
        torch.func.linearize(call, x.detach())
    with pytest.raises(ArgumentError, match="with a tangent"):
        torch.autograd.functional.jacobian(call, x, vectorize=True, strategy="forward-mode")
    with pytest.raises(ArgumentError, match="create_graph=True"):
        torch.autograd.functional.hessian(lambda x: call(x).sum(), x)


# --- drop-ins -----------------------------------------------------------------------------------


def test_flash_attn_functions_take_their_arguments_by_position_and_by_name() -> None:
    q, k, v = (draw(2, 9, 2, 16) for _ in range(3))
    ends = torch.tensor([0, 9, 18], dtype=torch.int32)
    packed = [one.flatten(0, 1) for one in (q, k, v)]
    lengths = torch.tensor([4, 7], dtype=torch.int32)
    caches = [torch.nn.functional.pad(one, (0, 0, 0, 0, 0, 7)) for one in (k, v)]

    out = tma.flash_attn_func(q, k, v, 0.0, 0.3, True, (-1, -1), 0.0, None, False, False)
    near(out, tma.flash_attn_func(v=v, k=k, q=q, causal=True, softmax_scale=0.3), 1e-6)
    near(
        tma.flash_attn_varlen_func(*packed, ends, ends, 9, 9, 0.0, 0.3, True),
        out.flatten(0, 1),
        1e-3,
    )
    together = (torch.stack([q, k, v], 2), torch.stack([k, v], 2))
    near(tma.flash_attn_qkvpacked_func(together[0], 0.0, 0.3, True), out, 1e-6)
    near(tma.flash_attn_kvpacked_func(q, together[1], 0.0, 0.3, True), out, 1e-6)
    qkv, kv = (one.flatten(0, 1) for one in together)
    rows = tma.flash_attn_varlen_qkvpacked_func(qkv, ends, 9, 0.0, 0.3, True)
    near(rows, out.flatten(0, 1), 1e-3)
    rows = tma.flash_attn_varlen_kvpacked_func(packed[0], kv, ends, ends, 9, 9, 0.0, 0.3, True)
    near(rows, out.flatten(0, 1), 1e-3)
    with pytest.raises(ArgumentError, match=r"kv.shape is .*; it must be \[batch, keys, 2, kv_hea"):
        tma.flash_attn_kvpacked_func(q, together[0])
    one, probabilities_lse, nothing = tma.flash_attn_func(q, k, v, return_attn_probs=True)
    assert (one.shape, probabilities_lse.shape, nothing) == (q.shape, (2, 2, 9), None)
    last = tma.flash_attn_with_kvcache(q[:, -1:], *caches, cache_seqlens=9, softmax_scale=0.3)
    near(last, out[:, -1:], 1e-3)
    for index, length in enumerate(lengths.tolist()):
        given = lengths if index else lengths.cpu()  # the host's are taken on a GPU too
        part = tma.flash_attn_with_kvcache(q[:, :1], *caches, cache_seqlens=given)[index]
        alone = [one[index : index + 1, :length] for one in (k, v)]
        near(part, tma.flash_attn_func(q[index : index + 1, :1], *alone)[0], 1e-3)
