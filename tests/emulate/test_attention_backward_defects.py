"""Defects planted in attention_backward.cu are reported, whatever the order of the threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulate.shipped import whole_text
from emulate.test_attention_defects import named
from parity.attention_backward_oracle import differentiate, saved
from parity.attention_oracle import Mask
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, edited, exchanged, without
from planted_choices import choices
from planted_runs import check_reported, in_orders

from tmaasync import Kernel, _arrays
from tmaasync.ops._flash.backward import (
    BackwardConfig,
    BackwardVariant,
    backward_problem,
    maps_over,
)
from tmaasync.ops._flash.config import Sizes
from tmaasync.ops._flash.operands import Scores

pytestmark = pytest.mark.slow

CONFIG = BackwardConfig(64, 64)
QUERIES, KEYS = 230, 250

_BLOCK, _TILE = "Consumer::compute_block", "Consumer::compute"
_SEND = "Reduction::send_part"
DEFECTS = defects(
    "attention_backward.cu",
    ("dS is read before the other consumer has written it", without("sync_ds();", _BLOCK),
     RACE + FAULT, r"ds\[0\]"),
    ("results are written over those that TMA reads", Edit("sync", "arrive", "taken_part"), RACE,
     r"race on dq\[\d\]"),
    ("results are sent before they are handed over",
     Edit("hand_over.full().sync()", "hand_over.full().arrive()"), FAULT,
     r"dq\[\d\].* which nothing has written"),
    ("memory is handed back while TMA reads it", without("wait_group_read<0>();", _SEND), RACE,
     r"race on dq\[\d\](.|\n)*wait_group_read"),
    ("dK is staged over dQ",
     Edit("(staged(taken_part()), own_dk)", "(staged(shared.dq[stage][index]), own_dk)"), RACE,
     r"race on dq\[\d\]"),
    ("the message is written after the stage is published",
     exchanged("ring_.side[index] = message;", "ring_.full[index].expect_bytes(bytes);"), RACE,
     r"race on rows\.side\[0\]"),
)  # fmt: skip
# Defects of two CTAs that add to the same dQ.
DEFECTS_OF_TURNS = defects(
    "attention_backward.cu",
    ("the turn is passed before the addition is complete",
     without("wait_group<0>();", "Turns::pass"), RACE, r"race on dq\[0\]"),
    ("the turn is passed without a release", Edit("ptx::red_release_gpu_add", "atomicAdd", "Turns"),
     RACE, r"race on dq\[0\]"),
    ("two add first",
     Edit("ptx::atom_acquire_gpu_cas(state, 0, kClaimed)", "ptx::ld_acquire_gpu(state)"),
     RACE + DEADLOCK, r"race on dq\[0\]|read of turns"),
)  # fmt: skip
# The turns have more than they need. Other CTAs reach dQ by TMA alone:
#
# * An implicit proxy fence between the generic and the async proxy follows the completion of a
#   bulk copy (PTX ISA, "Async Proxy"). It lies between the copies of two CTAs with no other.
# * TMA does not read L1, which an acquire invalidates, and is issued after the poll has ended.
#   The reads of threads do: test_stale_reads.py.
HARMLESS = defects(
    "attention_backward.cu",
    ("no proxy fence",
     (without("ptx::fence_proxy_async_global();", "Turns::pass"),
      without("ptx::fence_proxy_async_global();", "Turns::await"))),
    ("no acquire",
     (Edit("ptx::atom_acquire_gpu_cas", "atomicCAS", "Turns"),
      Edit("ptx::ld_acquire_gpu(...)", "atomicAdd(states + turn.part, 0)", "Turns::await"))),
)  # fmt: skip
# 128 queries to a block leave room for one stage of dS.
ONE_STAGE = BackwardConfig(64, 128)
DEFECTS_OF_ONE_STAGE = defects(
    "attention_backward.cu",
    ("dS is overwritten while the other consumer reads it",
     without("if constexpr (kDsStages == 1) ds_is_read(index).sync();"), RACE, r"race on ds\[0\]"),
    ("dS is handed back before dQ has read it",
     exchanged("wgmma_wait_group<1>(); wgmma_fence_operands(dq);",
               "if constexpr (kDsStages == 1) ds_is_read(1 - index).arrive();"), RACE,
     r"race on ds\[0\]"),
)  # fmt: skip
# No defect by itself: queries of a block are loaded first, and their stage is released last, so
# that no load of dO comes before dV of the block is done.
LOADS_DO_FIRST = exchanged(
    "load_rows_and(q, own.lse, queries, shared.queries, of, visit.block);",
    "load_rows_and(dout, own.delta, gradients, shared.gradients, of, visit.block);",
)


class Prepared(NamedTuple):
    kernel: Kernel
    launch: Callable[[], Any]
    outputs: tuple[Any, ...]
    wanted: tuple[Any, ...]


@functools.cache
def prepared(text: str, ctas: int = 1, config: BackwardConfig = CONFIG) -> Prepared:
    """Two tiles of keys, 230 queries; dk and dv, and the right ones."""
    blocks = -(-QUERIES // config.block_m)
    rng = np.random.default_rng(0)
    sides, columns = (QUERIES, KEYS, KEYS, QUERIES), config.head_dim
    q, k, v, dout = (rng.standard_normal((rows, 1, columns)).astype(np.float16) for rows in sides)
    of_forward = saved(q, k, v, Mask())
    dk, dv = (np.full_like(k, np.nan) for _ in range(2))
    views = [_arrays.view(one[None]) for one in (q, k, v, of_forward.out, dout, q, dk, dv)]
    maps = maps_over(views, config, is_packed=False)
    variant = BackwardVariant()
    built = Kernel(
        text,
        "attention_backward",
        types={"QTile": maps.q, "KTile": maps.k},
        constants={**config.constants, **variant.constants},
    )
    statistics = row_statistics(of_forward, dout, blocks, config.block_m)
    dq = np.full((blocks, config.block_m, columns), np.nan, np.float32)
    turns, counter = np.zeros(2 * blocks, np.uint32), np.zeros(2, np.uint32)
    scores = Scores.of(columns, False, None, None, None)
    sizes = Sizes(QUERIES, KEYS, 1, 1, 1, columns)
    numbers = backward_problem(sizes, scores, config, QUERIES, is_packed=False)
    given = (*maps[:3], maps.dout, maps.dk, maps.dv, statistics, dq, turns, counter, 0, 0, numbers)
    launch = built.prepare(ctas, 384, given)

    def run() -> None:
        counter[:] = 0
        turns[:] = 0
        launch()

    _, wanted_dk, wanted_dv = differentiate(dout, q, k, v, Mask())
    return Prepared(built, run, (dk, dv), (wanted_dk, wanted_dv))


def row_statistics(of_forward: Any, dout: Any, blocks: int, block_m: int) -> Any:
    """Log-sum-exp as a power of 2, and delta, of every block; infinity and 0 beyond the last."""
    statistics = np.zeros((blocks * block_m, 2), np.float32)
    statistics[:, 0] = np.inf
    statistics[:QUERIES, 0] = of_forward.lse[0] * np.log2(np.e)
    statistics[:QUERIES, 1] = (of_forward.out.astype(float) * dout.astype(float)).sum((1, 2))
    if dout.shape[-1] == 128:  # RowValues in quads
        statistics = statistics.reshape(-1, 2, 4, 2, 2).swapaxes(1, 2)
    return np.ascontiguousarray(statistics.reshape(blocks, block_m, 2).transpose(0, 2, 1))


ALL = DEFECTS + DEFECTS_OF_TURNS + DEFECTS_OF_ONE_STAGE


def with_defect(defect: Defect | None, config: BackwardConfig = CONFIG, ctas: int = 1) -> Prepared:
    text = edited(whole_text("attention_backward.cu"), [LOADS_DO_FIRST])
    chosen = choices(text, ALL + HARMLESS)
    found = prepared(chosen.text_with(defect), ctas, config)
    chosen.choose(found.kernel, defect)
    return found


@pytest.mark.parametrize("defect", ALL, ids=named)
def test_a_defect_is_reported_whatever_the_order(defect: Defect) -> None:
    config = ONE_STAGE if defect in DEFECTS_OF_ONE_STAGE else CONFIG

    found = with_defect(defect, config, ctas=2 if defect in DEFECTS_OF_TURNS else 1)

    check_reported(defect, found.launch)


@pytest.mark.parametrize("harmless", [None, *HARMLESS], ids=str)
def test_what_is_no_defect_is_not_reported(harmless: Defect | None) -> None:
    check_sound(with_defect(harmless, ctas=2))


def check_sound(found: Prepared) -> None:
    def check() -> None:
        for one in found.outputs:
            one[...] = np.nan
        found.launch()
        for one, wanted in zip(found.outputs, found.wanted, strict=True):
            assert (abs(one - wanted.gradient) <= wanted.bound).all()

    in_orders(2, check)
