"""Defects planted in the shipped GEMM that no small kernel has: turns, roles, and shared loads.

Small kernels with each class of defect are in `emulate.planted`. What the patterns call
``ring.full[0]`` is a barrier of the kernel's own source.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulate.shipped import whole_text
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, after, before, defects, without
from planted_choices import choices

from tmaasync import Kernel, _arrays, emulate
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_constants, gemm_tiles

STAGES = 3
ORDERS: tuple[Policy, ...] = ("round_robin", "random")
GEMM = defects(
    "gemm",
    (
        "one warp does not multiply",
        before("consume(warpgroup - 1);", "if (warp_index() != 6)"),
        DEADLOCK + FAULT,
        (
            r"threads 128-191, 224-255 at .*: wgmma.wait_group|"
            r"of warp (4|6) and \d+ times by thread \d+ of warp (4|6), which belong to one warpg"
        ),
    ),
    (
        "lanes give wgmma other rows",
        after("row + row_block * 64", "+ lane_index() % 2 * 8"),
        FAULT,
        r"threads (128 and 129|256 and 257) of a warpgroup give wgmma.mma_async different",
    ),
    (
        "two sizes of one named barrier",
        Edit("barrier_.sync();", "NamedBarrier<256>{1}.sync();", "write_row_block", 2),
        FAULT,
        r"barrier 1 is used for (256 and for 128|128 and for 256) threads at once",
    ),
)
PAIR = defects(
    "pair",
    (
        "both load the first share",
        Edit("Group::rank()", "0", "ProducerStage"),
        RACE,
        r"race on ring\.stages\[\d\]\.b .*\n.*TMA load\n.*TMA load\ntwo loads write",
    ),
    (
        "all expect on CTA 0",
        Edit("expect_bytes(bytes)", "arrive_and_expect_bytes(bytes, 0)", "Ring::producer_acquire"),
        FAULT,
        r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more",
    ),
    (
        "nobody waits for the peer's init",
        Edit("enter_cluster();", "__syncthreads();", "run_with_helpers"),
        RACE,
        r"race on ring\.(full|empty)\[\d\] .*\n.*init\n(.*\n)*.*cluster_sync\(\)",
    ),
)
PING_PONG = defects(
    "ping_pong",
    ("no consumer waits for its turn", without("if (!has_turn) Order::wait(number);"), RACE, ""),
    (
        "the other consumer's stages are not skipped",
        without("consumer.skip(k_blocks);", "multiply_tiles_pingpong", 1),
        DEADLOCK + FAULT,
        "",
    ),
)
DEFECTS = (*GEMM, *PAIR, *PING_PONG)
SOME_ORDERS = "two sizes of one named barrier"  # elsewhere the two uses are apart in time


@functools.cache
def prepared(text: str, cluster: int, ping_pong: bool) -> tuple[Kernel, Any]:
    """Two clusters, two tiles of the output each, four blocks of K for three stages."""
    tile_config = TileConfig(2, 64, cluster, rows=128 if ping_pong else 64, ping_pong=ping_pong)
    m, n, k = 2 * cluster * tile_config.block_m - 56, 2 * tile_config.block_n - 24, 200
    drawn = np.random.default_rng(1)
    a, b = (drawn.integers(-4, 5, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    views = [_arrays.view(array) for array in (a, b, np.full((m, n), np.nan, np.float32))]
    tiles = gemm_tiles(views[0], views[1], views[2], tile_config, False, True)
    kernel = Kernel(
        text,
        "gemm",
        types=dict(zip(("ATile", "BTile", "CTile"), tiles, strict=True)),
        constants={**gemm_constants(False, True, tile_config), "STAGES": STAGES},
    )
    with emulate.scheduled(races=True):
        return kernel, kernel.prepare(
            2 * cluster,
            128 * (1 + tile_config.consumers),
            (*tiles, m, n, k, 1),
            cluster=cluster if cluster > 1 else None,
        )


def outcome(defect: Defect, policy: Policy) -> Exception | None:
    found = choices(whole_text("gemm.cu"), tuple(d for d in DEFECTS if d.kernel == defect.kernel))
    cluster, ping_pong = 2 if defect in PAIR else 1, defect in PING_PONG
    kernel, launch = prepared(found.text_with(defect), cluster, ping_pong)
    found.choose(kernel, defect)
    try:
        with emulate.scheduled(policy, workers=1, races=True):
            launch()
    except RACE + DEADLOCK + FAULT as error:
        return error
    return None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.key)
def test_a_defect_is_reported_whatever_the_order(defect: Defect) -> None:
    found = [outcome(defect, policy) for policy in ORDERS]

    errors = [error for error in found if error is not None]
    assert errors if defect.name == SOME_ORDERS else len(errors) == len(found)
    reports = [error for error in errors if isinstance(error, defect.reported)]
    assert any(re.search(defect.says, str(error)) for error in reports), found
