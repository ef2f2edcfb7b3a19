"""Defects planted in attention_backward.cu are reported, whatever the order of the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulate.shipped import whole_text
from emulate.test_attention_defects import ORDERS, outcome
from parity.attention_backward_oracle import differentiate, saved
from parity.attention_oracle import Mask

from tmaasync import Kernel, _arrays
from tmaasync.ops._flash.backward import (
    BackwardConfig,
    BackwardVariant,
    backward_problem,
    maps_over,
)
from tmaasync.ops._flash.config import Sizes
from tmaasync.ops._flash.operands import Scores

CONFIG = BackwardConfig(64, 64)
QUERIES, KEYS = 230, 250

_ISSUE_S = "issue_transposed(scores, shared.rows.stages[kKeys], queries.peek());"
_FENCE = "fence_async_view_proxy();"
_RELEASE_DO = "gradients.release(gradients.index());"
_DV_IS_DONE = (
    "        wgmma_wait_group<2>();\n        wgmma_fence_operands(own_dv);\n"
    "        wgmma_fence_operands(p);\n"
)
_ISSUE_DQ_AND_DK = (
    "        QueryGradients dq;\n        issue_dq(dq);\n"
    "        issue_product(own_dk, ds, queries.peek());\n"
)
_READ_DS = "        wgmma_wait_group<1>();\n        wgmma_fence_operands(dq);\n"
_ARRIVE = "        if constexpr (kDsStages == 1) ds_is_read(1 - index).arrive();\n"
_LOAD_QUERIES = "        load_rows_and(q, own.lse, queries, shared.queries, of, visit.block);\n"
_LOAD_DO = "        load_rows_and(dout, own.delta, gradients, shared.gradients, of, visit.block);\n"
_READ_MESSAGE = (
    "        const HeadRows of = tile.rows_of_keys();\n"
    "        const i32 row = tile.position + consumer * kConsumerKeys;\n"
)
# Source text, and its replacement.
DEFECTS: dict[str, tuple[str, str]] = {
    "values are read before they have landed": (
        "rows.step();\n        rows.wait();\n        const i32 heads",
        "rows.step();\n        const i32 heads",
    ),
    "queries are read before they have landed": (
        f"ScoresOperand p, ds;\n        queries.wait();\n        {_ISSUE_S}",
        f"ScoresOperand p, ds;\n        {_ISSUE_S}",
    ),
    "dO is read before it has landed": (
        f"{_ISSUE_S}\n        gradients.wait();",
        _ISSUE_S,
    ),
    "S is read before its MMAs are done": (
        "wgmma_wait_group<HAS_SOFTCAP ? 0 : 1>();\n        wgmma_fence_operands(scores);",
        "wgmma_fence_operands(scores);",
    ),
    "dP is read before its MMAs are done": (
        "wgmma_wait_group<0>();\n        wgmma_fence_operands(dp);",
        "wgmma_fence_operands(dp);",
    ),
    "dS is read without a fence": (
        "fence_async_view_proxy();\n        sync_ds();",
        "sync_ds();",
    ),
    "dS is read before the other consumer has written it": (
        "fence_async_view_proxy();\n        sync_ds();",
        "fence_async_view_proxy();",
    ),
    "dS of a block overwrites the one before": (
        "return shared.ds[kDsStages == 1 ? 0 : queries.index()];",
        "return shared.ds[0];",
    ),
    "dO is released before dV has read it": (
        f"{_ISSUE_DQ_AND_DK}{_DV_IS_DONE}        {_RELEASE_DO}\n",
        f"        {_RELEASE_DO}\n{_ISSUE_DQ_AND_DK}{_DV_IS_DONE}",
    ),
    "dQ is read before its MMAs are done": (
        "wgmma_wait_group<1>();\n        wgmma_fence_operands(dq);",
        "wgmma_fence_operands(dq);",
    ),
    "queries are released before dK has read them": (
        (
            "wgmma_wait_group<0>();\n        wgmma_fence_operands(own_dk);\n"
            "        wgmma_fence_operands(ds);\n        queries.release(queries.index());"
        ),
        "queries.release(queries.index());",
    ),
    "results are written over those that TMA reads": (
        "hand_over().empty().sync();\n        return",
        "hand_over().empty().arrive();\n        return",
    ),
    "results are sent without a fence": (
        f"{_FENCE}\n            send(",
        "send(",
    ),
    "results are not handed over": (
        "        hand_over().full().arrive();\n",
        "",
    ),
    "results are sent before they are handed over": (
        "hand_over.full().sync();\n        if",
        "hand_over.full().arrive();\n        if",
    ),
    "memory is handed back while TMA reads it": (
        "send(shared.dq[stage][consumer]);\n            wait_group_read<0>();",
        "send(shared.dq[stage][consumer]);",
    ),
    "memory is not handed back": (
        "__syncwarp();\n        hand_over.empty().arrive();",
        "__syncwarp();",
    ),
    "dK is staged over dQ": (
        "(staged(taken_part()), own_dk)",
        "(staged(shared.dq[stage][index]), own_dk)",
    ),
    "the warps that add dQ do not release the keys": (
        "rows.release(kKeys);\n        rows.step();",
        "rows.step();",
    ),
    "the warps that add dQ do not release the values": (
        "rows.wait();\n        rows.release(kValues);",
        "rows.wait();",
    ),
    "the warps that add dQ read the message after they have released it": (
        f"{_READ_MESSAGE}        rows.release(kKeys);\n",
        f"        rows.release(kKeys);\n{_READ_MESSAGE}",
    ),
    "the log-sum-exp is not loaded": (
        "tma_load_1d(&values, stage.full(), &ring.side[stage.index()], sizeof(RowValues));",
        "",
    ),
    "a block expects too few bytes": (
        "kBlockBytes = Queries::kStageBytes + sizeof(RowValues);",
        "kBlockBytes = Queries::kStageBytes;",
    ),
    "the message is written after the stage is published": (
        "ring_.side[index] = message;\n        ring_.full[index].expect_bytes(bytes);",
        "ring_.full[index].expect_bytes(bytes);\n        ring_.side[index] = message;",
    ),
    "keys are not released": (
        "rows.release(kKeys);\n        rows.release(kValues);",
        "rows.release(kValues);",
    ),
    "values are not released": (
        "rows.release(kValues);\n        rows.step();\n        hand_over_gradients",
        "rows.step();\n        hand_over_gradients",
    ),
}
_NO_FENCE_BEFORE = (
    "        ptx::fence_proxy_async_global();\n    }\n\n    // Lets",
    "    }\n\n    // Lets",
)
# Defects between two CTAs that add to the same dQ.
DEFECTS_OF_TURNS: dict[str, tuple[str, str]] = {
    "the turn is passed before the addition is complete": (
        "wait_group<0>();\n        ptx::fence_proxy_async_global();",
        "ptx::fence_proxy_async_global();",
    ),
    "the turn is passed without a release": (
        "ptx::red_release_gpu_add(states + turn.part, 1);",
        "atomicAdd(states + turn.part, 1);",
    ),
    "two add first": (
        "ptx::atom_acquire_gpu_cas(state, 0, kClaimed)",
        "ptx::ld_acquire_gpu(state)",
    ),
}
# Steps of the turns that no kernel needs. Other CTAs access dQ by TMA alone:
#
# * An implicit proxy fence between the generic and the async proxy follows the completion of a
#   bulk copy (PTX ISA, "Async Proxy"). It lies between the copies of two CTAs with no other.
# * TMA does not read L1, which an acquire invalidates, and is issued after the poll has ended.
#   The reads of threads do: test_stale_reads.py.
HARMLESS: dict[str, tuple[tuple[str, str], ...]] = {
    "no proxy fence after the addition": (
        ("wait_group<0>();\n        ptx::fence_proxy_async_global();", "wait_group<0>();"),
    ),
    "no proxy fence before the addition": (_NO_FENCE_BEFORE,),
    "no proxy fence": (
        ("wait_group<0>();\n        ptx::fence_proxy_async_global();", "wait_group<0>();"),
        _NO_FENCE_BEFORE,
    ),
    "no acquire": (
        ("ptx::atom_acquire_gpu_cas(state, 0, kClaimed)", "atomicCAS(state, 0, kClaimed)"),
        (
            "turn.state = ptx::ld_acquire_gpu(states + turn.part);",
            "turn.state = atomicAdd(states + turn.part, 0);",
        ),
    ),
}
# Blocks of 128 queries leave room for one stage of dS.
ONE_STAGE = BackwardConfig(64, 128)
DEFECTS_OF_ONE_STAGE: dict[str, tuple[str, str]] = {
    "dS is overwritten while the other consumer reads it": (
        "if constexpr (kDsStages == 1) ds_is_read(index).sync();",
        "",
    ),
    "dS is handed back before dQ has read it": (
        f"{_READ_DS}{_ARRIVE}",
        f"{_ARRIVE}{_READ_DS}",
    ),
}
# For blocks of 80 queries, dQ is computed transposed.
TRANSPOSED = BackwardConfig(128, 80)
# No defect by itself: queries of a block are loaded first, and their stage is released last, so
# that no load of dO comes before dV of the block is done.
LOADS_DO_FIRST = (_LOAD_QUERIES + _LOAD_DO, _LOAD_DO + _LOAD_QUERIES)


class Prepared(NamedTuple):
    launch: Callable[[], Any]
    outputs: tuple[Any, ...]
    wanted: tuple[Any, ...]


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
    return Prepared(run, (dk, dv), (wanted_dk, wanted_dv))


def row_statistics(of_forward: Any, dout: Any, blocks: int, block_m: int) -> Any:
    """Log-sum-exp as a power of 2, and delta, of every block; infinity and 0 beyond the last."""
    statistics = np.zeros((blocks * block_m, 2), np.float32)
    statistics[:, 0] = np.inf
    statistics[:QUERIES, 0] = of_forward.lse[0] * np.log2(np.e)
    statistics[:QUERIES, 1] = (of_forward.out.astype(float) * dout.astype(float)).sum((1, 2))
    if dout.shape[-1] == 128:  # RowValues in quads
        statistics = statistics.reshape(-1, 2, 4, 2, 2).swapaxes(1, 2)
    return np.ascontiguousarray(statistics.reshape(blocks, block_m, 2).transpose(0, 2, 1))


@pytest.mark.parametrize("defect", [*DEFECTS, *DEFECTS_OF_TURNS, *DEFECTS_OF_ONE_STAGE])
def test_a_defect_is_reported_whatever_the_order(defect: str) -> None:
    text = whole_text("attention_backward.cu")
    planted = (DEFECTS | DEFECTS_OF_TURNS | DEFECTS_OF_ONE_STAGE)[defect]
    for old, new in (LOADS_DO_FIRST, planted):
        assert text.count(old) == 1
        text = text.replace(old, new)
    found = prepared(
        text,
        ctas=2 if defect in DEFECTS_OF_TURNS else 1,
        config=ONE_STAGE if defect in DEFECTS_OF_ONE_STAGE else CONFIG,
    )

    assert all(outcome(found.launch, *order) for order in ORDERS)


@pytest.mark.parametrize("config", [CONFIG, ONE_STAGE, TRANSPOSED], ids=str)
def test_without_a_defect_there_is_none(config: BackwardConfig) -> None:
    text = whole_text("attention_backward.cu").replace(*LOADS_DO_FIRST)
    check_sound(prepared(text, config=config))


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_like_a_defect_is_not_reported(name: str) -> None:
    text = whole_text("attention_backward.cu")
    for old, new in HARMLESS[name]:
        assert text.count(old) == 1
        text = text.replace(old, new)

    check_sound(prepared(text, ctas=2))


def check_sound(found: Prepared) -> None:
    for order in ORDERS[:2]:
        for one in found.outputs:
            one[...] = np.nan
        assert outcome(found.launch, *order) is None
        for one, wanted in zip(found.outputs, found.wanted, strict=True):
            assert (abs(one - wanted.gradient) <= wanted.bound).all()
