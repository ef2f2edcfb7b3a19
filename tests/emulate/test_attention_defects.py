"""Defects planted in attention.cu are reported, whatever the order of the threads."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from emulate.shipped import whole_text
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, without
from planted_choices import Choices, choices
from planted_runs import check_reported, in_orders

from tmaasync import Kernel, _arrays
from tmaasync.ops._flash.abi import BATCH_LIMITS, SCALES
from tmaasync.ops._flash.config import Sizes, TileConfig, Variant, problem
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._flash.tiles import attention_tiles

CONFIG = TileConfig(64, 2, 32)
PAIR = TileConfig(64, 2, 32, cluster=2)

DEFECTS = defects(
    "attention.cu",
    ("keys are read before they have landed", without("keys_.wait();"), RACE,
     r"race on keys\.stages\[\d\]"),
    ("the output is read before its MMAs are done",
     without("wgmma_wait_group<0>();", "wait_for_pv"), RACE,
     "race on (the accumulators|A's registers)"),
    ("keys are released before their MMAs are done",
     Edit("wgmma_wait_group<kPending>", "wgmma_wait_group<2>"), RACE,
     r"race on (the accumulators|keys\.stages)"),
    ("the output is stored without a fence",
     without("fence_async_view_proxy();", "store_attention_rows"), RACE,
     r"race on tiles\[\d\](.|\n)*fence_async_view_proxy\(\)"),
    ("queries are not released", without("if constexpr (...) queries_.release();"), DEADLOCK,
     r"queries\.empty\[\d\]\[\d\], phase 0"),
    ("the next consumer is not released", without("Order::release(...);"), DEADLOCK,
     r"barrier \d+: 128 arrivals are missing"),
)  # fmt: skip
# Defects of two CTAs that share loads.
DEFECTS_OF_PAIRS = defects(
    "attention.cu",
    ("keys are released to the own producer alone",
     Edit("if (lane < Group::kCtas) { empty[stage].arrive_cluster_relaxed(...);",
          "if (lane == 0) { empty[stage].arrive_cluster_relaxed(Group::rank(), Group::kCtas);"),
     RACE, r"race on keys\.stages\[\d\]"),
    ("the peer's barriers are not waited for",
     Edit("cluster_sync();", "__syncthreads();", "enter_cluster"), RACE,
     r"race on keys\.(full|empty)\[\d\](.|\n)*cluster_sync\(\)"),
    ("a CTA leaves while its peer needs it",
     without("if constexpr (...) cluster_sync();", "leave_cluster"), FAULT,
     "CTA [01] of the cluster has ended"),
)  # fmt: skip


def chosen() -> Choices:
    return choices(whole_text("attention.cu"), DEFECTS + DEFECTS_OF_PAIRS)


def with_defect(defect: Defect | None, config: TileConfig = CONFIG) -> tuple[Any, Any, Any]:
    """Return the launch, its output, and the right one."""
    kernel, *found = prepared(chosen().text_with(defect), config)
    chosen().choose(kernel, defect)
    return tuple(found)


@functools.cache
def prepared(text: str, config: TileConfig) -> tuple[Kernel, Any, Any, Any]:
    """Three spans of one cluster, eight blocks of keys for three stages.

    Of a pair, one has tiles after the queries.
    """
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((3, rows, 1, 64)).astype(np.float16) for rows in (100, 250, 250))
    out = np.full_like(q, np.nan)
    views = [_arrays.view(array) for array in (q, k, v, out)]
    tiles = attention_tiles(views[0], views[1], views[2], views[3], config)
    built = Kernel(
        text,
        "attention",
        types=dict(zip(("QTile", "KTile", "VTile", "OTile"), tiles, strict=True)),
        constants={**config.constants, **Variant().constants, "STAGES": 3},
    )
    scores = Scores.of(64, False, None, None, None)
    numbers = problem(Sizes(100, 250, 1, 1, 3, 64), scores)
    launch = built.prepare(
        config.cluster,
        config.threads,
        (*tiles, *[0] * 10, numbers, bytes(SCALES.itemsize), bytes(BATCH_LIMITS.itemsize)),
        cluster=config.cluster,
    )
    weights = np.exp(np.einsum("bqhd,bkhd->bqhk", q.astype(float), k.astype(float)) / 8)
    wanted = np.einsum("bqhk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v.astype(float))
    return built, launch, out, wanted


def named(defect: Defect) -> str:
    return defect.name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("defect", DEFECTS + DEFECTS_OF_PAIRS, ids=named)
def test_a_defect_is_reported_whatever_the_order(defect: Defect) -> None:
    config = PAIR if defect in DEFECTS_OF_PAIRS else CONFIG
    launch, _, _ = with_defect(defect, config)

    check_reported(defect, launch)


@pytest.mark.slow
def test_without_a_defect_there_is_none() -> None:
    launch, out, wanted = with_defect(None)

    def check() -> None:
        out[...] = np.nan
        launch()
        assert np.abs(out - wanted).max() < 2e-3

    in_orders(3, check)
