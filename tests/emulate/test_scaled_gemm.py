"""Defects planted in scaled_gemm.cu are reported: in what it adds to the pipeline of a GEMM."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulate.shipped import whole_text
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, without
from planted_choices import choices
from planted_runs import check_reported, in_orders

from tmaasync import _arrays
from tmaasync.ops._gemm.config import ScaledTileConfig
from tmaasync.ops._gemm.tiles import scaled_gemm_constants, scaled_gemm_tiles

pytestmark = pytest.mark.slow

CONFIG = ScaledTileConfig(2, 64, 2, max_stages=2)


_SIDE = r"race on ring\.side\[\d\].*\n.*ordinary read\n.*TMA load"
DEFECTS = (
    Defect("scaled_gemm.cu", "scales are read before an arrival that orders nothing", (
        Edit("empty[stage].arrive()", "empty[stage].arrive_cluster_relaxed(rank)",
             "Ring::consumer_release", 2),
    ), RACE, _SIDE),
    Defect("scaled_gemm.cu", "a lane arrives for others that still read scales", (
        without("if constexpr (...) __syncwarp();", "Ring::consumer_release"),
    ), RACE, _SIDE),
    Defect("scaled_gemm.cu", "the scales of B are not expected", (
        Edit("Stage::kBytes + AScaleTile::kBytes + BScaleTile::kBytes",
             "Stage::kBytes + AScaleTile::kBytes"),
    ), DEADLOCK + FAULT + RACE,
     r"copies deliver|more than expected arrived|side\[\d\]\.b\), which nothing has written"),
    Defect("scaled_gemm.cu", "partial sums are promoted before wgmma is done", (
        Edit("wgmma_wait_group<0>(); wgmma_fence_operands(partial);",
             "wgmma_fence_operands(partial);"),
    ), RACE, r"race on the accumulators"),
)  # fmt: skip


def run(defect: Defect | None) -> None:
    """Two tiles for each of two blocks, five blocks of K for two stages."""
    m, n, k = 2 * CONFIG.block_m, 2 * CONFIG.block_n, 640
    a, b = (np.ones((side, k), ml_dtypes.float8_e4m3fn) for side in (m, n))
    scales = np.ones((5, m), np.float32), np.ones((5, 4), np.float32)
    views = [_arrays.view(array) for array in (a, b, *scales, np.zeros((m, n), np.float32))]
    tiles = scaled_gemm_tiles(
        (views[0], views[1], views[2], views[3]), views[4], CONFIG, b_scales_transposed=False
    )
    names = ("ATile", "BTile", "AScaleTile", "BScaleTile", "CTile")
    kernel = choices(whole_text("scaled_gemm.cu"), DEFECTS).kernel(
        defect,
        "scaled_gemm",
        dict(zip(names, tiles, strict=True)),
        scaled_gemm_constants(False, CONFIG),
    )
    kernel(2, CONFIG.threads, (*tiles, m, n, k), cluster=2)


def test_nothing_is_reported_without_a_defect() -> None:
    in_orders(2, lambda: run(None))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_reported(defect: Defect) -> None:
    check_reported(defect, lambda: run(defect))
