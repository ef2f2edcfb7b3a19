"""The grouped GEMM on tensor memory: right in every order, and its defects are reported."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, without

from tmaasync.ragged import create_ragged_tensor_map
from tmaasync.tile import create_tma_tile

SOURCE = shipped_text("grouped_gemm_tensor_memory.cu")
STORE = "output.store(accumulators, c, tile);"
LOAD = "load_operands(stage, a, b, in_arrays(tile), block);"
HELP = "if (helper != 0 || blockIdx.x != 0) return;"
BLOCKS = "stages.consume(work.range(tile).count)"
DEFECTS = defects(
    "grouped_gemm_tensor_memory",
    ("a CTA without rows loads nothing",
     Edit(LOAD, f"if (tile.m < tile.rows.length) {LOAD}"), DEADLOCK, r"ring\.full"),
    ("a CTA without rows stores nothing",
     Edit(STORE, f"if (tile.m < tile.rows.length) {STORE}"), DEADLOCK, r"accumulators\.empty"),
    ("one lane looks for broken groups",
     Edit(HELP, "if (helper != 0 || blockIdx.x != 0 || !elect()) return;"), FAULT,
     r"redux\.sync with the mask 0xffffffff"),
    ("a block less is multiplied", Edit(BLOCKS, BLOCKS.replace("count", "count - 1")),
     DEADLOCK + RACE, r"ring\.|accumulators"),
    ("both CTAs multiply", without("!leads_pair<CTAS>() ||"), FAULT + RACE + DEADLOCK,
     r"ring\.full\[0\]"),
)  # fmt: skip
ENDS = [40, 40, 80, 200, 700, 900]  # groups of fewer rows than a tile, of none, and of two pairs
ROWS, N, K = 1000, 128, 160
GEMM = PlantedGemm(SOURCE, DEFECTS, {}, threads=256)


@pytest.fixture(scope="module")
def one() -> Problem:
    """Small integers, which every order adds up exactly."""
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (ROWS, K)).astype(np.float16)
    b = rng.integers(-4, 5, (len(ENDS), N, K)).astype(np.float16)
    out = np.zeros((ROWS, N), np.float32)
    exact = np.full((ROWS, N), np.nan)
    for start, end, matrix in zip([0, *ENDS], ENDS, b.astype(np.float64), strict=False):
        exact[start:end] = a[start:end].astype(np.float64) @ matrix.T
    tiles = {
        "ATile": create_tma_tile(a, (128, 64), swizzle="128B"),
        "BTile": create_tma_tile(b, (1, 64, 64), swizzle="128B"),
        "CTile": create_ragged_tensor_map(out, (128, 32), swizzle="128B"),
    }
    ends = np.array(ENDS, np.int32)
    arguments = (*tiles.values(), ends, len(ENDS), ROWS, N, K, np.zeros(1, np.int32))
    return Problem(arguments, tiles, out, exact)


def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
