"""Attention on the chip: random problems, torch as a reference, streams, graphs, and many runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity import random_attention
from parity.attention_oracle import Mask
from parity.backends import Cuda
from parity.paged_keys import KINDS, draw_paged, paged_from
from parity.test_attention import check, check_packed, in_splits, normal
from parity.test_paged_attention import check_pages
from parity.tile_configs import noted

from tmaasync import ArgumentError, ops
from tmaasync.ops._operation import tile_configs

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

PROBLEMS = 320
PAGED_PROBLEMS = 60
PAIRED_PROBLEMS = 80


def draw(*shape: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def sdpa_in_double(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Head by head, since torch keeps all scores: of 8 heads and 8191 keys 13 GB."""
    shared = q.shape[2] // k.shape[2]
    return torch.cat(
        [
            sdpa(
                q[:, :, head : head + 1].double(),
                k[:, :, head // shared : head // shared + 1].double(),
                v[:, :, head // shared : head // shared + 1].double(),
                **options,
            )
            for head in range(q.shape[2])
        ],
        dim=2,
    )


def sdpa(q: Any, k: Any, v: Any, **options: Any) -> Any:
    heads_first = (array.transpose(1, 2) for array in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*heads_first, enable_gqa=True, **options).transpose(1, 2)


@pytest.mark.parametrize("number", range(1000, 1000 + PROBLEMS))
def test_random_packed_sequences_of_all_kinds(number: int) -> None:
    check_packed(Cuda(), random_attention.draw(number, small=False))


@pytest.mark.parametrize("number", range(2000, 2000 + PAGED_PROBLEMS))
def test_random_pages_of_all_kinds(number: int) -> None:
    size = list(KINDS)[number // 3 % len(KINDS)]
    problem = draw_paged(number, size, small=False)

    check_pages(Cuda(), problem, paged_from(problem, size))


@pytest.fixture
def in_pairs() -> Iterator[None]:
    """Padded attention shares the loads of keys, whatever the sizes."""
    with tile_configs(lambda config: replace(config, cluster=2)):
        yield


@pytest.mark.usefixtures("in_pairs")
@pytest.mark.parametrize("number", range(3000, 3000 + PAIRED_PROBLEMS))
def test_random_padded_arrays_of_all_kinds_in_pairs(number: int) -> None:
    problem = random_attention.draw(number, small=False)
    queries, keys = max(problem.queries[0], 1), problem.keys[0]
    q, k, v = (
        problem.packed(2 * rows, heads, seed).reshape(2, rows, heads, problem.head_dim)
        for seed, (rows, heads) in enumerate(
            ((queries, problem.heads), (keys, problem.kv_heads), (keys, problem.kv_heads))
        )
    )

    check(Cuda(), q, k, v, problem.mask, softcap=problem.softcap)


KEYS = (100, 60, 180)


def in_pages_of_64(rows: int = 100) -> tuple[tuple[Any, ...], Any]:
    """Three sequences of `rows` queries, their keys in eight pages: arguments, and the table."""
    k, v = (draw(8, 64, 2, 64, seed=i) for i in (1, 2))
    table = torch.tensor([[5, 0, 9], [7, 9, 9], [1, 0, 3]], dtype=torch.int32, device="cuda")
    queries, keys = (
        torch.tensor(sums, dtype=torch.int32, device="cuda")
        for sums in (np.arange(4) * rows, np.cumsum((0, *KEYS)))
    )
    return (draw(3 * rows, 4, 64), k, v, queries, keys, rows, max(KEYS)), table


def assert_attended(given: tuple[Any, ...], table: Any, out: Any, sequence: int) -> None:
    """A sequence against torch, which gets its pages one after the other."""
    q, k, v, *_ = given
    own = len(q) // 3
    length, rows = KEYS[sequence], slice(own * sequence, own * (sequence + 1))
    pages = table[sequence, : -(-length // 64)].long()
    ours = (array[pages].flatten(0, 1)[None, :length].double() for array in (k, v))
    wanted = sdpa(q[None, rows].double(), *ours)[0]
    assert (out[rows].double() - wanted).norm() < 6e-3 * wanted.norm()


@pytest.fixture(params=[100, 2])
def rows(request: pytest.FixtureRequest) -> Iterator[int]:
    """Queries of a sequence: with 2 keys are split, and no work list is made."""
    with tile_configs(in_splits(3, consumers=1)) if request.param == 2 else nullcontext():
        yield request.param


def test_wrong_pages_are_left_out_and_reported_by_the_next_call(rows: int) -> None:
    given, table = in_pages_of_64(rows)
    wrong = table.clone()
    wrong[0, 1] = 8
    out = torch.full_like(given[0], torch.nan)

    ops.varlen_attention(*given, page_table=wrong, out=out)
    torch.cuda.synchronize()

    assert out[:rows].isnan().all()
    for sequence in (1, 2):
        assert_attended(given, table, out, sequence)
    with pytest.raises(ArgumentError, match=r"about sequence 0: .* pages in page_table that k"):
        ops.varlen_attention(*given, page_table=table, out=out)
    with pytest.raises(ArgumentError, match=r"page_table\[0, 1\] is 8; k has 8 pages"):
        ops.varlen_attention(*given, page_table=wrong, out=out, check=True)
    ops.varlen_attention(*given, page_table=table, out=out)
    assert_attended(given, table, out, 0)


def test_a_graph_replays_pages_whose_table_changes(rows: int) -> None:
    given, table = in_pages_of_64(rows)
    out = torch.empty_like(given[0])
    ops.varlen_attention(*given, page_table=table, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.varlen_attention(*given, page_table=table, out=out)
    table.copy_((table + 3) % 8)

    graph.replay()

    for sequence in range(3):
        assert_attended(given, table, out, sequence)


@pytest.mark.parametrize("causal", [False, "top_left"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("batch", "positions", "heads", "kv_heads", "head_dim"),
    [(2, 4096, 16, 16, 128), (1, 8191, 8, 2, 64), (3, 1000, 8, 8, 256), (4, 2049, 12, 12, 96)],
)
def test_the_error_is_at_most_twice_torchs(
    batch: int, positions: int, heads: int, kv_heads: int, head_dim: int, dtype: Any, causal: Any
) -> None:
    q = draw(batch, positions, heads, head_dim, dtype=dtype)
    k, v = (draw(batch, positions, kv_heads, head_dim, dtype=dtype, seed=i) for i in (1, 2))
    wanted = sdpa_in_double(q[:1], k[:1], v[:1], is_causal=bool(causal))
    theirs = sdpa(q, k, v, is_causal=bool(causal))[:1].double()

    ours = ops.attention(q, k, v, causal=causal)[:1].double()

    assert (ours - wanted).abs().max() <= 2 * (theirs - wanted).abs().max()
    assert (ours - wanted).norm() <= 1.1 * (theirs - wanted).norm()


def test_packed_calls_like_earlier_ones_take_other_arrays_sums_and_streams() -> None:
    for turn in range(4):
        q, k, v = (draw(600, 4, 64, seed=3 * turn + i) for i in range(3))
        bounds = [0, 100 * turn + 1, 350 + turn, 600]
        sums = torch.tensor(bounds, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            out, lse = ops.varlen_attention(
                q, k, v, sums, max_seqlen_q=600, causal=True, return_lse=True
            )
            ours = ops.varlen_attention(
                q, k, v, sums, sums.clone(), 600, 600, causal=True, out=torch.empty_like(q)
            )
            torch.cuda.current_stream().synchronize()
        assert torch.equal(out, ours)
        assert lse.shape == (4, 600)
        for first, last in itertools.pairwise(bounds):
            part = (array[None, first:last].double() for array in (q, k, v))
            wanted = sdpa(*part, is_causal=True)[0]
            assert (out[first:last].double() - wanted).norm() < 6e-3 * wanted.norm()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_ten_thousand_runs_end_and_are_equal(head_dim: int) -> None:
    q, k, v = (draw(4, 700, 8, head_dim, seed=i) for i in range(3))
    first, out = ops.attention(q, k, v, causal=True), torch.empty_like(q)

    for _ in range(100):
        for _ in range(100):
            ops.attention(q, k, v, causal=True, out=out)
        assert torch.equal(out.view(torch.int16), first.view(torch.int16))


def assert_alike_in_every_run_and_replay(attend: Callable[[Any], Any], q: Any) -> None:
    """The same bits, with an output of one's own and a new one, for None; also of other queries."""
    first, out = attend(None), torch.empty_like(q)

    for _ in range(1000):
        attend(out)
    assert torch.equal(out.view(torch.int16), first.view(torch.int16))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(out)
    q.copy_(draw(*q.shape, seed=5))
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out.view(torch.int16), attend(None).view(torch.int16))


# The last but one has more splits than a warp has lanes, the last a full wave before what is split.
FEW_QUERIES = [
    (1, 1, 8192, 64, 8, 128),
    (2, 5, 20000, 16, 16, 64),
    (1, 16, 4100, 8, 1, 256),
    (1, 1, 200_000, 8, 1, 64),
    (34, 1, 2048, 32, 4, 64),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", FEW_QUERIES, ids=str)
def test_few_queries_of_many_keys(shape: tuple[int, ...], causal: bool) -> None:
    batch, queries, keys, heads, kv_heads, head_dim = shape
    q = normal(batch, queries, heads, head_dim, dtype="bfloat16")
    k, v = (normal(batch, keys, kv_heads, head_dim, dtype="bfloat16", seed=i) for i in (1, 2))

    check(Cuda(), q, k, v, Mask(causal))


@pytest.mark.parametrize("shape", FEW_QUERIES, ids=str)
def test_few_queries_are_attended_alike_in_every_run_and_replay(shape: tuple[int, ...]) -> None:
    batch, queries, keys, heads, kv_heads, head_dim = shape
    q = draw(batch, queries, heads, head_dim)
    k, v = (draw(batch, keys, kv_heads, head_dim, seed=i) for i in (1, 2))

    assert_alike_in_every_run_and_replay(lambda out: ops.attention(q, k, v, out=out), q)


FEW_PACKED = random_attention.Problem(
    *(0, (1, 1, 1, 3, 2), (9000, 1, 0, 20000, 700), 32, 4, 128, "bfloat16", Mask(True), None)
)


@pytest.mark.parametrize("page_size", [None, 16, 128])
def test_few_packed_queries_of_many_keys(page_size: int | None) -> None:
    with noted() as configs:
        if page_size is None:
            check_packed(Cuda(), FEW_PACKED)
        else:
            check_pages(Cuda(), FEW_PACKED, paged_from(FEW_PACKED, page_size))

    assert configs
    assert min(config.kv_splits for config in configs) > 1


def test_few_packed_queries_are_attended_alike_in_every_run_and_replay() -> None:
    lengths = (FEW_PACKED.queries, FEW_PACKED.keys)
    sums = [torch.tensor([0, *itertools.accumulate(rows)], device="cuda") for rows in lengths]
    q, k, v = (
        draw(sum(rows), heads, 128, seed=seed)
        for seed, (rows, heads) in enumerate(((lengths[0], 32), (lengths[1], 4), (lengths[1], 4)))
    )
    given = (q, k, v, *(one.int() for one in sums), 3, 20000)

    assert_alike_in_every_run_and_replay(lambda out: ops.varlen_attention(*given, out=out), q)


def test_partial_outputs_are_not_given_away_while_a_stream_of_the_callers_uses_it() -> None:
    batch, queries, keys, heads, kv_heads, head_dim = FEW_QUERIES[0]
    q = draw(batch, queries, heads, head_dim)
    k, v = (draw(batch, keys, kv_heads, head_dim, seed=i) for i in (1, 2))
    wanted, stream = ops.attention(q, k, v), torch.cuda.Stream()
    outs = [torch.full_like(q, torch.nan) for _ in range(50)]
    torch.cuda.synchronize()

    for out in outs:
        ops.attention(q, k, v, out=out, stream=stream)
        for megabytes in (1, 2, 4, 8):
            torch.full((megabytes << 18,), torch.nan, device="cuda")
    torch.cuda.synchronize()

    for out in outs:
        assert torch.equal(out.view(torch.int16), wanted.view(torch.int16))
