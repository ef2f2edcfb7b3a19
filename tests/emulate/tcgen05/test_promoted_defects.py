"""The FP8 GEMM with float32 scales on tensor memory: right in every order, defects are reported."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, without

from tmaasync.tile import create_tma_tile

SOURCE = shipped_text("promoted_gemm_tensor_memory.cu")
LOAD_A = "a_scales.async_copy(of_block->a, of_block.full(), {first_row, block});"
RELEASE = "if (column + kColumns == kOwnColumns) accumulators.release();"
SET_OF_STAGE = "accumulators.commit(); d = accumulators.acquire();"
DEFECTS = defects(
    "promoted_gemm_tensor_memory",
    ("no wait for the loads of partial sums", without("tmem_wait_loads();"), RACE,
     r"(?s)tcgen05\.ld may still read the columns.*tcgen05\.wait::ld"),
    ("partial sums are released before they are loaded",
     Edit(RELEASE, "if (column == 0) accumulators.release();"), RACE,
     r"(?s)tensor memory.*tcgen05\.(ld|mma)"),
    ("partial sums are never released", without(RELEASE), DEADLOCK, r"accumulators\.empty"),
    ("the stages of a tile share a set", without(SET_OF_STAGE), DEADLOCK + RACE,
     r"accumulators\.full|tensor memory"),
    ("the next set is not waited for",
     Edit(SET_OF_STAGE, "accumulators.commit();"), DEADLOCK + RACE, r"accumulators|tensor memory"),
    ("the scales of A are not loaded", without(LOAD_A), DEADLOCK, r"scales\.full\[0\]"),
    ("the scales of A count for the operands",
     Edit(LOAD_A, "a_scales.async_copy(of_block->a, stage.full(), {first_row, block});"),
     DEADLOCK + FAULT + RACE, r"(ring|scales)\.full"),
    ("one warp would release the scales",
     Edit("kSets, ConsumerWarps<4 * kConsumers>", "kSets, ConsumerWarps<1>"),
     RACE + FAULT + DEADLOCK, r"scales\.(stages|empty)"),
    ("adds to partial sums", Edit("stage->a, stage->b, false)", "stage->a, stage->b, true)"), FAULT,
     r"tcgen05\.mma reads D .*nothing has written"),
)  # fmt: skip
M, N, K = 512, 256, 1280  # four tiles of a pair, each of 10 blocks: more than sets and stages
GEMM = PlantedGemm(
    SOURCE, DEFECTS, {"B_SCALE_COLUMNS": 128, "B_SCALES_ARE_K_MAJOR": False}, threads=384
)


@pytest.fixture(scope="module")
def one() -> Problem:
    """Small integers, and scales that are powers of two: every order of summing is exact."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, K)).astype(ml_dtypes.float8_e4m3fn) for rows in (M, N))
    of_a, of_b = (2.0 ** rng.integers(-2, 3, (K // 128, rows)) for rows in (M, N // 128))
    out = np.zeros((M, N), np.float32)
    scales = of_a.astype(np.float32), np.pad(of_b, ((0, 0), (0, 2))).astype(np.float32)
    tiles = {
        "ATile": create_tma_tile(a, (128, 128), swizzle="128B"),
        "BTile": create_tma_tile(b, (64, 128), swizzle="128B"),
        "AScaleTile": create_tma_tile(scales[0], (1, 128)),
        "BScaleTile": create_tma_tile(scales[1], (1, 4)),
        "CTile": create_tma_tile(out, (128, 32), swizzle="128B"),
    }
    left = a.astype(np.float64) * np.repeat(of_a.T, 128, 1)
    right = b.astype(np.float64) * np.repeat(np.repeat(of_b.T, 128, 1), 128, 0)
    return Problem((*tiles.values(), M, N, K), tiles, out, left @ right.T)


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
