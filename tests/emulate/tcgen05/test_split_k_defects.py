"""Split-K on tensor memory: partial outputs are right in every order, and defects are reported."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects

from tmaasync.tile import create_tma_tile

SOURCE = shipped_text("gemm_tensor_memory.cu")
RANGE = "KRange(k_blocks, tile.batch, tiles.batches)"
DEFECTS = defects(
    "gemm_tensor_memory",
    ("a split multiplies all blocks",
     Edit("stages.consume(work.range(tile).count)", "stages.consume(work.k_blocks)"),
     DEADLOCK + RACE, r"ring\.|accumulators"),
    ("a split loads all blocks",
     Edit("const KRange blocks = work.range(tile);", "const KRange blocks(work.k_blocks);"),
     DEADLOCK + RACE, r"ring\."),
    ("the first split has no blocks",
     Edit(RANGE, "KRange(k_blocks, tiles.batches - tile.batch, tiles.batches + 1)"),
     FAULT + DEADLOCK, r"nothing has written"),
)  # fmt: skip
M, N, K, SPLITS = 300, 72, 448, 7  # seven blocks
GEMM = PlantedGemm(SOURCE, DEFECTS, {"STORES_PARTIALS": True}, threads=256)


@pytest.fixture(scope="module")
def one() -> Problem:
    """Small integers, which every order adds up exactly."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, K)).astype(np.float16) for rows in (M, N))
    out = np.zeros((SPLITS, M, N), np.float32)
    parts = zip(np.split(a, SPLITS, 1), np.split(b, SPLITS, 1), strict=True)
    exact = np.stack([x.astype(np.float64) @ y.astype(np.float64).T for x, y in parts])
    tiles = {
        "ATile": create_tma_tile(a, (128, 64), swizzle="128B"),
        "BTile": create_tma_tile(b, (64, 64), swizzle="128B"),
        "CTile": create_tma_tile(out, (1, 128, 32), swizzle="128B"),
    }
    return Problem((*tiles.values(), M, N, K, SPLITS), tiles, out, exact)


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
