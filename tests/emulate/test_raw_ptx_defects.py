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
    "fewer bytes of V expected": Defect(
        "attention_full",
        "mbar_arrive_expect_tx(&shared.v_full[i], KV_BYTES);",
        "mbar_arrive_expect_tx(&shared.v_full[i], KV_BYTES / 2);",
        EmulatedDeadlock,
        "mbar_wait(&shared.v_full[v_at.index]",
        "8192 bytes more than expected arrived",
    ),
    "V not released": Defect(
        "attention_full",
        "if (is_releasing) mbar_arrive(&shared.v_empty[v_at.index]);",
        "",
        EmulatedDeadlock,
        "mbar_wait(&shared.v_empty[i]",
        "phase 0: 8 arrivals and 0 bytes are missing",
    ),
    "K released before it is read": Defect(
        "attention_full",
        """        warpgroup_wait<0>();
        if (is_releasing) mbar_arrive(&shared.k_empty[k_at.index]);""",
        """        if (is_releasing) mbar_arrive(&shared.k_empty[k_at.index]);
        warpgroup_wait<0>();""",
        EmulatedRace,
        "wgmma_m64n128k16_ss(s, a",
        "wgmma may still be reading the stage",
    ),
    "scores used in flight": Defect(
        "attention_full",
        "warpgroup_wait<1>();",
        "warpgroup_wait<2>();",
        EmulatedRace,
        "wgmma_m64n128k16_ss(s, a",
        "registers are used before wgmma has finished",
    ),
    "o rescaled in flight": Defect(
        "attention_causal",
        """            softmax.step(s, rescale, scale_log2);
            warpgroup_wait<0>();""",
        """            softmax.step(s, rescale, scale_log2);
            warpgroup_wait<1>();""",
        EmulatedRace,
        "o[i] *= rescale",
        "registers are used before wgmma has finished",
    ),
    "no wgmma.fence after the registers of P change": Defect(
        "attention_full",
        "const u64 b = smem_descriptor(v);\n    warpgroup_arrive();",
        "const u64 b = smem_descriptor(v);",
        EmulatedRace,
        "wgmma_m64n64k16_rs(",
        "registers that the thread may still be writing",
    ),
    "no proxy fence before O is stored": Defect(
        "attention_full",
        'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
        "",
        EmulatedRace,
        "stmatrix.sync.aligned",
        "was not made visible to TMA",
    ),
    "O reused while it is stored": Defect(
        "attention_full",
        'if (is_storing) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");',
        "",
        EmulatedRace,
        "tma_store_3d(map_o",
        "the store may still be reading its buffer",
    ),
    "the last store not waited for": Defect(
        "attention_full",
        'if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");',
        "",
        EmulatedFault,
        "tma_store_3d(map_o",
        "wait_group",
    ),
    "Q overwritten": Defect(
        "attention_full",
        "mbar_wait(&shared.q_empty, q_phase ^ 1);",
        "",
        EmulatedRace,
        "tma_load_3d(shared.q, map_q",
        "wgmma",
    ),
    "more registers than the SM has": Defect(
        "attention_full",
        'setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(24)',
        'setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(56)',
        EmulatedFault,
        "setmaxnreg.inc",
        "Claim at most 224",
    ),
    "a row of lse beyond the end": Defect(
        "attention_causal",
        "at < problem.queries",
        "at <= problem.queries",
        EmulatedRace,
        "st.global.f32",
        r"lse\[[12]\]\[0\].*two threads write the same element",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_at_its_line(name: str) -> None:
    defect = DEFECTS[name]
    problem = next(problem for problem in KERNELS if problem.name == defect.kernel)
    kernel = problem.kernel(defect.old, defect.new)

    with (
        pytest.raises(defect.error, match=f"(?s){defect.words}") as caught,
        emulate.scheduled("random", seed=0, races=True),
    ):
        problem.error(kernel, np.copy, np.asarray)

    lines = problem.text.replace(defect.old, defect.new, 1).splitlines()
    wanted = [number for number, text in enumerate(lines, 1) if defect.line in text]
    named = [int(number) for number in re.findall(r"kernel\.cu:(\d+)", str(caught.value))]
    # A statement over several lines has any of them.
    assert any(abs(number - line) <= 2 for number in named for line in wanted), str(caught.value)


def test_a_fence_in_one_direction_makes_writes_visible_to_tma() -> None:
    problem = next(problem for problem in KERNELS if problem.name == "gemm")
    kernel = problem.kernel(
        "fence.proxy.async.shared::cta;",
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
    )

    with emulate.scheduled("random", seed=0, races=True):
        assert problem.error(kernel, np.copy, np.asarray) <= problem.tolerance
