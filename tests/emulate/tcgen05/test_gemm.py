"""GEMMs by tcgen05.mma: right in every order of the threads, and their defects are reported."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.tcgen05.gemms import COLUMNS, GEMM, Problem, problem
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, after, before, defects, without
from planted_choices import Choices, choices
from planted_runs import check_reported, in_orders

from tmaasync import Kernel, trace
from tmaasync.trace.lanes import Activity, find_lanes

MMA = "tcgen05_mma<Tcgen05Kind::kF16>(d, a, b, kInstruction, accumulates);"
AFTER, BEFORE = "tcgen05_fence_after_thread_sync();", "tcgen05_fence_before_thread_sync();"
LOAD = "tcgen05_ld<Tcgen05Shape::k32x32b>(held, d + (warp * 32 << 16) + column);"
DEFECTS = defects(
    "gemm",
    ("the accumulators are drained before the commit completes",
     without("shared.accumulated[half].wait(tile / 2 & 1);"), RACE + FAULT,
     r"(?s)tensor memory.*tcgen05\.(mma|ld).*commit|nothing has written|tensor-memory"),
    ("no fence after the wait for the accumulators", without(AFTER, "drain"), RACE,
     r"(?s)tensor memory.*the second executes tcgen05\.fence::after_thread_sync.*tcgen05-fence"),
    ("no fence before the accumulators are released", without(BEFORE), RACE,
     r"(?s)tensor memory.*needs its fences around the barrier.*before_thread_sync.*tcgen05-fence"),
    ("no wait for the loads of accumulators", without("tcgen05_wait_ld();"), RACE,
     r"(?s)tcgen05\.ld may still read the columns.*tcgen05\.wait::ld"),
    ("accumulators are rewritten without a wait",
     without("shared.drained[half].wait((tile / 2 & 1) ^ 1);"), RACE,
     r"(?s)tensor memory.*tcgen05\.(ld|mma)"),
    ("the first step adds to what nobody wrote",
     Edit("accumulates = step > 0 || k > 0", "accumulates = true"), FAULT,
     r"tcgen05\.mma reads D of lane 0 from column \d+ .*nothing has written.*enable-input-d false"),
    ("the stage is released before its mma complete",
     Edit("tcgen05_commit(shared.empty[stage].address());", "shared.empty[stage].arrive();"), RACE,
     r"(?s)race on [ab]\[\d\].*tcgen05\.mma may still be reading the stage.*commit"),
    ("operands are multiplied before they have landed",
     without("shared.full[stage].wait(i / kStages & 1);"), RACE + FAULT,
     r"may not have landed|tcgen05\.mma reads [AB] at .*nothing has written"),
    ("every lane multiplies", Edit("warp == 5 && elect()", "warp == 5"), FAULT,
     r"tcgen05\.mma is issued by lanes \d+ and \d+ of warp 5.*elect\.sync.*tcgen05-by-lanes"),
    ("a commit to the wrong barrier",
     Edit("tcgen05_commit(shared.accumulated[half].address());",
          "tcgen05_commit(shared.accumulated[half ^ 1].address());"), DEADLOCK + FAULT + RACE,
     r"accumulated\[\d\]|tensor memory"),
    ("D lies at the shared address",
     Edit("d = shared.tensor + half * kN;", "d = shared_address(&shared.tensor) + half * kN;",
          "multiply"), FAULT,
     r"tcgen05\.mma.*(lane|columns)"),
    ("D beyond the allocation",
     Edit("(d, a, b, kInstruction,", "(d + 2 * kN, a, b, kInstruction,"),
     FAULT, r"tcgen05\.mma uses columns 128 to 191 .*unallocated_columns_access"),
    ("the descriptor of N disagrees",
     Edit("b, kInstruction,", "b, kInstruction + (4 << 17),"),
     FAULT + RACE, r"tcgen05\.mma"),
    ("another kind", Edit(MMA, "tcgen05_mma<Tcgen05Kind::kTF32>(d, a, b, kInstruction, "
     "accumulates);"), FAULT, r"kind::tf32"),
    ("half of the columns by an mma of another shape",
     after(MMA, "if (k == 3) tcgen05_mma<Tcgen05Kind::kF16>(d, a, b, kInstruction - (4 << 17), "
     "true);"), RACE, r"(?s)two tcgen05\.mma in order only if .*same accumulators, shape and kind"),
    ("mixed groups",
     Edit("tcgen05_relinquish_alloc_permit();", "tcgen05_relinquish_alloc_permit<2>();"), FAULT,
     r"relinquish_alloc_permit has cta_group::2, and an earlier .* cta_group::1"),
    ("the tensor memory is freed at once", before("if (warp == 4 && elect())",
     "if (warp == 0) tcgen05_dealloc(shared.tensor, 2 * kN);"), FAULT + RACE,
     r"not allocated|dealloc|did not return"),
)  # fmt: skip
TILES, STEPS = 3, 3


@pytest.fixture(scope="module")
def texts() -> Choices:
    return choices(GEMM, DEFECTS)


@pytest.fixture(scope="module")
def one() -> Problem:
    return problem(TILES, STEPS)


def run(texts: Choices, one: Problem, defect: Defect | None) -> None:
    kernel = built(texts.text_with(defect), one)
    texts.choose(kernel, defect)
    one.out.fill(0)
    kernel(1, 192, (one.a, one.b, one.out, TILES, STEPS))


_BUILT: dict[str, Kernel] = {}


def built(text: str, one: Problem) -> Kernel:
    if text not in _BUILT:
        types = {"TileA": one.a, "TileB": one.b}
        constants = {"kN": COLUMNS}
        _BUILT[text] = Kernel(text, "gemm", types=types, constants=constants, arch="sm_100a")
    return _BUILT[text]


def test_a_gemm_is_right_in_every_order(texts: Choices, one: Problem) -> None:
    def check() -> None:
        run(texts, one, None)
        np.testing.assert_allclose(one.out, one.exact, atol=1e-4)

    in_orders(50, check)


def test_a_trace_has_lanes_for_loads_mmas_and_epilogue(texts: Choices, one: Problem) -> None:
    kernel = built(texts.text_with(None), one)
    texts.choose(kernel, None)
    with trace.record() as kept:
        kernel(1, 192, (one.a, one.b, one.out, TILES, STEPS))
    lanes = {warp: lane for lane in find_lanes(kept.launches[0], block=0) for warp in lane.warps}
    busy = {(span.activity, span.name) for span in lanes[5].spans}
    assert (Activity.COMPUTING, "tcgen05.mma") in busy
    assert lanes[4].loads
    waited = {span.name.partition("[")[0] for span in lanes[0].spans if span.activity.is_wait}
    assert "accumulated" in waited
    others = [span for warp in range(5) for span in lanes[warp].spans]
    assert not any(span.activity is Activity.COMPUTING for span in others)
    computing = [
        share.on for role in kept.launches[0].summary().roles for share in role.shares
        if share.activity is Activity.COMPUTING
    ]  # fmt: skip
    assert computing == ["tcgen05.mma"]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(texts: Choices, one: Problem, defect: Defect) -> None:
    check_reported(defect, lambda: run(texts, one, defect))
