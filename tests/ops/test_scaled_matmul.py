"""Block-scaled GEMMs without a GPU: their tile configs, and what is launched again."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from stubs import check_binding, layouts_of

from tmaasync.ops._gemm.config import Occupancy
from tmaasync.ops._gemm.cost_model import choose_scaled_config
from tmaasync.ops._scaled_matmul import ScaledMatmul

H200 = Occupancy.estimated(132)


@pytest.mark.parametrize("column_scales", [False, True])
@pytest.mark.parametrize("n", [1, 100, 4096, 7168, 24576])
@pytest.mark.parametrize("m", [1, 64, 65, 128, 129, 1000, 4096])
def test_every_choice_has_stages_and_whole_slices(m: int, n: int, column_scales: bool) -> None:
    one = choose_scaled_config(m, n, H200, column_scales=column_scales)

    assert one.stages >= 3
    assert one.column_scales == column_scales
    assert one.block_n % 128 == 0 or 128 % one.block_n == 0
    assert one.clusters(m, n) * one.block_m * one.block_n * one.cluster >= m * n


@pytest.mark.parametrize(
    ("m", "n", "shape"),
    [(16, 7168, (64, 64)), (64, 4096, (64, 64)), (128, 4096, (64, 64)), (128, 7168, (64, 128))],
)
def test_few_rows_fill_one_round_where_they_can(m: int, n: int, shape: tuple[int, int]) -> None:
    one = choose_scaled_config(m, n, H200, column_scales=False)

    assert (one.block_m, one.block_n, one.cluster) == (*shape, 1)


def test_many_rows_get_the_widest_block_and_a_buffer_for_each_chunk() -> None:
    one = choose_scaled_config(4096, 7168, H200, column_scales=False)

    assert (one.block_m, one.block_n, one.cluster, one.group_m) == (128, 256, 1, 16)
    assert (one.stages, one.epilogue_buffers, one.store_bytes) == (3, 4, 128)


def test_an_output_over_an_operand_finds_no_launch() -> None:
    shapes = ((64, 256), (256, 128), (64, 2), (2, 1), (64, 128))
    types = (*[ml_dtypes.float8_e4m3fn] * 2, np.float32, np.float32, ml_dtypes.bfloat16)
    layouts = layouts_of(*zip(shapes, types, strict=True))

    check_binding(ScaledMatmul(*layouts, column_scales=False), 5, tuple)
