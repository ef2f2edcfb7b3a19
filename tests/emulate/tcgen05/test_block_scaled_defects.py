"""The block-scaled GEMM on tensor memory: right in every order, and its defects are reported."""

from __future__ import annotations

import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem, gemm_of_float4
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, before, defects, without

from tmaasync.tile import create_tma_tile

SOURCE = shipped_text("scaled_gemm_tensor_memory.cu", "tmaasync/tcgen05_scales.cuh")
COPY_A = "of_a.copy_from<CTAS>(stage->a_factors, stage->a);"
COPY_B = "of_b.copy_from<CTAS>(stage->b_factors, stage->a);"
LOAD_B = "Ring::load(stage, b_factors, stage->b_factors, {0, atom, b_atoms});"
STAGES = "const auto& stage : stages.consume(work.range(tile).count)"
COLUMNS = "columns + stage.index() * kStageColumns"
DEFECTS = defects(
    "scaled_gemm_tensor_memory",
    ("no fence before the factors are copied", without("tcgen05_fence_after_thread_sync();"), RACE,
     r"(?s)tensor memory.*tcgen05\.cp.*after_thread_sync.*tcgen05-fence"),
    ("the factors of A are not copied", without(COPY_A), FAULT,
     r"tcgen05\.mma reads .*nothing has written"),
    ("the factors of B are not copied", without(COPY_B), FAULT,
     r"tcgen05\.mma reads .*nothing has written"),
    ("the factors of B are not loaded", without(LOAD_B), DEADLOCK, r"ring\.full\[0\]"),
    ("the bytes of the factors of B are not expected", without("+ BFactorTile::kBytes"),
     FAULT + RACE + DEADLOCK, r"ring\.full|b_factors|expect"),
    ("all stages have the same columns", Edit(COLUMNS, "columns"), RACE,
     r"(?s)tensor memory.*tcgen05\.cp"),
    ("factors of B over factors of A", Edit("of_a.address + AFactors::kColumns", "of_a.address"),
     RACE, r"(?s)tensor memory.*tcgen05\.cp.*tcgen05\.cp"),
    ("the factors over the accumulators",
     Edit("tmem.tile<float, kFactorColumns, kSets * kN>().address",
          "tmem.tile<float, kFactorColumns, 0>().address"), RACE + FAULT, r"tensor memory"),
    ("columns beyond the allocation",
     Edit(COLUMNS, "columns + 2 * kN + stage.index() * kStageColumns"), FAULT,
     r"tcgen05\.cp .* columns \d+ to \d+ .*(not allocated|physical_bounds)"),
    ("the stage is released before its factors are read",
     (Edit(STAGES, STAGES.replace("const auto&", "auto&&")),
      before("multiply(d, stage, tile);", "stage.release();")),
     RACE, r"(?s)race on ring\.stages\[\d\].*(may still be reading|may not have landed)"),
    ("the factors of a step begin in the next stage",
     Edit("address + 4 * kRowAtoms * (step", "address + kColumns + 4 * kRowAtoms * (step"),
     FAULT + RACE, r"tensor memory"),
    ("one CTA copies for itself", Edit(COPY_A, COPY_A.replace("CTAS", "1")), FAULT,
     r"cta_group::1.*cta_group::2|cta_group::2.*cta_group::1"),
    ("both CTAs multiply", without("!leads_pair<CTAS>() ||"), FAULT + RACE + DEADLOCK,
     r"ring\.full\[0\]"),
    ("the accumulators are never committed", without("accumulators.commit();", nth=2), DEADLOCK,
     r"accumulators\.full"),
)  # fmt: skip
GEMM = PlantedGemm(SOURCE, DEFECTS, {"BLOCK": 32, "IS_SCALED": False}, threads=256)


@pytest.fixture(scope="module")
def one() -> Problem:
    """MXFP4 with a power of two for every 32 elements, and values of 1 and 2."""
    # 512 bytes of packed float4: 4 stages of 2 factor atoms.
    return gemm_of_float4(
        (512, 256, 512),
        32,
        lambda power: power + 127,
        (1, 2, 128),
        lambda out: create_tma_tile(out, (128, 32), swizzle="128B"),
    )


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
