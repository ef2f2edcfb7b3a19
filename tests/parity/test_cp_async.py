"""cp.async: every size, way, prefetch and predicate; groups, and both arrivals on an mbarrier."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel

SCATTERED = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// In the order of test_cp_async.py.
enum Mode { kPlain, kZeroFill, kIf, kPartial };
enum Wait { kGroup, kAll, kArrive, kArriveNoinc };

constexpr int kWindow = 8192;

struct Copy {
    u32 to;
    u32 from;
    u32 amount;  // a condition, or the bytes to read
};

__shared__ __align__(16) unsigned char window[kWindow];
__shared__ SharedMemBarrier landed;

template <int kBytes, CacheLevels kLevels, L2Prefetch kPrefetch>
__device__ void copy_as(Mode mode, void* to, const void* from, u32 amount) {
    switch (mode) {
        case kPlain: return cp_async_gs<kBytes, kLevels, kPrefetch>(to, from);
        case kZeroFill: return cp_async_gs_zero_fill<kBytes, kLevels, kPrefetch>(to, from, amount);
        case kIf: return cp_async_gs_if<kBytes, kLevels, kPrefetch>(to, from, amount);
        case kPartial: return cp_async_gs_partial<kBytes, kLevels, kPrefetch>(to, from, amount);
    }
}

template <int kBytes, CacheLevels kLevels>
__device__ void copy_with(int prefetch, Mode mode, void* to, const void* from, u32 amount) {
    switch (prefetch) {
        case 0: return copy_as<kBytes, kLevels, L2Prefetch::kNone>(mode, to, from, amount);
        case 64: return copy_as<kBytes, kLevels, L2Prefetch::k64B>(mode, to, from, amount);
        case 128: return copy_as<kBytes, kLevels, L2Prefetch::k128B>(mode, to, from, amount);
        default: return copy_as<kBytes, kLevels, L2Prefetch::k256B>(mode, to, from, amount);
    }
}

__device__ void wait_as(Wait wait) {
    if (wait == kGroup) {
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
    } else if (wait == kAll) {
        cp_async_wait_all();
        __syncthreads();
    } else if (wait == kArrive) {
        mbarrier_cp_async_arrive(landed);
        landed.arrive();
        landed.wait(0);
    } else {
        mbarrier_cp_async_arrive_noinc(landed);
        landed.wait(0);
    }
}

extern "C" __global__ void scattered(
    int bytes, bool through_l1, int prefetch, Mode mode, Wait wait, const Copy* copies, int count,
    const unsigned char* source, unsigned char* out
) {
    if (threadIdx.x == 0) {
        landed.init(blockDim.x);
        fence_barrier_init();
    }
    for (int i = threadIdx.x; i < kWindow; i += blockDim.x) window[i] = 0xCC;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        void* to = window + copies[i].to;
        const void* from = source + copies[i].from;
        const u32 amount = copies[i].amount;
        if (bytes == 4) copy_with<4, CacheLevels::kAll>(prefetch, mode, to, from, amount);
        if (bytes == 8) copy_with<8, CacheLevels::kAll>(prefetch, mode, to, from, amount);
        if (bytes == 16 && through_l1) {
            copy_with<16, CacheLevels::kAll>(prefetch, mode, to, from, amount);
        }
        if (bytes == 16 && !through_l1) {
            copy_with<16, CacheLevels::kL2>(prefetch, mode, to, from, amount);
        }
    }
    wait_as(wait);
    for (int i = threadIdx.x; i < kWindow; i += blockDim.x) out[i] = window[i];
}
"""

PLAIN, ZERO_FILL, IF, PARTIAL = range(4)
GROUP, ALL, ARRIVE, ARRIVE_NOINC = range(4)
WINDOW = 8192
COPY = np.dtype([("to", "<u4"), ("from", "<u4"), ("amount", "<u4")])


@functools.cache
def _scattered() -> Kernel:
    return Kernel(SCATTERED, "scattered")


def drawn_copies(rng: np.random.Generator, size: int, mode: int, source_bytes: int) -> Any:
    """Copies to places of which none is taken twice."""
    count = int(rng.integers(1, 200))
    copies = np.zeros(count, COPY)
    copies["to"] = rng.permutation(WINDOW // size)[:count] * size
    copies["from"] = rng.integers(0, source_bytes // size, count) * size
    copies["amount"] = rng.integers(0, size + 1 if mode == PARTIAL else 2, count)
    return copies


def image(copies: Any, size: int, mode: int, source: Any) -> Any:
    """What the window holds then."""
    window = np.full(WINDOW, 0xCC, np.uint8)
    for to, start, amount in copies.tolist():
        read = {PLAIN: size, ZERO_FILL: size * amount, IF: size * amount, PARTIAL: amount}[mode]
        if mode == IF and not amount:
            continue
        window[to : to + size] = 0
        window[to : to + read] = source[start : start + read]
    return window


FORMS = [(4, True), (8, True), (16, True), (16, False)]


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 5, 10, 15)
@pytest.mark.parametrize("mode", [PLAIN, ZERO_FILL, IF, PARTIAL], ids=str)
@pytest.mark.parametrize(("size", "through_l1"), FORMS, ids=str)
def test_scattered_copies(backend: Any, size: int, through_l1: bool, mode: int) -> None:
    rng = np.random.default_rng([size, through_l1, mode])
    source = rng.integers(0, 256, 3001 * 16, np.uint8)
    held = backend.array(source)

    for prefetch, wait in itertools.product((0, 64, 128, 256), range(4)):
        copies = drawn_copies(rng, size, mode, len(source))
        out = backend.array(np.zeros(WINDOW, np.uint8))
        threads = int(rng.integers(1, 5)) * 32
        forms = (size, through_l1, prefetch, mode, wait)
        given = backend.array(copies.view(np.uint8))

        _scattered()(1, threads, (*forms, given, len(copies), held, out))

        assert np.array_equal(backend.host(out), image(copies, size, mode, source)), forms
