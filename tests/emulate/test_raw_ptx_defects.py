"""Defects planted in kernels of inline PTX: each is found, by its kind and at its line."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from parity.raw_ptx_kernels import KERNELS
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, without
from planted_choices import choices

from tmaasync import emulate


def _of(kernel: str, *rows: tuple[Any, ...]) -> tuple[Defect, ...]:
    return tuple(
        Defect(kernel, name, (edit,), reported, says, line)
        for name, edit, reported, line, says in rows
    )


DEFECTS = (
    *_of(
        "gemm",
        ("fewer bytes expected", Edit("A_BYTES + B_BYTES);", "A_BYTES);"), RACE,
         "wgmma_m64n128k16(d, a", "with 16384 bytes expected, and its copies deliver 32768"),
        ("no wait for the load", without("barrier_wait(&shared.full[at.stage], at.phase);"), FAULT,
         "wgmma_m64n128k16(d, a", "which nothing has written"),
        ("the parity of the empty barriers", Edit("at.phase ^ 1);", "at.phase);"), DEADLOCK,
         "barrier_wait(&shared.empty", "mbarrier.try_wait.parity"),
        ("a stage released too early",
         Edit("wgmma_wait<0>(); if (is_first) barrier_arrive(&shared.empty[at.stage]);",
              "if (is_first) barrier_arrive(&shared.empty[at.stage]); wgmma_wait<0>();"), RACE,
         "wgmma_m64n128k16(d, a", "wgmma may still be reading the stage"),
        ("no proxy fence before the store",
         without('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'), RACE,
         "stmatrix.sync.aligned", "was not made visible to TMA"),
        ("the staging buffer reused",
         without('if (is_first) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");'),
         RACE, "tma_store(", "the store may still be reading its buffer"),
        ("sums that begin nowhere", Edit("block + step != 0", "1"), FAULT, "wgmma_m64n128k16(d, a",
         "adds to accumulators that nothing has written"),
    ),
    *_of(
        "cluster_gemm",
        ("a release of the own CTA alone",
         Edit("if (lane_id() < CTAS) mbarrier::arrive_remote(empty, lane_id());",
              "if (lane_id() == 0) mbarrier::arrive_remote(empty, cluster_rank());"), DEADLOCK,
         "mbarrier::wait(ring.empty_at()", r"barriers\[4\], phase 0: 8 arrivals"),
        ("a mask of one CTA", Edit("(1 << CTAS) - 1, policy", "1 << rank, policy"), DEADLOCK,
         "mbarrier::wait(ring.full_at()", "4096 bytes are missing"),
        ("no meeting of the cluster at the end",
         without("__syncwarp(); cluster::arrive(); cluster::wait();"), FAULT, "",
         "CTA . of the cluster has ended"),
        ("sums read in flight", without("wgmma::wait<0>();"), RACE, "wgmma::m64n64k16<1>(c, a + 2",
         "registers are used before wgmma has finished"),
        ("a row beyond the end",
         Edit('"setp.lt.s32 inside, %3, %4;\\n\\t"', '"setp.le.s32 inside, %3, %4;\\n\\t"'), FAULT,
         "@inside st.global.v2.f32", r"out\[250\]\[\d+\], \d+ bytes after the end of out"),
    ),
)  # fmt: skip


# A fence in one direction makes writes visible to TMA.
RELEASED = Defect("gemm", "a fence of writes alone", (Edit(
    '"fence.proxy.async.shared::cta;"',
    '"fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"',
),))  # fmt: skip


def error_with(defect: Defect) -> tuple[Any, float]:
    """Return the problem of the defect's kernel, and its error; each kernel is built once."""
    problem = next(problem for problem in KERNELS if problem.name == defect.kernel)
    every = tuple(one for one in (*DEFECTS, RELEASED) if one.kernel == defect.kernel)
    kernel = choices(problem.text, every).kernel(defect, problem.name, {}, {})
    with emulate.scheduled("random", seed=0, races=True):
        return problem, problem.error(kernel, np.copy, np.asarray)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_is_found_at_its_line(defect: Defect) -> None:
    with pytest.raises(defect.reported, match=f"(?s){defect.says}") as caught:
        error_with(defect)

    problem = next(problem for problem in KERNELS if problem.name == defect.kernel)
    lines = defect.plant(problem.text).splitlines()
    wanted = [number for number, text in enumerate(lines, 1) if defect.line in text]
    named = [int(number) for number in re.findall(r"kernel\.cu:(\d+)", str(caught.value))]
    # A statement over several lines has any of them.
    assert any(abs(number - line) <= 2 for number in named for line in wanted), str(caught.value)


def test_a_fence_in_one_direction_makes_writes_visible_to_tma() -> None:
    problem, error = error_with(RELEASED)

    assert error <= problem.tolerance
