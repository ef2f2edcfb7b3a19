"""Relaxed arrivals order accesses where fences stand next to them (PTX ISA, memory consistency)."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from tmaasync import EmulatedRace, Kernel
from tmaasync.emulate import scheduled

MEET = """
extern "C" __global__ void meet(int* out) {
    __shared__ unsigned long long barrier;
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 64;" :: "r"(at));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
    out[threadIdx.x] = 1;
}
"""


def test_a_relaxed_cluster_arrival_after_the_fence_hands_on_an_initialised_mbarrier() -> None:
    # PTX ISA, fence.mbarrier_init: the example of a cluster's barriers.
    out = np.zeros(64, np.int32)
    with scheduled(races=True):
        Kernel(MEET, "meet")(1, 64, (out,))
        assert out.all()

        late = MEET.replace(
            'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");', ""
        )
        with pytest.raises(EmulatedRace, match=r"no barrier lies between mbarrier\.init and"):
            Kernel(late, "meet")(1, 64, (out,))


HANDED_ON = r"""
extern "C" __global__ void handed_on(
    int* out, bool fenced_before, bool arrives_relaxed, bool fenced_after, bool waits_relaxed,
    bool acquires
) {
    __shared__ int cell;
    __shared__ unsigned long long barrier;
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at));
        cell = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        cell = 7;
        if (fenced_before) asm volatile("fence.acq_rel.cta;" ::: "memory");
        if (arrives_relaxed) {
            asm volatile("mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%0];" :: "r"(at));
        } else {
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
        }
        if (fenced_after) asm volatile("fence.acq_rel.cta;" ::: "memory");
        return;
    }
    for (unsigned done = 0; !done;) {
        if (waits_relaxed) {
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 p, [%1], 0; "
                "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
        } else {
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; "
                "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
        }
    }
    if (acquires) asm volatile("fence.acq_rel.cta;" ::: "memory");
    out[threadIdx.x] = cell;
}
"""


@pytest.mark.parametrize(
    ("steps", "is_ordered"),
    [
        ((True, True, False, False, False), True),
        ((False, False, False, True, True), True),
        ((True, True, False, True, True), True),
        ((False, True, False, False, False), False),
        ((False, True, True, False, False), False),
        ((False, False, False, True, False), False),
    ],
)
def test_a_fence_with_a_relaxed_operation_on_an_mbarrier_orders(
    steps: tuple[bool, ...], is_ordered: bool
) -> None:
    """PTX ISA, memory consistency model: release and acquire patterns."""
    race = pytest.raises(EmulatedRace, match="a race on cell")
    with contextlib.nullcontext() if is_ordered else race:
        Kernel(HANDED_ON, "handed_on")(1, 64, (np.zeros(64, np.int32), *steps))


ACROSS_THE_CLUSTER = """
extern "C" __global__ void __cluster_dims__(2) across(int* out) {
    __shared__ int cell;
    cell = 7;
    FENCE
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    unsigned peer, value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(&cell))), "r"(1 - blockIdx.x));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(peer) : "memory");
    out[blockIdx.x] = value;
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
"""


def test_a_fence_before_a_relaxed_cluster_arrival_orders() -> None:
    # PTX ISA, barrier.cluster: "use memory fence prior to arrive for relaxed barrier".
    fence = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
    out = np.zeros(2, np.int32)
    with scheduled(races=True):
        Kernel(ACROSS_THE_CLUSTER.replace("FENCE", fence), "across")(2, 1, (out,))
        assert out.tolist() == [7, 7]
        with pytest.raises(EmulatedRace, match="a race on cell"):
            Kernel(ACROSS_THE_CLUSTER.replace("FENCE", ""), "across")(2, 1, (out,))
