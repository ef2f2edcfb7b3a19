"""The block-scaled grouped GEMM: right in every order, and its defects are reported."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem, packed_float4
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, before, defects, without

from tmaasync.ragged import create_ragged_tensor_map
from tmaasync.tile import create_tma_tile

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
    rng = np.random.default_rng(0)
    count = len(ENDS)
    starts = [0, *ENDS[:-1]]
    heights = [-(-(end - start) // 128) * 128 for start, end in zip(starts, ENDS, strict=True)]
    code = lambda power: power + 7 << 3  # noqa: E731
    a, of_a, left = packed_float4(rng, sum(heights), K_BYTES, 16, code)
    b, of_b, right = packed_float4(rng, count * N, K_BYTES, 16, code)
    scales = 2.0 ** rng.integers(-2, 3, (2, count)).astype(np.float32)
    rows, out = np.zeros((ROWS, K_BYTES), np.uint8), np.zeros((ROWS, N), np.float32)
    exact, padded = np.full((ROWS, N), np.nan), 0
    for group, (start, end) in enumerate(zip(starts, ENDS, strict=True)):
        of_group = slice(padded, padded + end - start)
        rows[start:end] = a[of_group]
        exact[start:end] = left[of_group] @ right[group * N : (group + 1) * N].T
        exact[start:end] *= scales[:, group].prod()
        padded += heights[group]
    tiles = {
        "ATile": create_tma_tile(rows, (128, 128), swizzle="128B"),
        "BTile": create_tma_tile(b.reshape(count, N, K_BYTES), (1, 64, 128), swizzle="128B"),
        "AFactorTile": create_tma_tile(of_a, (1, 4, 128)),
        "BFactorTile": create_tma_tile(of_b, (1, 4, 128)),
        "CTile": create_ragged_tensor_map(out, (128, 32), swizzle="128B"),
    }
    groups = (np.array(ENDS, np.int32), count, ROWS)
    arguments = (
        *tiles.values(),
        *scales,
        np.float32(1),
        *groups,
        N,
        K_BYTES,
        np.zeros(1, np.int32),
    )
    elements = dict.fromkeys(("AElement", "BElement"), "tmaasync::float4_e2m1")
    return Problem(arguments, tiles | elements, out, exact)


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
