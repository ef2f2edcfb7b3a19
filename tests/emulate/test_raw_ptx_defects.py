"""Defects planted in kernels of inline PTX: each is found, by its kind and at its line."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pytest
from parity.raw_ptx_kernels import KERNELS

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, TMAError, emulate


class Defect(NamedTuple):
    """A change of a kernel, what it raises, a line that the report names, and its words."""

    kernel: str
    old: str
    new: str
    error: type[TMAError]
    line: str
    words: str


WAIT_FULL = "barrier_wait(&shared.full[at.stage], at.phase);"
GROUP_RELEASE = """            wgmma_wait<0>();
            if (is_first) barrier_arrive(&shared.empty[at.stage]);"""
DEFECTS = {
    "fewer bytes expected": Defect(
        "gemm",
        "A_BYTES + B_BYTES);",
        "A_BYTES);",
        EmulatedRace,
        "wgmma_m64n128k16(d, a",
        "the data may not have landed",
    ),
    "no wait for the load": Defect(
        "gemm", WAIT_FULL, "", EmulatedFault, "wgmma_m64n128k16(d, a", "which nothing has written"
    ),
    "the parity of the empty barriers": Defect(
        "gemm",
        "at.phase ^ 1);",
        "at.phase);",
        EmulatedDeadlock,
        "barrier_wait(&shared.empty",
        "mbarrier.try_wait.parity",
    ),
    "a stage released too early": Defect(
        "gemm",
        GROUP_RELEASE,
        "            if (is_first) barrier_arrive(&shared.empty[at.stage]);\n"
        "            wgmma_wait<0>();",
        EmulatedRace,
        "wgmma_m64n128k16(d, a",
        "wgmma may still be reading the stage",
    ),
    "no proxy fence before the store": Defect(
        "gemm",
        'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
        "",
        EmulatedRace,
        "stmatrix.sync.aligned",
        "was not made visible to TMA",
    ),
    "the staging buffer reused": Defect(
        "gemm",
        'if (is_first) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");',
        "",
        EmulatedRace,
        "tma_store(",
        "the store may still be reading its buffer",
    ),
    "sums that begin nowhere": Defect(
        "gemm",
        "block + step != 0",
        "1",
        EmulatedFault,
        "wgmma_m64n128k16(d, a",
        "adds to accumulators that nothing has written",
    ),
    "a release of the own CTA alone": Defect(
        "cluster_gemm",
        "if (lane_id() < CTAS) mbarrier::arrive_remote(empty, lane_id());",
        "if (lane_id() == 0) mbarrier::arrive_remote(empty, cluster_rank());",
        EmulatedDeadlock,
        "mbarrier::wait(ring.empty_at()",
        r"barriers\[4\], phase 0: 8 arrivals",
    ),
    "a mask of one CTA": Defect(
        "cluster_gemm",
        "(1 << CTAS) - 1, policy",
        "1 << rank, policy",
        EmulatedDeadlock,
        "mbarrier::wait(ring.full_at()",
        r"4096 bytes are missing",
    ),
    "no meeting of the cluster after init": Defect(
        "cluster_gemm",
        "    cluster::arrive();\n    cluster::wait();\n\n    const int row",
        "    __syncthreads();\n\n    const int row",
        EmulatedRace,
        "mbarrier::init(ring.full",
        "no barrier lies between",
    ),
    "no meeting of the cluster at the end": Defect(
        "cluster_gemm",
        "    __syncwarp();\n    cluster::arrive();\n    cluster::wait();",
        "",
        EmulatedFault,
        "",
        "CTA . of the cluster has ended",
    ),
    "sums read in flight": Defect(
        "cluster_gemm",
        "    wgmma::wait<0>();\n",
        "",
        EmulatedRace,
        "wgmma::m64n64k16<1>(c, a + 2",
        "registers are used before wgmma has finished",
    ),
    "a row beyond the end": Defect(
        "cluster_gemm",
        '"setp.lt.s32 inside, %3, %4;',
        '"setp.le.s32 inside, %3, %4;',
        EmulatedFault,
        "@inside st.global.v2.f32",
        r"out\[250\]\[\d+\], \d+ bytes after the end of out",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_at_its_line(name: str) -> None:
    defect = DEFECTS[name]
    problem = next(problem for problem in KERNELS if problem.name == defect.kernel)
    kernel = problem.kernel(defect.old, defect.new)

    with (
        pytest.raises(defect.error, match=defect.words) as caught,
        emulate.scheduled("random", seed=0, races=True),
    ):
        problem.error(kernel, np.copy, np.asarray)

    lines = problem.text.replace(defect.old, defect.new, 1).splitlines()
    wanted = [number for number, text in enumerate(lines, 1) if defect.line in text]
    named = [int(number) for number in re.findall(r"kernel\.cu:(\d+)", str(caught.value))]
    # A statement over several lines has any of them.
    assert any(abs(number - line) <= 2 for number in named for line in wanted), str(caught.value)
