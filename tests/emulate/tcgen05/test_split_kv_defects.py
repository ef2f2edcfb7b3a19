"""Split-KV on tensor memory: right in every order, and its planted defects are reported."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulate.shipped import whole_text
from emulate.tcgen05.test_attention_defects import CONFIG, ENTRIES, built_over, drawn
from emulate.test_attention_defects import named
from parity.attention_oracle import Mask, attend
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, without
from planted_choices import Choices, choices
from planted_runs import check_reported, in_orders

from tmaasync import Kernel, emulate
from tmaasync.ops._flash.abi import BATCH_LIMITS, partial_output
from tmaasync.ops._flash.config import Sizes, problem
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._flash.schedule import stream_k_schedule
from tmaasync.ops._flash.tensor_memory import TensorMemoryConfig

pytestmark = pytest.mark.slow

SPLIT: TensorMemoryConfig = replace(CONFIG, stream_k=True)
QUERIES, KEYS, SHARES, CTAS = 256, 500, 4, 2
DEFECTS = defects(
    "attention_tensor_memory.cu",
    (
        "all splits write one partial output",
        Edit("partials[tile.slot()]", "partials[0]"),
        RACE,
        r"race on partials",
    ),
    (
        "a partial output lies beyond the workspace",
        Edit("row / kConsumerRows]", "row / kConsumerRows + CONSUMERS]"),
        FAULT + RACE,
        r"partials",
    ),
    (
        "the accumulators of a split are not handed back",
        without("if (has_keys) arrive_by_warp(shared_.tiles[index].accumulators_ready);"),
        DEADLOCK,
        r"accumulators_ready",
    ),
    (
        "the accumulators of a split are handed back before they are loaded",
        without("tmem_wait_loads();", "take_accumulators"),
        RACE,
        r"tcgen05\.wait::ld",
    ),
    (
        "the blocks of all splits are multiplied",
        Edit("tile.blocks(problem).count()", "8", "multiply", 1),
        DEADLOCK + RACE + FAULT,
        r"blocks\.|tiles\[\d\]|full|empty",
    ),
)


def chosen() -> Choices:
    return choices(whole_text("attention_tensor_memory.cu"), DEFECTS)


@functools.cache
def prepared(text: str) -> tuple[Kernel, Any, Any, Any]:
    """Two tiles of eight blocks of keys in four shares, two for each CTA."""
    operands = drawn(QUERIES, KEYS)
    built, tiles = built_over(text, (*operands, np.zeros_like(operands[0])), SPLIT)
    sizes, scores = Sizes(QUERIES, KEYS, 1, 1, ENTRIES, 64), Scores.of(64, False, None, None, None)
    schedule = stream_k_schedule(sizes, SPLIT, SHARES)
    partials = np.zeros((schedule.partials, SPLIT.consumers), partial_output(64))
    table = np.ascontiguousarray(schedule.table).view(np.int32)
    arguments = (*tiles, 0, partials.view(np.float32), table, 0, 0, 0, SHARES // CTAS)
    records = (problem(sizes, scores), bytes(BATCH_LIMITS.itemsize))
    launch = built.prepare(CTAS, SPLIT.threads, (*arguments, *records))
    return built, launch, partials, schedule.splits


@pytest.fixture(autouse=True)
def chip() -> Any:
    with emulate.chip("sm_100a"):
        yield


@pytest.mark.sampled(2)
@pytest.mark.parametrize("defect", DEFECTS, ids=named)
def test_a_defect_is_reported_whatever_the_order(defect: Defect) -> None:
    built, launch, *_ = prepared(chosen().text_with(defect))
    chosen().choose(built, defect)

    check_reported(defect, launch)


def test_partial_outputs_add_up_to_attention_in_every_order() -> None:
    built, launch, partials, splits = prepared(chosen().text_with(None))
    chosen().choose(built, None)

    def check() -> None:
        partials.view(np.float32)[...] = np.nan
        launch()
        for (_, first, count, *_), q, k, v in zip(splits, *drawn(QUERIES, KEYS), strict=True):
            found = combined(partials[first : first + count])
            np.testing.assert_allclose(found, attend(q, k, v, Mask()).out[:, 0], atol=2e-3)

    in_orders(7, check)


def combined(parts: Any) -> Any:
    """Add up partial outputs [splits, consumers] in float64; return [rows, head_dim]."""
    factors = np.exp2(parts["row_max"] - parts["row_max"].max(0).astype(np.float64))
    sums = (factors * parts["row_sum"]).sum(0)
    rows = (factors[..., None] * parts["accumulators"]).sum(0) / sums[..., None]
    return rows.reshape(QUERIES, -1)
