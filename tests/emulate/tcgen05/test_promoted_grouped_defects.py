"""The grouped FP8 GEMM with float32 scales: right in every order, and its defects are reported."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, before, defects

from tmaasync.ragged import create_ragged_tensor_map
from tmaasync.tile import create_tma_tile

SOURCE = shipped_text("promoted_grouped_gemm_tensor_memory.cu")
LOAD_A = "a_scales.async_copy(of_block->a, of_block.full(), {first_row, block});"
PROMOTE = "for (const auto& stage : scales.consume(work.range(tile).count)) {"
DEFECTS = defects(
    "promoted_grouped_gemm_tensor_memory",
    (
        "the scales of A are loaded from the tile's first row on",
        Edit(LOAD_A, LOAD_A.replace("first_row", "at.m")),
        FAULT,
        r"(?s)innermost coordinate.*multiple of 16 bytes",
    ),
    (
        "a CTA without rows loads no scales",
        before(LOAD_A, "if (tile.m < tile.rows.length)"),
        DEADLOCK,
        r"scales\.full",
    ),
    (
        "a CTA without rows promotes nothing",
        before(PROMOTE, "if (tile.m < tile.rows.length)"),
        DEADLOCK,
        r"accumulators\.empty|scales\.empty",
    ),
    (
        "the scales of A are read past the last one",
        Edit(
            "thread_in_warpgroup(); const int first", "8 + thread_in_warpgroup(); const int first"
        ),
        FAULT + RACE,
        r"scales",
    ),
    (
        "the tiles of a group have fewer blocks to promote",
        Edit(PROMOTE, PROMOTE.replace(".count", ".count - 1")),
        DEADLOCK,
        r"accumulators\.empty|scales\.empty",
    ),
)
ENDS = [41, 41, 82, 203, 712, 901]  # groups of fewer rows than a tile, of none, and of two pairs
ROWS, N, K = 1024, 128, 768  # six blocks: more than sets and stages
GEMM = PlantedGemm(
    SOURCE, DEFECTS, {"B_SCALE_COLUMNS": 128, "B_SCALES_ARE_K_MAJOR": True}, threads=384
)


@pytest.fixture(scope="module")
def one() -> Problem:
    """Small integers, and scales that are powers of two: every order of summing is exact."""
    rng, count, blocks = np.random.default_rng(0), len(ENDS), K // 128
    a = rng.integers(-4, 5, (ROWS, K)).astype(ml_dtypes.float8_e4m3fn)
    b = rng.integers(-4, 5, (count, N, K)).astype(ml_dtypes.float8_e4m3fn)
    of_a = 2.0 ** rng.integers(-2, 3, (blocks, ROWS))
    of_b = 2.0 ** rng.integers(-2, 3, (count, N // 128, blocks))
    out, exact = np.zeros((ROWS, N), np.float32), np.full((ROWS, N), np.nan)
    left = a.astype(np.float64) * np.repeat(of_a.T, 128, 1)
    right = b.astype(np.float64) * np.repeat(np.repeat(of_b, 128, 1), 128, 2)
    for start, end, matrix in zip([0, *ENDS], ENDS, right, strict=False):
        exact[start:end] = left[start:end] @ matrix.T
    padded = np.pad(of_b, ((0, 0), (0, 0), (0, -blocks % 4)))
    tiles = {
        "ATile": create_tma_tile(a, (128, 128), swizzle="128B"),
        "BTile": create_tma_tile(b, (1, 64, 128), swizzle="128B"),
        "AScaleTile": create_tma_tile(of_a.astype(np.float32), (1, 132)),
        "BScaleTile": create_tma_tile(padded.astype(np.float32), (1, 1, 4)),
        "CTile": create_ragged_tensor_map(out, (128, 32), swizzle="128B"),
    }
    groups = (np.array(ENDS, np.int32), count, ROWS)
    return Problem((*tiles.values(), *groups, N, K, np.zeros(1, np.int32)), tiles, out, exact)


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
