"""Block-scaled GEMMs by warps: right and silent in every order, and defects are reported."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.shipped import whole_text
from emulate.tcgen05.planted_gemms import Problem, gemm_of_float4, groups_of_float4
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, before, defects, without
from planted_choices import choices
from planted_runs import check_reported, in_orders

from tmaasync import emulate
from tmaasync.ragged import create_ragged_tensor_map
from tmaasync.tile import create_tma_tile

WAIT = "full[state.index].wait(state.phase, location);"
RELEASE = "if (lane == 0) empty[stage].arrive();"
STAGES = "const auto& stage : stages.consume(k_blocks)"
LOAD_FACTORS = (
    "b_factors.async_copy(stage->b_factors, stage.full(), {0, atom, tile.n / kAtomRows});"
)
PLAIN, GROUPED = "scaled_gemm_warps", "scaled_grouped_gemm_warps"
DEFECTS = defects(
    f"{PLAIN}.cu",
    ("the factors of B are not loaded", without(LOAD_FACTORS), DEADLOCK, r"ring\.full\[0\]"),
    ("the factors of B are not expected", without("+ BFactorTile::kBytes"),
     DEADLOCK + FAULT + RACE, r"2048 bytes more than expected|Expect the bytes|b_factors"),
    ("the factors land in the next stage's buffer",
     Edit("b_factors.async_copy(stage->b_factors",
          "b_factors.async_copy((&*stage + (stage.index() == 0 ? 1 : -1))->b_factors"),
     FAULT + RACE, r"b_factors|ring\.stages"),
    ("a stage is read before it has landed", without(WAIT, "Ring::consumer_wait"),
     RACE + FAULT, r"ring\.stages\[\d\]|ring\.full"),
    ("a stage is released before it is read",
     (Edit(STAGES, STAGES.replace("const auto&", "auto&&")),
      before("multiply_stage(accumulators[0], *stage, tile, row);", "stage.release();")),
     RACE, r"race on ring\.stages\[\d\]"),
    ("a lane arrives for others that still read",
     without("if constexpr (...) __syncwarp();", "Ring::consumer_release"), RACE,
     r"race on ring\.stages\[\d\]"),
    ("one consumer releases for both",
     Edit("ConsumerWarps<4 * CONSUMERS>", "ConsumerWarps<4>", "SharedMemory"),
     RACE + DEADLOCK + FAULT, r"ring\.(stages|empty)\[\d\]"),
    ("more warps are waited for than read",
     Edit("ConsumerWarps<4 * CONSUMERS>", "ConsumerWarps<8 * CONSUMERS>", "SharedMemory"),
     DEADLOCK, r"ring\.empty\[\d\]"),
    ("the last store reads buffers of a CTA that has exited", without("output.drain();"),
     FAULT + RACE, r"output\[\d\]|exit"),
    ("the output is stored without a fence of the proxies",
     Edit("fence_async_view_proxy();", "", "write_row_block"), RACE + FAULT, r"proxy"),
)  # fmt: skip


M, N, K_BYTES = 128, 128, 384
CONSTANTS = {"CONSUMERS": 2, "BLOCK_N": 64, "STAGES": 2, "GROUP_M": 8, "BLOCK": 16}


@pytest.fixture(scope="module")
def one() -> Problem:
    """NVFP4 with a power of two for every 16 elements, and values of 1 and 2: two tiles."""
    return gemm_of_float4(
        (M, N, K_BYTES),
        16,
        lambda power: power + 7 << 3,
        (1, 4, 128),
        lambda out: create_tma_tile(out, (64, 16), swizzle="64B"),
    )


def run(name: str, one: Problem, defect: Defect | None) -> None:
    """Tiles of one CTA, three stages of K through a ring of two."""
    planted = GROUP_DEFECTS if name == GROUPED else DEFECTS
    constants = {**CONSTANTS, "IS_SCALED": name == GROUPED}
    with emulate.chip("sm_120a"):
        kernel = choices(whole_text(f"{name}.cu"), planted).kernel(
            defect, name, one.types, constants
        )
        one.out.fill(np.nan)
        kernel(1, 384, one.arguments)


def check_right(name: str, one: Problem) -> None:
    run(name, one, None)
    np.testing.assert_array_equal(one.out, one.exact)


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    in_orders(8, lambda: check_right(PLAIN, one))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    check_reported(defect, lambda: run(PLAIN, one, defect))


# --- groups ---------------------------------------------------------------------------------------

ENDS = [41, 41, 82, 211]  # groups of fewer rows than a tile, of none, and of two tiles
GROUP_DEFECTS = defects(
    f"{GROUPED}.cu",
    (
        "the factors of A are not loaded",
        without("a_factors.async_copy(stage->a_factors, stage.full(), {0, atom, a_atoms});"),
        DEADLOCK,
        r"ring\.full\[0\]",
    ),
    (
        "groups of few rows are not multiplied",
        before(
            "for (const auto& stage : stages.consume(k_blocks)) {", "if (tile.rows.length > 64)"
        ),
        DEADLOCK + RACE,
        r"ring\.(empty|stages)\[\d\]",
    ),
    (
        "the scales of groups are read beyond them",
        Edit("scales + group", "scales + group + 3"),
        FAULT,
        r"scale_a|of_group|reads",
    ),
    (
        "a stage is released before it is read",
        (
            Edit(STAGES, STAGES.replace("const auto&", "auto&&")),
            before("multiply_stage(accumulators[0], *stage, tile, row);", "stage.release();"),
        ),
        RACE,
        r"race on ring\.stages\[\d\]",
    ),
)


@pytest.fixture(scope="module")
def groups() -> Problem:
    shape = (ENDS[-1] + 45, N, K_BYTES)
    return groups_of_float4(
        ENDS, shape, lambda out: create_ragged_tensor_map(out, (64, 16), swizzle="64B")
    )


def test_groups_are_right_in_every_order(groups: Problem) -> None:
    in_orders(2, lambda: check_right(GROUPED, groups))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", GROUP_DEFECTS, ids=lambda one: one.name)
def test_a_defect_of_groups_is_reported_in_every_order(groups: Problem, defect: Defect) -> None:
    check_reported(defect, lambda: run(GROUPED, groups, defect))
