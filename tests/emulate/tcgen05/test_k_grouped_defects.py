"""The K-grouped GEMM on tensor memory: right in every order, and its defects are reported."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects

from tmaasync.ragged import create_ragged_tensor_map
from tmaasync.tile import create_tma_tile

SOURCE = shipped_text("k_grouped_gemm_tensor_memory.cu")
LOAD_A = "a.async_copy<CTAS>(stage->a, stage.full(), tile.rows, {tile.m, k});"
BLOCKS = "count_tiles(tile.rows.length, kK)"
DEFECTS = defects(
    "k_grouped_gemm_tensor_memory",
    ("each CTA counts its own columns of A", Edit(LOAD_A, LOAD_A.replace("<CTAS>", "<1>")),
     FAULT + DEADLOCK + RACE, r"ring\.full"),
    ("an empty group has no block", Edit(f"max({BLOCKS}, 1)", BLOCKS), FAULT,
     r"nothing has written"),
    ("only groups with rows are loaded",
     Edit(LOAD_A, f"if (tile.rows.length > 0) {LOAD_A}"), DEADLOCK, r"ring\.full"),
)  # fmt: skip
ENDS = [0, 100, 101, 101, 330]
ROWS, M, N = 340, 300, 128
CONSTANTS = {"A_IS_K_MAJOR": False, "B_IS_K_MAJOR": False}
GEMM = PlantedGemm(SOURCE, DEFECTS, CONSTANTS, threads=256)


@pytest.fixture(scope="module")
def one() -> Problem:
    """Small integers, which every order adds up exactly."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (ROWS, side)).astype(np.float16) for side in (320, N))
    a = a[:, :M]
    out = np.zeros((len(ENDS), M, N), np.float32)
    exact = [
        a[start:end].astype(np.float64).T @ b[start:end].astype(np.float64)
        for start, end in zip([0, *ENDS], ENDS, strict=False)
    ]
    tiles = {
        "AMap": create_ragged_tensor_map(a, (64, 128), swizzle="128B"),
        "BMap": create_ragged_tensor_map(b, (64, 64), swizzle="128B"),
        "CTile": create_tma_tile(out, (1, 128, 32), swizzle="128B"),
    }
    ends = np.array(ENDS, np.int32)
    arguments = (*tiles.values(), ends, len(ENDS), ROWS, M, N, np.zeros(1, np.int32))
    types = {**tiles, "ATile": "AMap::Tile", "BTile": "BMap::Tile"}
    return Problem(arguments, types, out, np.stack(exact))


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
