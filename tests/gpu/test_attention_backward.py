"""The attention backward on the chip: random problems, torch as a reference, graphs, and bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from parity import random_attention
from parity.attention_oracle import Mask
from parity.backends import Cuda
from parity.test_attention_backward import check, check_packed

from tmaasync import ops
from tmaasync.ops._flash.backward import BackwardConfig
from tmaasync.ops._operation import tile_configs

torch = pytest.importorskip("torch")

PROBLEMS = 160
REPETITIONS = 1000
CONFIGS = [
    BackwardConfig(128, 64, 2),
    BackwardConfig(128, 64, 2, starts_last=True, heads_at_once=8),
    BackwardConfig(128, 64, 2, starts_last=True, alternates=True),
    BackwardConfig(128, 80),
    BackwardConfig(128, 80, tiles_descend=True),
    BackwardConfig(128, 80, starts_last=True, alternates=True, heads_at_once=2),
    BackwardConfig(64, 128, 2),
    BackwardConfig(64, 128, 2, starts_last=True, alternates=True, heads_at_once=8),
    BackwardConfig(64, 64, 2),
    BackwardConfig(64, 64, 3),
]


def draw(*shape: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def drawn(number: int) -> random_attention.Problem:
    problem = random_attention.draw(number, small=False)
    return replace(problem, head_dim=min(problem.head_dim, 128))


@pytest.mark.parametrize("number", range(4000, 4000 + PROBLEMS))
def test_random_packed_sequences_of_all_kinds(number: int) -> None:
    check_packed(Cuda(), drawn(number), deterministic=number % 4 == 0)


@pytest.mark.parametrize("number", range(5000, 5000 + PROBLEMS))
def test_random_padded_arrays_of_all_kinds(number: int) -> None:
    problem = drawn(number)
    queries, keys = max(problem.queries[0], 1), problem.keys[0]
    q, k, v = (
        problem.packed(2 * rows, heads, seed).reshape(2, rows, heads, problem.head_dim)
        for seed, (rows, heads) in enumerate(
            ((queries, problem.heads), (keys, problem.kv_heads), (keys, problem.kv_heads))
        )
    )

    check(Cuda(), q, k, v, problem.mask, softcap=problem.softcap, deterministic=number % 4 == 0)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("number", range(6000, 6004))
def test_every_tile_config(config: BackwardConfig, number: int) -> None:
    problem = replace(drawn(number), head_dim=config.head_dim)
    if config.tiles_descend and 128 % config.block_m:  # refused by the kernel with a right limit
        problem = replace(problem, mask=Mask())

    with tile_configs(lambda _: config):
        check_packed(Cuda(), problem)


# --- torch ------------------------------------------------------------------------------------


def sdpa_gradients(dout: Any, q: Any, k: Any, v: Any, *, causal: bool) -> tuple[Any, ...]:
    leaves = [one.detach().transpose(1, 2).requires_grad_() for one in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(*leaves, is_causal=causal, enable_gqa=True)
    found = torch.autograd.grad(out, leaves, dout.transpose(1, 2))
    return tuple(one.transpose(1, 2) for one in found)


def saved(q: Any, k: Any, v: Any, *, causal: bool) -> tuple[Any, Any]:
    out, lse = ops.attention(q, k, v, causal=causal, return_lse=True)
    return out, lse


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)], ids=str)
def test_errors_are_at_most_twice_the_errors_of_torch(
    head_dim: int, causal: bool, heads: tuple[int, int]
) -> None:
    q, dout = (draw(2, 2048, heads[0], head_dim, seed=i) for i in range(2))
    k, v = (draw(2, 2048, heads[1], head_dim, seed=i) for i in (2, 3))

    ours = ops.attention_backward(dout, q, k, v, *saved(q, k, v, causal=causal), causal=causal)

    theirs = sdpa_gradients(dout, q, k, v, causal=causal)
    exact = sdpa_gradients(*(one.double() for one in (dout, q, k, v)), causal=causal)
    for own, other, wanted in zip(ours, theirs, exact, strict=True):
        assert (own - wanted).norm() <= 2 * (other - wanted).norm()


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_a_deterministic_backward_has_the_same_bits_every_time(
    head_dim: int, causal: bool, kv_heads: int
) -> None:
    q, dout = (draw(1, 1500, 6, head_dim, seed=i) for i in range(2))
    k, v = (draw(1, 1500, kv_heads, head_dim, seed=i) for i in (2, 3))
    given = (dout, q, k, v, *saved(q, k, v, causal=causal))
    first = ops.attention_backward(*given, causal=causal, deterministic=True)
    differences = torch.zeros((), device="cuda", dtype=torch.int64)

    for _ in range(REPETITIONS):
        again = ops.attention_backward(*given, causal=causal, deterministic=True)
        for one, other in zip(first, again, strict=True):
            differences += (one.view(torch.int16) != other.view(torch.int16)).sum()

    assert int(differences) == 0


def test_a_graph_replays_forward_and_backward_on_new_contents() -> None:
    q, k, v, dout = (draw(2, 700, 4, 128, seed=i) for i in range(4))
    outputs = [torch.empty_like(one) for one in (q, k, v)]

    def layer() -> None:
        out, lse = ops.attention(q, k, v, causal=True, return_lse=True)
        dq, dk, dv = outputs
        ops.attention_backward(dout, q, k, v, out, lse, causal=True, dq=dq, dk=dk, dv=dv)

    for _ in range(2):
        layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer()
    for seed in (10, 20):
        for i, one in enumerate((q, k, v, dout)):
            one.copy_(draw(*one.shape, seed=seed + i))
        for one in outputs:
            one.fill_(torch.nan)
        graph.replay()
        exact = sdpa_gradients(*(one.double() for one in (dout, q, k, v)), causal=True)
        for own, wanted in zip(outputs, exact, strict=True):
            assert (own - wanted).norm() < 8e-3 * wanted.norm()
