"""Defects planted in attention_tensor_memory.cu are reported, whatever the order of the threads."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from emulate.shipped import whole_text
from emulate.test_attention_defects import named
from parity.attention_oracle import Mask, assert_close, attend
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, before, defects, without
from planted_choices import Choices, choices
from planted_runs import check_reported, in_orders

from tmaasync import Kernel, _arrays, emulate
from tmaasync.ops._flash.abi import BATCH_LIMITS
from tmaasync.ops._flash.config import Sizes, Variant, problem
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._flash.tensor_memory import TensorMemoryConfig
from tmaasync.ops._flash.tiles import attention_tiles

pytestmark = pytest.mark.slow

CONFIG = TensorMemoryConfig(64, 4, 64)
QUERIES, KEYS, ENTRIES = 300, 250, 2

FENCED = r"(?s)tensor memory.*tcgen05\.fence::(before|after)_thread_sync.*tcgen05-fence"
OF_TENSOR_MEMORY = r"(?s)tensor memory.*tcgen05\.(mma|ld|st)"
RELEASE = "if (tile + 1 == kQueryTiles) stages_.release(values);"
DEFECTS = defects(
    "attention_tensor_memory.cu",
    ("no fence before P and O are handed over",
     without("tcgen05_fence_before_thread_sync();", "arrive_by_warp"), RACE, FENCED),
    ("no fence before O += P V", without("tcgen05_fence_after_thread_sync();", "multiply_values"),
     RACE, FENCED),
    ("no fence before S is loaded", without("tcgen05_fence_after_thread_sync();", "load_scores"),
     RACE, FENCED),
    ("P is handed over before it is stored", without("tmem_wait_stores();", "store_probabilities"),
     RACE, OF_TENSOR_MEMORY),
    ("P is not awaited", without("barriers.probabilities_full.wait(blocks_ & 1);"), RACE + FAULT,
     OF_TENSOR_MEMORY),
    ("scores are used before they are loaded", without("tmem_wait_loads();", "load_scores"), RACE,
     r"tcgen05\.wait::ld"),
    ("S overwrites P while it is multiplied",
     without("barriers.accumulators_full.wait(blocks & 1 ^ 1);"), RACE,
     r"(?s)two tcgen05\.mma in order only if .*same accumulators"),
    ("O is rescaled while the MMA runs",
     without("barriers.accumulators_ready.wait(blocks_ & 1);"), RACE, OF_TENSOR_MEMORY),
    ("rescaled O is handed over before it is stored", without("tmem_wait_stores();", "rescale"),
     RACE, OF_TENSOR_MEMORY),
    ("O is stored before it is complete", without("barriers.accumulators_full.wait(blocks_ & 1);"),
     RACE + FAULT, OF_TENSOR_MEMORY),
    ("O is handed back before it is loaded",
     without("tmem_wait_loads();", "take_accumulators"), RACE, r"tcgen05\.wait::ld"),
    ("values are released before their MMAs are issued",
     (before("multiply_values(tile, values, accumulates);",
             "if (tile == 0) stages_.release(values);", "multiply_block"), without(RELEASE)),
     RACE, r"race on blocks\.stages\[\d\]"),
    ("queries are released before their last MMA",
     (before("tcgen05_mma<Q, K>(...);", "if (is_last) tcgen05_commit(barriers.queries_empty);"),
      without("if (is_last) tcgen05_commit(barriers.queries_empty);")),
     RACE, r"race on queries\[\d\]"),
    ("the last factor overwrites another", without("barriers_.accumulators_ready.wait(...);"),
     RACE + DEADLOCK, r"row_factors"),
    ("staged output is overwritten", without("drain();", "Correction::store"), RACE,
     r"(?s)race on output.*wait_group_read"),
    ("the output is stored without a proxy fence",
     without("fence_async_view_proxy();", "Correction::store"), RACE,
     r"(?s)race on output.*fence_async_view_proxy\(\)"),
    ("S is never committed", without("tcgen05_commit(barriers.scores_full);"), DEADLOCK,
     r"scores_full"),
    ("the first P V adds to old accumulators",
     Edit("multiply_block(block > 0, ...)", "multiply_block(true, block + 2 == blocks)"), FAULT,
     r"nothing has written"),
)  # fmt: skip


def chosen() -> Choices:
    return choices(whole_text("attention_tensor_memory.cu"), DEFECTS)


@functools.cache
def drawn(queries: int, keys: int) -> tuple[Any, ...]:
    """Return q, k and v; scores differ so much that rows are rescaled."""
    rng = np.random.default_rng(0)
    shapes = ((ENTRIES, rows, 1, 64) for rows in (queries, keys, keys))
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
    return 8 * q, k, v


def built_over(text: str, arrays: tuple[Any, ...], config: TensorMemoryConfig) -> tuple[Any, Any]:
    """Return the kernel with the text for q, k, v and an output, and their tiles."""
    q, k, v, out = map(_arrays.view, arrays)
    tiles = attention_tiles(q, k, v, out, config)
    kernel = Kernel(
        text,
        "attention_tensor_memory",
        types=dict(zip(("QTile", "KTile", "VTile", "OTile"), tiles, strict=True)),
        constants={**config.constants, **Variant().constants, "STAGES": 4},
        arch="sm_100a",
    )
    return kernel, tiles


@functools.cache
def prepared(text: str) -> tuple[Kernel, Any, Any]:
    """Four tiles of a CTA, four blocks of keys for two stages each."""
    operands = drawn(QUERIES, KEYS)
    out = np.full_like(operands[0], np.nan)
    built, tiles = built_over(text, (*operands, out), CONFIG)
    sizes, scores = Sizes(QUERIES, KEYS, 1, 1, ENTRIES, 64), Scores.of(64, False, None, None, None)
    numbers = problem(sizes, scores)
    arguments = (*tiles, *[0] * 7, numbers, bytes(BATCH_LIMITS.itemsize))
    return built, built.prepare(1, CONFIG.threads, arguments), out


def with_defect(defect: Defect | None) -> tuple[Any, Any]:
    built, launch, out = prepared(chosen().text_with(defect))
    chosen().choose(built, defect)
    return launch, out


@pytest.fixture(autouse=True)
def chip() -> Any:
    with emulate.chip("sm_100a"):
        yield


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", DEFECTS, ids=named)
def test_a_defect_is_reported_whatever_the_order(defect: Defect) -> None:
    launch, _ = with_defect(defect)

    check_reported(defect, launch)


def test_without_a_defect_there_is_none() -> None:
    launch, out = with_defect(None)

    def check() -> None:
        out[...] = np.nan
        launch()
        for one, q, k, v in zip(out, *drawn(QUERIES, KEYS), strict=True):
            assert_close(one, None, attend(q, k, v, Mask()), v)

    in_orders(13, check)
