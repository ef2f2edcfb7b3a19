"""ops.varlen_attention with a paged KV cache against float64, on either back end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity.attention_oracle import Array, Mask, assert_close, attend
from parity.backends import Emulate
from parity.paged_keys import KINDS, PagedKeys, draw_paged, paged_from
from parity.random_attention import Problem
from parity.test_attention import few_builds, in_splits, poisoned
from parity.tile_configs import tile_configs

from tmaasync import ArgumentError, ops
from tmaasync._arrays import view
from tmaasync.emulate import scheduled
from tmaasync.ops._flash.config import Batch
from tmaasync.ops._flash.operands import Operands, Scores
from tmaasync.ops._flash.pages import PageTable
from tmaasync.ops._layouts import Layout
from tmaasync.ops._sequence_lengths import CumulativeLengths
from tmaasync.ops._varlen_attention import VarlenAttention


@pytest.fixture(autouse=True)
def one_build() -> Iterator[None]:
    """One tile config; on the emulator, every launch with the search for races."""
    with few_builds(1), scheduled("adversarial", races=True):
        yield


def sums_of(problem: Problem) -> tuple[Array, Array]:
    queries, keys = (np.cumsum((0, *rows)) for rows in (problem.queries, problem.keys))
    return queries, keys


def check_pages(
    backend: Any, problem: Problem, pages: PagedKeys, given: tuple[Any, Any, Any] | None = None
) -> None:
    """One call, every sequence against the oracle; ``given`` holds the same in another layout."""
    queries, keys = sums_of(problem)
    q = problem.packed(int(queries[-1]) + 9, problem.heads, 0)
    q[queries[-1] :] = np.nan
    out = backend.array(poisoned(q))
    k, v, table = given or map(backend.array, (pages.k, pages.v, pages.table))

    _, lse = ops.varlen_attention(
        backend.array(q), k, v, queries, keys, page_table=table, return_lse=True, out=out,
        **problem.options,
    )  # fmt: skip

    got, got_lse = backend.host(out), backend.host(lse)
    for index, length in enumerate(problem.keys):
        rows = slice(*queries[index : index + 2])
        one_k, one_v = pages.of(index, length)
        expected = attend(q[rows], one_k, one_v, problem.mask, softcap=problem.softcap)
        assert_close(got[rows], got_lse[:, rows], expected, one_v)
    assert np.isnan(got[queries[-1] :].astype(np.float32)).all()


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 3, 6)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("size", KINDS)
def test_random_pages(backend: Any, size: int, number: int) -> None:
    problem = draw_paged(number, size, small=True)

    check_pages(backend, problem, paged_from(problem, size))


@pytest.mark.slow
@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("size", [16, 64])
def test_keys_in_random_pages_are_split(backend: Any, size: int, number: int) -> None:
    problem = draw_paged(number, size, small=True)

    with tile_configs(in_splits(3, consumers=1)):
        check_pages(backend, problem, paged_from(problem, size))


PLAIN = replace(
    draw_paged(0, 64, small=True), queries=(3, 67, 0, 5), keys=(64, 131, 7, 0), heads=4, kv_heads=2
)
DECODE = replace(PLAIN, queries=(1, 4, 0, 2, 1), keys=(643, 131, 7, 0, 64))


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 3)
@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("splits", [2, 7])
def test_decode_makes_no_work_list(backend: Any, size: int, splits: int) -> None:
    mask, softcap = KINDS[size]
    problem = replace(DECODE, mask=mask, softcap=softcap)

    with tile_configs(in_splits(splits, consumers=1)):
        check_pages(backend, problem, paged_from(problem, size))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["k next to v", "heads before rows", "a slice of a table"])
def test_layouts(backend: Any, layout: str) -> None:
    pages = paged_from(PLAIN, 64)
    k, v, table = pages.k, pages.v, pages.table
    if layout == "k next to v":
        both = backend.array(np.stack([k, v], 1))
        given = both[:, 0], both[:, 1], backend.array(table)
    elif layout == "heads before rows":
        k, v = (backend.array(array.swapaxes(1, 2)).swapaxes(1, 2) for array in (k, v))
        given = k, v, backend.array(table)
    else:
        wide = backend.array(np.pad(table, ((1, 1), (2, 3)), constant_values=-1))
        given = backend.array(k), backend.array(v), wide[1:-1, 2:-3]

    check_pages(backend, PLAIN, pages, given)


def test_one_page(backend: Any) -> None:
    problem = replace(PLAIN, queries=(2, 3), keys=(64, 5))
    pages = paged_from(problem, 64)
    one = PagedKeys(pages.k[:1], pages.v[:1], np.zeros((2, 1), np.int32))
    one.k[...], one.v[...] = (np.nan_to_num(array) for array in (one.k, one.v))

    check_pages(backend, problem, one)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("problem", "wrong"), [(PLAIN, -1), (DECODE, None)], ids=["listed", "decode"]
)
def test_wrong_pages_are_reported(problem: Problem, wrong: int | None) -> None:
    with tile_configs(in_splits(3, consumers=1)) if problem is DECODE else nullcontext():
        check_wrong_pages(problem, wrong)


def check_wrong_pages(problem: Problem, wrong: int | None) -> None:
    """A sequence with a wrong page, by default the number of pages, is reported and left out."""
    pages = paged_from(problem, 64)
    table = pages.table.copy()
    table[1, 2] = len(pages.k) if wrong is None else wrong
    queries, keys = sums_of(problem)
    q = problem.packed(queries[-1], problem.heads, 0)
    out = poisoned(q)
    given = (q, pages.k, pages.v, queries, keys)
    options: dict[str, Any] = {"out": out, "return_lse": True}  # as above: no kernel is built

    with pytest.raises(ArgumentError, match=r"about sequence 1: .* or has pages in page_table"):
        ops.varlen_attention(*given, page_table=table, **options)
    assert np.isnan(out[queries[1] : queries[2]]).all()
    with pytest.raises(ArgumentError, match=r"page_table\[1, 2\] is -?\d+; k has \d+ pages"):
        ops.varlen_attention(*given, page_table=table, check=True, **options)
    table[1, 2] = pages.table[1, 2]
    table[2] = -1  # of a sequence without queries
    ops.varlen_attention(*given, page_table=table, check=True, **options)
    assert not np.isnan(out).any()


def test_the_emulator_finds_no_race_in_any_order() -> None:
    mask, softcap = KINDS[16]
    problem = replace(PLAIN, mask=mask, softcap=softcap, keys=(64, 231, 7, 0))
    pages = paged_from(problem, 16)
    for seed in range(2):
        with scheduled("random", seed=seed, races=True):
            check_pages(Emulate(), problem, pages)


MOST = 2**31 - 1

# Cumulative lengths of queries and of keys; a page of sequence 3; sequences that are left out.
ON_DEVICE = [
    pytest.param([0, 1, 3, 3, 6], [0, 5, 100, 130, 300], 7, (), id="other lengths"),
    pytest.param([0, 1, 5, 6, 7], [0, 5, 100, 130, 300], 7, (1,), id="too many queries"),
    pytest.param([0, 1, 2, 3, 4], [0, 5, 200, 230, 300], 7, (1,), id="too many keys"),
    pytest.param([0, 2, 4, 6, 9], [0, 5, 100, 130, 300], 7, (3,), id="rows after the last"),
    pytest.param([-1, 1, 2, 3, 4], [0, 5, 100, 130, 300], 7, (0,), id="rows before the first"),
    pytest.param([0, 1, 2, 3, 4], [-7, 5, 100, 130, 300], 7, (0,), id="keys before the first"),
    pytest.param([0, 1, 2, 3, 4], [0, 5, 100, 130, 300], 24, (3,), id="a wrong page"),
    pytest.param([0, 1, 2, 3, 4], [0, 5, 100, 130, 300], -1, (3,), id="a page below 0"),
    pytest.param([0, 1, 2, 3, MOST], [0, 5, 100, 130, 300], 7, (3,), id="queries to 2^31"),
    pytest.param([0, 1, 2, 3, 4], [0, 5, 100, 130, MOST], 7, (3,), id="keys to 2^31"),
    pytest.param([0, 1, 2, 3, 4], [0, 5, 100, 130, -MOST], 7, (3,), id="keys to -2^31"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("queries", "keys", "page", "wrong"), ON_DEVICE)
def test_decode_leaves_out_wrong_sequences(
    queries: list[int], keys: list[int], page: int, wrong: tuple[int, ...]
) -> None:
    """What the combine kernel finds: lengths in host memory are checked before."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((8, 4, 64)).astype(np.float16)
    k, v = (rng.standard_normal((24, 64, 2, 64)).astype(np.float16) for _ in range(2))
    table = rng.integers(0, 24, (4, 3)).astype(np.int32)
    table[3, 1] = page
    out, lse = poisoned(q), np.full((4, 8), np.nan, np.float32)
    operands, batch = Operands(*map(view, (q, k, v))), Batch(4, 3, 3 * 64)
    of_pages = PageTable.of(table, operands, batch)
    layouts = operands.layouts, Layout.of(view(out))
    scores = Scores.of(64, False, None, None, None)
    cumulative_q, cumulative_k = (
        CumulativeLengths("cu_seqlens", np.array(sums, np.int32), 4, is_on_device=True)
        for sums in (queries, keys)
    )
    cumulative = cumulative_q, cumulative_k

    with tile_configs(in_splits(3, consumers=1)):
        operation = VarlenAttention(*layouts, batch, scores, of_pages.pages, has_lse=True)
        message = f"wrong about sequence {wrong[0]}" if wrong else ""
        with pytest.raises(ArgumentError, match=message) if wrong else nullcontext():
            operation.run(operands, view(out), view(lse), cumulative, None, of_pages.view)

    written = np.zeros(8, bool)
    for index in {0, 1, 2, 3}.difference(wrong):
        rows = slice(*queries[index : index + 2])
        written[rows] = True
        keys_of = slice(keys[index + 1] - keys[index])
        one_k, one_v = (array[table[index]].reshape(-1, 2, 64)[keys_of] for array in (k, v))
        assert_close(out[rows], lse[:, rows], attend(q[rows], one_k, one_v, Mask()), one_v)
    assert np.isnan(out[~written]).all()
    assert np.isnan(lse[:, ~written]).all()
