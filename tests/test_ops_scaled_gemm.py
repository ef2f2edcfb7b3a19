"""How products with block scales are cut."""

from __future__ import annotations

import pytest

from tmaasync.ops.scaled_gemm.blocking import choose_scaled_blocking, clusters_at_once

MULTIPROCESSORS = 132


@pytest.mark.parametrize("column_scales", [False, True])
@pytest.mark.parametrize("n", [1, 100, 4096, 7168, 24576])
@pytest.mark.parametrize("m", [1, 64, 65, 128, 129, 1000, 4096])
def test_every_choice_has_stages_and_whole_slices(m: int, n: int, column_scales: bool) -> None:
    one = choose_scaled_blocking(m, n, MULTIPROCESSORS, column_scales=column_scales)

    assert one.stages >= 3
    assert one.column_scales == column_scales
    assert one.block_n % 128 == 0 or 128 % one.block_n == 0
    assert one.clusters(m, n) * one.block_m * one.block_n * one.cluster >= m * n


@pytest.mark.parametrize("m", [1, 64, 65, 128])
def test_few_rows_are_those_of_one_block(m: int) -> None:
    one = choose_scaled_blocking(m, 7168, MULTIPROCESSORS, column_scales=False)

    assert one.shares_a
    assert one.block_m == (64 if m <= 64 else 128)


def test_many_rows_get_the_widest_block_in_pairs() -> None:
    one = choose_scaled_blocking(4096, 7168, MULTIPROCESSORS, column_scales=False)

    assert (one.block_m, one.block_n, one.cluster, one.shares_a) == (128, 256, 2, False)
    assert one.stages == 4


@pytest.mark.parametrize(("cluster", "at_once"), [(1, 132), (2, 66), (4, 32)])
def test_clusters_of_four_lie_within_sixteen_multiprocessors(cluster: int, at_once: int) -> None:
    assert clusters_at_once(MULTIPROCESSORS, cluster) == at_once
