"""Memory that the runtime keeps between launches: each one finds what a first one would."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel
from tmaasync.emulate import scheduled

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

extern __shared__ unsigned shared[];

// Writes `words` of shared memory, or sums up what is in the last words of it.
extern "C" __global__ void use(int* out, int words, bool writes) {
    if (writes) {
        for (int i = threadIdx.x; i < words; i += 32) shared[i] = i;
        return;
    }
    out[threadIdx.x] = shared[words - 32 + threadIdx.x];
}

__device__ __noinline__ int deep(int n) {
    volatile int a[99]{n};
    return n ? deep(n - 1) + a[1] : 0;
}
extern "C" __global__ void recurse(int* out, int n) { out[threadIdx.x] = deep(n); }
"""
WORDS = 8192


def test_shared_memory_of_earlier_launches_counts_as_unwritten() -> None:
    use, out = Kernel(SOURCE, "use"), np.zeros(32, np.int32)
    for words in (WORDS, 64):  # the smaller launch takes over the larger one's memory
        use(1, 32, (out, words, True), shared_mem=4 * words)
    with (
        pytest.raises(EmulatedFault, match=r"shared offset .* which nothing has written"),
        scheduled(races=True),
    ):
        use(1, 32, (out, WORDS, False), shared_mem=4 * WORDS)
    with scheduled(races=False):
        use(1, 32, (out, WORDS, False), shared_mem=4 * WORDS)

    poison = out.view(np.uint16) & 0x7FFF
    assert (poison == 0x7FFF).all()


@pytest.mark.parametrize("threads", [32, 64, 33])
def test_kept_stacks_have_their_guards(threads: int) -> None:
    recurse, out = Kernel(SOURCE, "recurse"), np.ones(64, np.int32)
    for depth, is_too_deep in ((3, False), (1 << 20, True), (5, False)):
        if is_too_deep:
            with pytest.raises(EmulatedFault, match="below the thread's stack of 128 KiB"):
                recurse(1, threads, (out, depth))
            continue
        recurse(1, threads, (out, depth))

        assert not out[:threads].any()
