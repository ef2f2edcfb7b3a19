"""When K of a product is split, and what its thread blocks then store."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import _arrays
from tmaasync.ops.gemm import Blocking
from tmaasync.ops.gemm.choice import default_blocking
from tmaasync.ops.gemm.extras import PLAIN, ExtraForm, Extras, ExtraViews
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.plan import Plan, new_plan
from tmaasync.ops.gemm.problem import Problem
from tmaasync.ops.gemm.split_k import SPLITS, ranked_splits

MULTIPROCESSORS = 132


def product(m: int, n: int, k: int, operands: str = "bfloat16", *, batches: int = 1) -> Problem:
    """As the kernel sees it: few columns are those of the transposes' product."""
    return Problem(m, n, k, batches, operands, "bfloat16", "nt", n <= 64, True)


@pytest.mark.parametrize(
    "problem",
    [
        product(512, 512, 16384),
        product(256, 256, 65536),
        product(1024, 64, 16384),
        product(1024, 16, 8192, "float8_e4m3fn/float8_e5m2"),
        product(256, 128, 8192, batches=4),
    ],
    ids=str,
)
def test_few_blocks_of_a_long_k_are_split_into_parts_that_run_at_once(problem: Problem) -> None:
    chosen = default_blocking(problem, MULTIPROCESSORS)

    clusters = problem.batches * chosen.clusters(problem.m, problem.n)
    assert chosen.split > 1
    assert clusters <= chosen.clusters_at_once(MULTIPROCESSORS)
    assert clusters * chosen.split <= MULTIPROCESSORS


@pytest.mark.parametrize(
    "problem",
    [
        product(4096, 4096, 4096),
        product(1024, 1024, 2048),  # one round that fills the chip
        product(128, 128, 256),
        product(4096, 64, 4096),  # bound by memory
        product(512, 512, 16384, batches=64),
    ],
    ids=str,
)
def test_other_products_are_not(problem: Problem) -> None:
    assert default_blocking(problem, MULTIPROCESSORS).split == 1


def test_no_part_is_without_work_or_sends_more_than_the_ring_holds() -> None:
    problem = product(300, 260, 4096)

    parts = ranked_splits(problem, MULTIPROCESSORS)

    assert {part.split for part in parts} == {*SPLITS}
    for part in parts:
        assert part.split * 256 <= problem.k
        sent = (part.split - 1) * part.block_m * part.stored_columns * 4
        assert sent <= part.stages * part.stage_bytes


def plan_of(extras: Extras = PLAIN) -> Plan:
    shapes = (256, 8192), (8192, 256), (256, 256)
    left, right, out = (Matrix.of(_arrays.view(np.zeros(shape, np.float16))) for shape in shapes)
    return new_plan(left, right, out, extras=ExtraForm.of(extras, ExtraViews.of(extras)))


def test_an_addend_which_needs_the_ring_keeps_k_in_one_piece() -> None:
    relu = Extras.of(1.0, None, 1.0, None, "relu", None, None)
    addend = Extras.of(1.0, np.zeros((256, 256), np.float16), 1.0, None, None, None, None)

    splits = [plan_of(extras).blocking_on(None, 132).split for extras in (PLAIN, relu, addend)]

    assert splits[0] == splits[1] > 1
    assert splits[2] == 1


@pytest.mark.parametrize(
    ("blocking", "columns"),
    [
        (Blocking(2, 256), 256),
        (Blocking(2, 256, split=4), 64),
        (Blocking(2, 128, split=3), 64),  # the third stores nothing
        (Blocking(1, 64, split=8), 16),
        (Blocking(1, 8, split=8, by_columns=True), 8),
        (Blocking(2, 64, split=5, by_columns=True), 16),
    ],
    ids=str,
)
def test_thread_blocks_store_shares_of_the_columns_where_these_are_wide_enough(
    blocking: Blocking, columns: int
) -> None:
    assert blocking.stored_columns == columns
