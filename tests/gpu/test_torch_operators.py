"""Operators of tmaasync.torch on the chip: values, checks of torch, CUDA graphs, training."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch_cases import (  # noqa: E402
    CASES,
    FORMS,
    WITH_GRADIENT,
    Calls,
    as_tuple,
    call_of,
    draw,
    error,
    in_float64,
    multiply_groups,
)
from torch_wrong_calls import outcome, outcome_without_memory  # noqa: E402

operators: Any = importlib.import_module("tmaasync.torch")

pytestmark = [
    pytest.mark.hopper,
    pytest.mark.filterwarnings("ignore"),  # of the code that torch.compile imports
]
ON_HOPPER = sorted(name for name, case in CASES.items() if case.chip == "sm_90a")
SDPA = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _on_the_gpu() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.device("cuda"):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("rows", [9, 200])
@pytest.mark.parametrize("name", ON_HOPPER)
def test_values_agree_with_float64(name: str, rows: int) -> None:
    case = CASES[name]
    given = case.given(rows if "ragged" not in name and "varlen" not in name else 9)

    found = as_tuple(case.call(*given, **case.options))

    with torch.device("cpu"):
        wanted = as_tuple(case.reference(*(one.cpu() for one in in_float64(given))))
    assert all(one.is_contiguous() for one in found)
    assert max(error(*pair) for pair in zip(found, wanted, strict=True)) < 2e-3


def like(found: Any, wanted: Any) -> None:
    """Compare results of the same kernels; the order in which dq is added up differs."""
    for one, other in zip(as_tuple(found), as_tuple(wanted), strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
        assert one.device == other.device
        assert error(one, other) < 1e-3


@pytest.mark.parametrize("name", ON_HOPPER)
def test_a_cuda_graph_of_compiled_code_gives_the_same(name: str) -> None:
    case = CASES[name]
    counters = torch._dynamo.utils.counters
    counters.clear()

    def call(*given: Any) -> Any:
        return tuple(one * 2 for one in as_tuple(case.call(*given, **case.options)))

    compiled = torch.compile(call, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for _ in range(5):
            given = case.given(16)
            torch.compiler.cudagraph_mark_step_begin()
            found = tuple(one.clone() for one in compiled(*given))
            like(found, call(*given))
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_cuda_graphs_of_forward_and_backward_give_the_same_gradients(name: str) -> None:
    case = CASES[name]
    counters = torch._dynamo.utils.counters
    counters.clear()

    def call(*given: Any) -> Any:
        return as_tuple(case.call(*given, **case.options))[0].float().square().sum()

    compiled = torch.compile(call, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        given = case.given(16)
        needing = [one.requires_grad_() for one in given if one.dtype == torch.float16]
        torch.compiler.cudagraph_mark_step_begin()
        found = torch.autograd.grad(compiled(*given), needing)
        like(found, torch.autograd.grad(call(*given), needing))
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize(("name", "is_out"), [form for form in FORMS if form[0] in ON_HOPPER])
def test_tensors_of_two_devices_are_refused(name: str, is_out: bool) -> None:
    case = CASES[name]
    function, args, kwargs = call_of(case, case.given(8), is_out=is_out)
    names = [argument.name for argument in function._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    # Cumulative lengths may be in host memory.
    moved = [
        one for one in given if torch.is_tensor(given[one]) and given[one].dtype != torch.int32
    ]
    for one in moved if len(moved) > 1 else []:
        called = (function, (), {**given, one: given[one].cpu()})
        real = outcome(called)
        assert real[0] == "ArgumentError", (one, real)
        assert re.search("cuda:0|host memory", real[1]), (one, real)
        assert outcome_without_memory(called, FakeTensorMode()) == real, one


def test_sizes_that_change_do_not_compile_again() -> None:
    counter = CompileCounterWithBackend("inductor")
    weight = draw(512, 256, dtype=torch.bfloat16)

    def call(x: Any) -> Any:
        return operators.matmul(x, weight.T, activation="silu") + 1

    compiled = torch.compile(call, backend=counter, fullgraph=True)
    for rows in (64, 200, 333, 1024, 7):
        x = draw(rows, 256, dtype=torch.bfloat16)
        assert error(compiled(x), call(x)) < 1e-2
    assert counter.frame_count <= 2


class Functions(NamedTuple):
    """What a transformer block computes with: our operators, or torch's functions."""

    multiply: Callable[..., Any]
    multiply_groups: Callable[..., Any]
    attend: Callable[..., Any]


def torchs_matmul(a: Any, b: Any, bias: Any = None, activation: str | None = None) -> Any:
    out = torch.matmul(a, b)
    out = out if bias is None else out + bias
    return out if activation is None else torch.nn.functional.gelu(out)


OURS = Functions(operators.matmul, operators.grouped_matmul, operators.scaled_dot_product_attention)
TORCHS = Functions(torchs_matmul, multiply_groups, SDPA)


