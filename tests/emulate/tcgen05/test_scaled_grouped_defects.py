"""The block-scaled grouped GEMM: right in every order, and its defects are reported."""

from __future__ import annotations

import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem, groups_of_float4
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, before, defects, without

from tmaasync.ragged import create_ragged_tensor_map

SOURCE = shipped_text("scaled_grouped_gemm_tensor_memory.cu")
LOAD = "load_factors(stage, a_factors, b_factors, a_atoms, b_atoms, block);"
COLUMNS = "columns + stage.index() * kStageColumns"
STORE = "output.store(accumulators, c, tile, [=](float value, int, int) {"
DEFECTS = defects(
    "scaled_grouped_gemm_tensor_memory",
    (
        "a CTA without rows loads no factors",
        Edit(LOAD, f"if (tile.m < tile.rows.length) {LOAD}"),
        DEADLOCK,
        r"ring\.full",
    ),
    (
        "a CTA without rows stores nothing",
        before(STORE, "if (tile.m < tile.rows.length)"),
        DEADLOCK,
        r"accumulators\.empty",
    ),
    (
        "the bytes of the factors of A are not expected",
        without("AFactorTile::kBytes +"),
        FAULT + RACE + DEADLOCK,
        r"ring\.full|a_factors|expect",
    ),
    (
        "no fence before the factors are copied",
        without("tcgen05_fence_after_thread_sync();"),
        RACE,
        r"(?s)tensor memory.*tcgen05\.cp.*after_thread_sync.*tcgen05-fence",
    ),
    (
        "all stages have the same columns",
        Edit(COLUMNS, "columns"),
        RACE,
        r"(?s)tensor memory.*tcgen05\.cp",
    ),
    (
        "the factors of B are not copied",
        without("of_b.copy_from<CTAS>(stage->b_factors, stage->a);"),
        FAULT,
        r"tcgen05\.mma reads .*nothing has written",
    ),
    (
        "the scales of groups are read beyond them",
        Edit("scales + group", "scales + group + 2"),
        FAULT,
        r"scale_a|of_group|reads",
    ),
)
ENDS = [40, 40, 80, 200, 712, 900]  # groups of fewer rows than a tile, of none, and of two pairs
ROWS, N, K_BYTES = 1024, 128, 384
GEMM = PlantedGemm(SOURCE, DEFECTS, {"BLOCK": 16, "IS_SCALED": True}, threads=256)


@pytest.fixture(scope="module")
def one() -> Problem:
    """NVFP4 with a power of two for every 16 elements, values of 1 and 2, and scales of groups."""
    return groups_of_float4(
        ENDS,
        (ROWS, N, K_BYTES),
        lambda out: create_ragged_tensor_map(out, (128, 32), swizzle="128B"),
    )


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
