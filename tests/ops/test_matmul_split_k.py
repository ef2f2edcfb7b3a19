"""When K of a GEMM is split, and what its CTAs then store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import _arrays
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.cost_model import default_config, ranked_over_grid, ranked_split_k
from tmaasync.ops._gemm.epilogue import NO_EPILOGUE, Activation, EpilogueArguments
from tmaasync.ops._gemm.legal_tiles import SPLITS, Problem, is_legal
from tmaasync.ops._layouts import Layout
from tmaasync.ops._matmul import Matmul
from tmaasync.ops._operation import tile_configs

H200 = Occupancy.estimated(132)


def problem_of(m: int, n: int, k: int, operands: str = "bfloat16", *, batches: int = 1) -> Problem:
    """As the kernel computes it: up to 64 columns swap AB and become rows."""
    return Problem(m, n, k, batches, operands, "bfloat16", "nt", n <= 64, True)


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(512, 512, 16384),
        problem_of(256, 256, 65536),
        problem_of(1024, 64, 16384),
        problem_of(1024, 16, 8192, "float8_e4m3fn/float8_e5m2"),
        problem_of(256, 128, 8192, batches=4),
    ],
    ids=str,
)
def test_few_blocks_of_a_long_k_are_split_into_parts_that_run_at_once(problem: Problem) -> None:
    chosen = default_config(problem, H200)

    clusters = problem.batches * chosen.clusters(problem.m, problem.n)
    assert chosen.split_k > 1
    assert clusters <= H200.max_active_clusters(chosen.cluster_size)
    assert clusters * chosen.split_k <= H200.sms


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(4096, 4096, 4096),
        problem_of(1024, 1024, 2048),  # one round that fills the chip
        problem_of(128, 128, 256),
        problem_of(4096, 64, 4096),  # bound by memory
        problem_of(512, 512, 16384, batches=64),
    ],
    ids=str,
)
def test_other_matmuls_are_not(problem: Problem) -> None:
    assert default_config(problem, H200).split_k == 1


def test_no_part_is_without_work_or_sends_more_than_the_ring_holds() -> None:
    problem = problem_of(300, 260, 4096)

    parts = ranked_split_k(problem, H200)

    assert {part.split_k for part in parts} == {*SPLITS}
    for part in parts:
        assert part.split_k * 256 <= problem.k
        sent = (part.split_k - 1) * part.block_m * part.stored_columns * 4
        assert sent <= part.stages * part.stage_bytes


def config_of(epilogue: EpilogueArguments[Layout]) -> TileConfig:
    shapes = (256, 8192), (8192, 256), (256, 256)
    layouts = [Layout.of(_arrays.view(np.zeros(shape, np.float16))) for shape in shapes]
    return Matmul(*layouts, epilogue=epilogue).config_on(None, H200)


def test_k_is_split_over_a_cluster_for_an_epilogue_and_not_at_all_for_an_addend() -> None:
    relu = NO_EPILOGUE._replace(activation=Activation.RELU)
    c = Layout.of(_arrays.view(np.zeros((256, 256), np.float16)))

    plain, activated, added = map(config_of, (NO_EPILOGUE, relu, NO_EPILOGUE._replace(c=c)))

    assert plain.over_grid  # the combine kernel has no epilogue
    assert plain.split_k > 1
    assert activated.split_k > 1
    assert not activated.over_grid
    assert added.split_k == 1  # it needs the stages, which hold the partial accumulators


@pytest.mark.parametrize(
    ("m", "n", "k", "tile", "split_k"),
    [
        (256, 256, 65536, (64, 128), 16),
        (512, 512, 16384, (64, 128), 4),
        (1024, 1024, 8192, (64, 128), 1),
        (768, 768, 16384, (128, 192), 5),
        (512, 512, 4096, (64, 64), 2),
    ],
)
def test_few_blocks_take_the_tile_config_that_was_the_fastest_in_the_sweep(
    m: int, n: int, k: int, tile: tuple[int, int], split_k: int
) -> None:
    chosen = default_config(problem_of(m, n, k), H200)

    assert (chosen.block_m, chosen.block_n) == tile
    assert chosen.split_k == split_k
    assert chosen.over_grid == (split_k > 1)


def test_k_is_split_over_the_grid_into_one_wave_that_nearly_fills_the_chip() -> None:
    problem = problem_of(300, 260, 4096)

    over_grid = [one for one in ranked_over_grid(problem, H200) if one.over_grid]

    assert over_grid
    for one in over_grid:
        assert 96 <= one.clusters(300, 260) * one.split_k <= 132
        assert one.split_k * 256 <= problem.k
        assert is_legal(one, problem)


@pytest.mark.parametrize(
    "problem",
    [
        problem_of(256, 256, 65536, batches=2),
        problem_of(256, 64, 65536),  # swap AB
        problem_of(256, 256, 65536)._replace(on_lines=False),
    ],
    ids=str,
)
def test_what_was_not_raced_is_not_split_over_the_grid(problem: Problem) -> None:
    assert not ranked_over_grid(problem, H200)


@pytest.mark.parametrize(
    ("m", "n", "k", "wanted"),
    [
        (4096, 72, 4096, (1, 72, 1)),
        (4096, 200, 4096, (1, 200, 2)),  # 64 tiles whose multiply-adds bound them
        (4096, 160, 14336, (1, 160, 2)),
        (8192, 200, 8192, (1, 200, 1)),
        (14336, 136, 4096, (2, 136, 1)),  # two consumers: one wave, not two
    ],
)
def test_wide_tiles_after_swap_ab_are_the_fastest_raced(
    m: int, n: int, k: int, wanted: tuple[int, int, int]
) -> None:
    chosen = default_config(problem_of(m, n, k)._replace(m_major=True), H200)

    assert (chosen.consumers, chosen.block_n, chosen.split_k) == wanted
    assert chosen.m_major


@pytest.mark.parametrize(
    ("config", "columns"),
    [
        (TileConfig(2, 256), 256),
        (TileConfig(2, 256, split_k=4), 64),
        (TileConfig(2, 128, split_k=3), 64),  # the third stores nothing
        (TileConfig(1, 64, split_k=8), 16),
        (TileConfig(1, 8, split_k=8, m_major=True), 8),
        (TileConfig(2, 64, split_k=5, m_major=True), 16),
    ],
    ids=str,
)
def test_thread_blocks_store_shares_of_the_columns_where_these_are_wide_enough(
    config: TileConfig, columns: int
) -> None:
    assert config.stored_columns == columns


@pytest.mark.parametrize("is_column_major", [False, True])
def test_both_launches_over_the_grid_take_the_workspace(is_column_major: bool) -> None:
    left, right = (_arrays.view(np.zeros(shape, np.float16)) for shape in ((72, 136), (136, 80)))
    out = _arrays.view(np.zeros((80, 72) if is_column_major else (72, 80), np.float16))
    stored = Layout.of(out).transposed if is_column_major else Layout.of(out)
    operation = Matmul(Layout.of(left), Layout.of(right), stored)
    config = TileConfig(1, 64, split_k=2, over_grid=True)
    with tile_configs(lambda _: config):
        operation.run(left, right, stored.over(out), None)
    a, b, c, workspace = (index << 20 for index in range(1, 5))
    bound = operation.bind([a, b, c, workspace])

    assert bound is not None
    addresses: Any = bound[1]
    operands_at = (b, a) if is_column_major else (a, b)
    assert addresses.of_gemm() == (*operands_at, workspace)
    assert addresses.of_combine() == (workspace, c)
    assert operation.bind([a, b, a, workspace]) is None
