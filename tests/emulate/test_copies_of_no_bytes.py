"""Bulk copies of 0 bytes, which do nothing on the chip."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel, emulate

SOURCE = """
#include <cooperative_groups.h>
using u32 = unsigned;
using u64 = unsigned long long;
__global__ void nothing(float* out, const float* in, u32 bytes, int form, u64 odd) {
    __shared__ __align__(128) float x[128];
    __shared__ __align__(8) u64 barrier;
    const u32 full = (u32)__cvta_generic_to_shared(&barrier);
    const u32 shared = (u32)__cvta_generic_to_shared(x) + (u32)odd;
    const float* from = (const float*)((u64)in + odd);
    float* to = (float*)((u64)out + odd);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(full));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
                     :: "r"(full), "r"(bytes));
        switch (form) { FORMS }
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;");
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(full));
    }
    u32 done = 0;
    while (!done) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; "
                     "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(full));
    }
    if (threadIdx.x == 0) out[0] = 1;
}
"""
FORMS = {
    "load": (
        'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes '
        '[%0], [%1], %2, [%3];" :: "r"(shared), "l"(from), "r"(bytes), "r"(full));'
    ),
    "multicast": (
        'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes'
        '.multicast::cluster [%0], [%1], %2, [%3], %4;" '
        ':: "r"(shared), "l"(from), "r"(bytes), "r"(full), "h"((unsigned short)1));'
    ),
    "store": (
        'asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" '
        ':: "l"(to), "r"(shared), "r"(bytes));'
    ),
    "reduction": (
        'asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" '
        ':: "l"(to), "r"(shared), "r"(bytes));'
    ),
    "prefetch": (
        'asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes));'
    ),
    "copy between CTAs": (
        'asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes '
        '[%0], [%1], %2, [%3];" :: "r"(shared), "r"(shared), "r"(bytes), "r"(full));'
    ),
    "reduction between CTAs": (
        'asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx'
        '::bytes.add.u32 [%0], [%1], %2, [%3];" '
        ':: "r"(shared), "r"(shared), "r"(bytes), "r"(full));'
    ),
    "completion": (
        'asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;" '
        ':: "r"(full), "r"(bytes));'
    ),
}


def run(form: str, *, bytes_moved: int, odd: int) -> float:
    cases = [f"case {i}: {{ {body} break; }}" for i, body in enumerate(FORMS.values())]
    kernel = Kernel(SOURCE.replace("FORMS", " ".join(cases)), "nothing")
    out, source = np.zeros(32, np.float32), np.ones(32, np.float32)
    with emulate.scheduled(races=True):
        kernel(1, 32, (out, source, bytes_moved, list(FORMS).index(form), odd))
    assert not out[1:].any()
    return float(out[0])


@pytest.mark.parametrize("form", FORMS)
def test_a_bulk_copy_of_no_bytes_does_nothing(form: str) -> None:
    for odd in (0, 4, 1 << 20):
        assert run(form, bytes_moved=0, odd=odd) == 1


@pytest.mark.parametrize("form", [form for form in FORMS if form != "completion"])
def test_a_bulk_copy_of_some_bytes_is_checked(form: str) -> None:
    with pytest.raises(EmulatedFault):
        run(form, bytes_moved=16, odd=4)
