"""How products with block scales are cut."""

from __future__ import annotations

import pytest

from tmaasync.ops.scaled_gemm.blocking import choose_scaled_blocking

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


@pytest.mark.parametrize(
    ("m", "n", "shape"),
    [(16, 7168, (64, 64)), (64, 4096, (64, 64)), (128, 4096, (64, 64)), (128, 7168, (64, 128))],
)
def test_few_rows_fill_one_round_where_they_can(m: int, n: int, shape: tuple[int, int]) -> None:
    one = choose_scaled_blocking(m, n, MULTIPROCESSORS, column_scales=False)

    assert (one.block_m, one.block_n, one.cluster) == (*shape, 1)


def test_many_rows_get_the_widest_block_in_pairs() -> None:
    one = choose_scaled_blocking(4096, 7168, MULTIPROCESSORS, column_scales=False)

    assert (one.block_m, one.block_n, one.cluster) == (128, 256, 2)
    assert one.stages == 4
