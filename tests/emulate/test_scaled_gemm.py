"""Defects planted in scaled_gemm.cu are reported: in what it adds to the pipeline of a GEMM."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulate.shipped import whole_text

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, Kernel, _arrays
from tmaasync.emulate import scheduled
from tmaasync.ops._gemm.config import ScaledTileConfig
from tmaasync.ops._gemm.tiles import scaled_gemm_constants, scaled_gemm_tiles

ORDERS: tuple[Any, ...] = (("random", 1), ("random", 2), ("adversarial", 1))
CONFIG = ScaledTileConfig(2, 64, 2, max_stages=2)


def run(text: str, order: Any) -> None:
    """Two tiles for each of two blocks, five blocks of K for two stages."""
    m, n, k = 2 * CONFIG.block_m, 2 * CONFIG.block_n, 640
    a, b = (np.ones((side, k), ml_dtypes.float8_e4m3fn) for side in (m, n))
    scales = np.ones((5, m), np.float32), np.ones((5, 4), np.float32)
    views = [_arrays.view(array) for array in (a, b, *scales, np.zeros((m, n), np.float32))]
    tiles = scaled_gemm_tiles(
        (views[0], views[1], views[2], views[3]), views[4], CONFIG, b_scales_transposed=False
    )
    names = ("ATile", "BTile", "AScaleTile", "BScaleTile", "CTile")
    kernel = Kernel(
        text,
        "scaled_gemm",
        types=dict(zip(names, tiles, strict=True)),
        constants=scaled_gemm_constants(False, CONFIG),
    )
    policy, seed = order
    with scheduled(policy, seed=seed, workers=1, races=True):
        kernel(2, CONFIG.threads, (*tiles, m, n, k), cluster=2)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_nothing_is_reported_without_a_defect(order: Any) -> None:
    run(whole_text("scaled_gemm.cu"), order)


@pytest.mark.parametrize(
    ("old", "new", "error", "report"),
    [
        pytest.param(
            "if (lane == rank) empty[stage].arrive();",
            "if (lane == rank) empty[stage].arrive_cluster_relaxed(rank);",
            EmulatedRace,
            r"race on ring\.side\[\d\].*\n.*ordinary read\n.*TMA load",
            id="scales are read before an arrival that orders nothing",
        ),
        pytest.param(
            "if constexpr (kReader != Proxy::kAsync) __syncwarp();",
            "",
            EmulatedRace,
            r"race on ring\.side\[\d\].*\n.*ordinary read\n.*TMA load",
            id="a lane arrives for others that still read scales",
        ),
        pytest.param(
            "Stage::kBytes + AScaleTile::kBytes + BScaleTile::kBytes",
            "Stage::kBytes + AScaleTile::kBytes",
            (EmulatedDeadlock, EmulatedFault),
            r"16 bytes more than expected arrived|side\[\d\]\.b\), which nothing has written",
            id="the scales of B are not expected",
        ),
        pytest.param(
            "wgmma_wait_group<0>();\n                wgmma_fence_operands(partial);",
            "wgmma_fence_operands(partial);",
            EmulatedRace,
            r"race on the accumulators",
            id="partial sums are promoted before wgmma is done",
        ),
    ],
)
def test_a_defect_is_reported(old: str, new: str, error: Any, report: str) -> None:
    text = whole_text("scaled_gemm.cu")
    assert text.count(old) == 1

    for order in ORDERS:
        with pytest.raises(error, match=report):
            run(text.replace(old, new), order)
