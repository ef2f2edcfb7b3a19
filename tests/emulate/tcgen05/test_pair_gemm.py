"""A GEMM by a pair of CTAs is right in every order, and its defects are reported."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from emulate.tcgen05.gemms import PAIR_GEMM, Problem, problem
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, before, defects, exchanged, without
from planted_choices import choices
from planted_runs import check_reported, in_orders

from tmaasync import EmulatedFault, Kernel

COLUMNS, STEPS = 128, 3
ALLOC = "tcgen05_alloc<2>(shared_address(&shared.tensor), kN);"
DEFECTS = defects(
    "pair_gemm",
    ("an allocation before the cluster synchronises", exchanged("cluster_sync();",
     "if (warp == 0) { tcgen05_alloc<2>(shared_address(&shared.tensor), kN); "
     "tcgen05_relinquish_alloc_permit<2>(); }"), FAULT,
     r"nothing shows that CTA \d.* has started.*tcgen05-pair-start"),
    ("nothing shows that the peer runs", Edit("cluster_sync(); if (warp == 0) { tcgen05_alloc",
     "__syncthreads(); if (warp == 0) { tcgen05_alloc"), FAULT,
     r"cta_group::2, and nothing shows that CTA \d.* has started. Call cluster_sync\(\)"),
    ("unequal shared offsets",
     Edit("&shared.tensor), kN);", "&shared.tensor) - 4 * rank, kN);"), FAULT,
     r"tcgen05\.alloc with a different shared offset"),
    ("unequal warps", Edit("if (warp == 0) { tcgen05_alloc", "if (warp == rank) { tcgen05_alloc"),
     FAULT, r"tcgen05\.alloc with a different warp: (0 and 1|1 and 0)"),
    ("unequal columns", Edit("&shared.tensor), kN);", "&shared.tensor), kN << rank);"), FAULT,
     "tcgen05.alloc with a different number of columns"),
    ("one CTA allocates", before(ALLOC, "if (rank == 0)"), FAULT,
     r"waits for ever for CTA 1, the other one of the pair"),
    ("the commit reaches one CTA",
     Edit("tcgen05_commit_multicast<2>(shared.accumulated.address(), pair_mask());",
          "tcgen05_commit_multicast<2>(shared.accumulated.address(), 1);"), DEADLOCK,
     r"block \(1, 0, 0\), threads 0-127 .*on accumulated"),
    ("the stage of one CTA is released",
     Edit("tcgen05_commit_multicast<2>(shared.empty[stage].address(), pair_mask());",
          "tcgen05_commit<2>(shared.empty[stage].address());"), DEADLOCK,
     r"block \(1, 0, 0\), thread 128 .*on empty\[\d\]"),
    ("mixed groups",
     Edit("tcgen05_commit_multicast<2>(shared.empty[stage].address(), pair_mask());",
          "tcgen05_commit_multicast<1>(shared.empty[stage].address(), pair_mask());"), FAULT,
     r"tcgen05\.commit has cta_group::1, and an earlier .* cta_group::2"),
    ("bytes of one CTA alone are expected",
     Edit("expect_bytes(2 * (TileA::kBytes + TileB::kBytes));",
          "expect_bytes(TileA::kBytes + TileB::kBytes);"), FAULT + RACE + DEADLOCK,
     r"may not have landed|nothing has written|bytes|expect"),
    ("a CTA's loads credit its own barrier",
     Edit("even_cta_of_pair(shared.full[stage].address())", "shared.full[stage].address()"),
     DEADLOCK + FAULT, r"full\[\d\]"),
    ("a stage is loaded before the pair has multiplied it",
     without("shared.empty[stage].wait((step / kStages & 1) ^ 1);"), RACE + FAULT,
     r"race on [ab]\[\d\]|bytes|expect"),
    ("operands are multiplied before both CTAs have loaded",
     without("shared.full[stage].wait(step / kStages & 1);"), RACE + FAULT,
     r"may not have landed|nothing has written"),
    ("the odd CTA reads what the even one multiplies",
     without("shared.accumulated.wait(0);"), RACE + FAULT,
     r"(?s)tensor memory.*tcgen05\.(mma|ld)|nothing has written"),
    ("no fence after the wait for a commit of the pair",
     without("tcgen05_fence_after_thread_sync();"), RACE,
     r"(?s)tensor memory.*tcgen05\.fence::after_thread_sync.*tcgen05-fence"),
    ("the odd CTA waits for the cluster while the even one waits for its loads",
     before("if (warp == 4 && elect()) {", "if (rank == 1) cluster_sync();"), DEADLOCK,
     r"barrier\.cluster|full\[\d\]"),
    ("barriers are initialised after the cluster synchronises", exchanged(
        "if (threadIdx.x == 0) { for (u32 i = 0; i < kStages; ++i) { shared.full[i].init(); "
        "shared.empty[i].init(); } shared.accumulated.init(); fence_barrier_init(); }",
        "cluster_sync();"), FAULT + RACE + DEADLOCK, r"init|full\[\d\]|empty\[\d\]"),
    ("the odd CTA leaves while its peer multiplies",
     before("if (warp == 4 && elect()) {", "if (rank == 1 && warp != 4) return;"),
     FAULT + RACE + DEADLOCK, r"ends|ended|CTA 1|has left|exit"),
    ("the stages' barriers are of the odd CTA",
     Edit("if (rank == 0) shared.full[stage].expect_bytes",
          "if (rank == 1) shared.full[stage].expect_bytes"),
     DEADLOCK + FAULT, r"full\[\d\]"),
    ("columns are freed before the peer has drained them",
     Edit("cluster_sync(); if (warp == 0) tcgen05_dealloc", "if (warp == 0) tcgen05_dealloc"),
     RACE + FAULT, r"tcgen05\.dealloc|not allocated"),
)  # fmt: skip
OF_TWO_PAIRS = defects(
    "pair_gemm",
    ("the commit's mask is of the first pair",
     Edit("return 3 << (block_rank_in_cluster() & ~1u);", "return 3;"), DEADLOCK + FAULT,
     r"block \([23], 0, 0\).*on (empty|accumulated)|arrivals|empty\[\d\]"),
    ("columns of both pairs are freed by the first",
     Edit("if (warp == 0) tcgen05_dealloc", "if (warp == 0 && blockIdx.x < 2) tcgen05_dealloc"),
     FAULT, r"block \([23], 0, 0\).*(tensor memory|columns)"),
)  # fmt: skip
TEXTS = choices(PAIR_GEMM, (*DEFECTS, *OF_TWO_PAIRS))
ONE, TWO = problem(1, STEPS, 256, COLUMNS), problem(2, STEPS, 256, COLUMNS)


@functools.cache
def built(text: str) -> Kernel:
    types = {"TileA": ONE.a, "TileB": ONE.b}
    return Kernel(text, "pair_gemm", types=types, constants={"kN": COLUMNS}, arch="sm_100a")


def run(one: Problem, defect: Defect | None, cluster: int = 2) -> None:
    kernel = built(TEXTS.text_with(defect))
    TEXTS.choose(kernel, defect)
    one.out.fill(0)
    kernel(len(one.out) // 128, 192, (one.a, one.b, one.out, STEPS), cluster=cluster)


def check_right(one: Problem, cluster: int = 2) -> None:
    run(one, None, cluster)
    np.testing.assert_allclose(one.out, one.exact, atol=1e-4)


def allocate_early() -> None:
    """Launch the pair that allocates before its CTAs synchronise."""
    run(ONE, DEFECTS[0])


def test_a_pair_multiplies_in_every_order() -> None:
    in_orders(50, lambda: check_right(ONE))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(defect: Defect) -> None:
    check_reported(defect, lambda: run(ONE, defect))


def test_two_pairs_of_a_cluster_multiply_in_every_order() -> None:
    in_orders(10, lambda: check_right(TWO, cluster=4))


@pytest.mark.parametrize("defect", OF_TWO_PAIRS, ids=lambda one: one.name)
def test_a_defect_of_two_pairs_is_reported_in_every_order(defect: Defect) -> None:
    check_reported(defect, lambda: run(TWO, defect, cluster=4))


def test_a_pair_needs_a_cluster_of_an_even_size() -> None:
    with pytest.raises(EmulatedFault, match=r"cta_group::2 in a cluster of 1 CTAs.*even size"):
        run(ONE, None, cluster=1)