class Block(torch.nn.Module):  # type: ignore[misc]
    """A transformer block of matmuls, causal attention, and four experts (a grouped matmul)."""

    def __init__(self, functions: Functions, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.functions, self.heads = functions, heads
        generator = torch.Generator("cuda").manual_seed(3)
        shapes: dict[str, tuple[int, ...]] = {"qkv": (3 * width, width), "o": (width, width)}
        shapes |= {"up": (4 * width, width), "down": (4, 4 * width, width)}
        for name, shape in shapes.items():
            values = torch.randn(shape, generator=generator) / width**0.5
            self.register_parameter(name, torch.nn.Parameter(values.bfloat16()))
        self.bias = torch.nn.Parameter(torch.zeros(4 * width, dtype=torch.bfloat16))

    def forward(self, x: Any, offsets: Any) -> Any:
        multiply, multiply_groups, attend = self.functions
        batch, positions, width = x.shape
        normed = torch.nn.functional.layer_norm(x, (width,))
        qkv = multiply(normed, self.qkv.T).view(batch, positions, 3, self.heads, -1)
        attended = attend(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + multiply(attended.transpose(1, 2).reshape(x.shape), self.o.T)
        normed = torch.nn.functional.layer_norm(x, (width,))
        hidden = multiply(normed, self.up.T, bias=self.bias, activation="gelu")
        mixed = multiply_groups(hidden.flatten(0, 1), self.down * 0.5, offsets)
        return x + mixed.view(x.shape)


def losses_of(block: Any) -> np.ndarray[Any, Any]:
    optimizer = torch.optim.SGD(block.parameters(), lr=0.2)
    generator = torch.Generator("cuda").manual_seed(4)
    x = torch.randn(4, 64, 256, generator=generator).bfloat16()
    target = torch.randn(4, 64, 256, generator=generator).bfloat16()
    offsets = torch.tensor([50, 50, 180, 256], dtype=torch.int32)  # rows of each expert end there
    losses = []
    for _ in range(200):
        loss = (block(x, offsets) - target).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return np.array(torch.stack(losses).tolist())


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_transformer_block_trains_as_with_torchs_functions(
    is_compiled: bool, record_property: Callable[[str, object], None]
) -> None:
    """Matmul, grouped matmul and attention are ours, with their gradients."""
    block = Block(OURS)
    with Calls() as calls:
        block(*(torch.zeros(1, 64, 256, dtype=torch.bfloat16), torch.tensor([16, 32, 48, 64])))
    used = {function.name().removesuffix(".plain") for function, _, _ in calls.made}
    assert used == {
        "tmaasync::matmul", "tmaasync::grouped_matmul", "tmaasync::attention_with_lse"
    }  # fmt: skip

    ours = losses_of(torch.compile(block, fullgraph=True) if is_compiled else block)

    theirs = losses_of(Block(TORCHS))
    difference = np.abs(ours / theirs - 1).max()
    record_property("losses", f"{theirs[0]:.4f} to {theirs[-1]:.4f}, off by {difference:.3%}")
    assert theirs[-1] < 0.9 * theirs[0]
    assert difference < 2e-2


@pytest.mark.parametrize("seed", range(8))
def test_sdpa_over_random_arguments_agrees_with_torch_in_float64(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for case in range(25):
        batch, kv_heads = (int(x) for x in rng.integers(1, 4, 2))
        queries, keys = (int(x) for x in rng.integers(1, 400, 2))
        heads, columns = kv_heads * int(rng.integers(1, 4)), int(rng.choice([20, 64, 128]))
        dtype = [torch.bfloat16, torch.float16][case % 2]
        q = draw(batch, heads, queries, columns, dtype=dtype)
        k, v = (draw(batch, kv_heads, keys, columns, dtype=dtype) for _ in range(2))
        options = {
            "is_causal": bool(rng.integers(2)),
            "scale": None if rng.integers(2) else float(rng.uniform(0.05, 0.5)),
            "enable_gqa": True,
        }

        found = operators.scaled_dot_product_attention(q, k, v, **options)

        wanted = SDPA(q.double(), k.double(), v.double(), **options)
        assert error(found, wanted) < (1e-2 if dtype is torch.bfloat16 else 2e-3), (case, options)


def test_flash_attn_with_kvcache_writes_and_reads_blocks_on_the_gpu() -> None:
    lengths = torch.tensor([5, 700, 300], dtype=torch.int32)
    table = torch.randperm(3 * 8).int().view(3, 8)
    caches = [draw(24, 128, 2, 64) for _ in range(2)]
    q, added = draw(3, 2, 8, 64), [draw(3, 2, 2, 64) for _ in range(2)]

    out = operators.flash_attn_with_kvcache(
        *(q, *caches, *added), cache_seqlens=lengths, block_table=table, causal=True
    )

    for i in range(3):
        total = int(lengths[i]) + 2
        k, v = (one[table[i].long()].reshape(-1, 2, 64)[:total] for one in caches)
        assert torch.equal(k[-2:], added[0][i])
        seen = torch.ones(2, total, dtype=torch.bool).tril(total - 2)
        heads_first = (one.double().transpose(0, 1)[None] for one in (q[i], k, v))
        wanted = SDPA(*heads_first, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1)
        assert error(out[i], wanted) < 2e-3
