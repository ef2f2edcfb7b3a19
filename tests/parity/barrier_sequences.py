"""Random legal lives of an mbarrier: the same calls on the host class and on a device.

A sequence follows from its number alone. Calls come from two CTAs of a cluster, one after the
other; the barrier is the first one's.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync import Kernel, ProtocolError, SharedMemBarrier

CALLS = 120

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// In the order of barrier_sequences.py.
enum Kind : u32 {
    kArrive, kArriveMany, kExpectBytes, kExpectBytesRelaxed, kExpectTx, kCompleteOwn,
    kWait, kWaitHint, kWaitAcquireCta, kWaitAcquireCluster, kWaitRelaxedCta, kWaitRelaxedCluster,
    kTryWait, kInitAgain,
    kArriveCluster, kArriveClusterRelaxed, kArriveAndExpect, kCompleteRemote, kNothing
};

struct Call {
    Kind kind;
    u32 operand;
};

__shared__ SharedMemBarrier barrier;

__device__ u64 by_owner(const Call& call) {
    const u32 n = call.operand;
    switch (call.kind) {
        case kArrive: return barrier.arrive();
        case kArriveMany: return barrier.arrive(n);
        case kExpectBytes: barrier.expect_bytes(n); break;
        case kExpectBytesRelaxed: return barrier.expect_bytes_relaxed(n);
        case kExpectTx: barrier.expect_tx(n); break;
        case kCompleteOwn: barrier.complete_transaction(0, n); break;
        case kWait: barrier.wait(n); break;
        case kWaitHint: barrier.wait(n, 1000u); break;
        case kWaitAcquireCta: barrier.wait_acquire<Scope::kCta>(n); break;
        case kWaitAcquireCluster: barrier.wait_acquire<Scope::kCluster>(n); break;
        case kWaitRelaxedCta: barrier.wait_relaxed<Scope::kCta>(n); break;
        case kWaitRelaxedCluster: barrier.wait_relaxed<Scope::kCluster>(n); break;
        case kTryWait: while (!barrier.try_wait(n)) {} break;
        case kInitAgain:
            barrier.invalidate();
            barrier.init(n);
            fence_barrier_init();
            break;
        default: break;
    }
    return 0;
}

__device__ void by_peer(const Call& call) {
    const u32 n = call.operand;
    if (call.kind == kArriveCluster) barrier.arrive_cluster(0, n);
    if (call.kind == kArriveClusterRelaxed) barrier.arrive_cluster_relaxed(0, n);
    if (call.kind == kArriveAndExpect) barrier.arrive_and_expect_bytes(n, 0);
    if (call.kind == kCompleteRemote) barrier.complete_transaction(0, n);
    if (call.kind == kNothing) {
        barrier.arrive_and_expect_bytes(n, 0, false);
        barrier.complete_transaction(0, n, false);
    }
}

// Whether the call gives a token, which belongs to the phase it arrived in.
__device__ bool gives_token(Kind kind) {
    return kind == kArrive || kind == kArriveMany || kind == kExpectBytesRelaxed;
}

// One cluster of two CTAs of one thread. After each call: bit 0 and 1, whether wait(0) and wait(1)
// would return; bit 2, whether the phase of the call's own token has completed.
extern "C" __global__ void sequence(
    const Call* calls, u32 count, u32 arrivals, unsigned char* seen
) {
    const bool is_owner = block_rank_in_cluster() == 0;
    if (is_owner) {
        barrier.init(arrivals);
        fence_barrier_init();
    }
    cluster_sync();
    for (u32 index = 0; index < count; ++index) {
        const Call call = calls[index];
        u64 token = 0;
        if (is_owner == (call.kind < kArriveCluster)) {
            is_owner ? void(token = by_owner(call)) : by_peer(call);
        }
        cluster_sync();
        if (is_owner) {
            const bool has_ended = gives_token(call.kind) && barrier.test_wait_state(token);
            seen[index] = barrier.test_wait(0) | barrier.test_wait(1) << 1 | has_ended << 2;
        }
        cluster_sync();
    }
}
"""

# fmt: off
(ARRIVE, ARRIVE_MANY, EXPECT_BYTES, EXPECT_BYTES_RELAXED, EXPECT_TX, COMPLETE_OWN,
 WAIT, WAIT_HINT, WAIT_ACQUIRE_CTA, WAIT_ACQUIRE_CLUSTER, WAIT_RELAXED_CTA, WAIT_RELAXED_CLUSTER,
 TRY_WAIT, INIT_AGAIN,
 ARRIVE_CLUSTER, ARRIVE_CLUSTER_RELAXED, ARRIVE_AND_EXPECT, COMPLETE_REMOTE, NOTHING) = range(19)
# fmt: on
_ARRIVALS = (ARRIVE_MANY, ARRIVE_CLUSTER, ARRIVE_CLUSTER_RELAXED)
_EXPECTING = (EXPECT_BYTES, EXPECT_BYTES_RELAXED, ARRIVE_AND_EXPECT)
_WAITS = range(WAIT, INIT_AGAIN)
_TOKENS = (ARRIVE, ARRIVE_MANY, EXPECT_BYTES_RELAXED)

LANDED_FIRST = ((COMPLETE_OWN, 16), (ARRIVE, 0), (EXPECT_TX, 16), (INIT_AGAIN, 1))
"""After an arrival on a barrier of one: does the phase end when the last bytes are expected?"""

CALL = np.dtype([("kind", "<u4"), ("operand", "<u4")])


@dataclass(frozen=True)
class Sequence:
    """Calls, and what the host class says after each."""

    arrivals: int
    calls: np.ndarray[Any, Any]
    seen: np.ndarray[Any, Any]


def sequence(number: int) -> Sequence:
    """The sequence of this number."""
    rng = random.Random(number)
    arrivals = rng.choice((1, 1, 2, 3, 5, 17))
    barrier = SharedMemBarrier(arrivals)
    calls: list[tuple[int, int]] = []
    seen: list[int] = []
    while len(calls) < CALLS:
        kind = rng.choice((*range(19), COMPLETE_OWN, COMPLETE_REMOTE, ARRIVE))
        if len(calls) == CALLS - 1:
            kind = INIT_AGAIN  # no CTA may end while bytes are in flight
        operand = _operand(rng, kind, barrier)
        tried = copy.deepcopy(barrier)
        try:
            token = _apply(tried, kind, operand)
        except ProtocolError:
            continue
        if kind == EXPECT_TX and barrier.pending_arrivals == 0 and barrier.tx_count < 0:
            continue  # bytes that landed first, expected last: `LANDED_FIRST` asks the chip
        barrier = tried
        has_ended = kind in _TOKENS and barrier.test_wait(token)
        completed = [barrier.phase % 2 != parity for parity in (0, 1)]
        calls.append((kind, operand))
        seen.append(completed[0] | completed[1] << 1 | has_ended << 2)
    return Sequence(arrivals, np.array(calls, CALL), np.array(seen, np.uint8))


def _operand(rng: random.Random, kind: int, barrier: SharedMemBarrier) -> int:
    if kind in _WAITS:
        return (barrier.phase - 1) % 2  # the one that does not wait for ever
    if kind in (COMPLETE_OWN, COMPLETE_REMOTE) and barrier.tx_count > 0 and rng.random() < 0.9:
        return barrier.tx_count
    if kind in _ARRIVALS:
        return rng.randint(1, barrier.pending_arrivals) if barrier.pending_arrivals else 1
    if kind == INIT_AGAIN:
        return rng.choice((1, 2, 3, 7))
    return rng.choice((16, 128, 4096, 65536))


def _apply(barrier: SharedMemBarrier, kind: int, operand: int) -> Any:
    if kind == ARRIVE:
        return barrier.arrive()
    if kind in _ARRIVALS:
        return barrier.arrive(operand)
    if kind in _EXPECTING:
        return barrier.expect_bytes(operand)
    if kind == INIT_AGAIN:
        barrier.inval()
        return barrier.init(operand)
    if kind in _WAITS:
        return barrier.wait(operand)
    by_bytes: dict[int, Callable[[int], None]] = {
        EXPECT_TX: barrier.expect_tx,
        COMPLETE_OWN: barrier.complete_tx,
        COMPLETE_REMOTE: barrier.complete_tx,
    }
    return by_bytes[kind](operand) if kind in by_bytes else None


@functools.cache
def _kernel() -> Kernel:
    return Kernel(SOURCE, "sequence")


def run(backend: Any, one: Sequence) -> np.ndarray[Any, Any]:
    """What a device says after each call."""
    seen = backend.array(np.full(len(one.calls), 0xCC, np.uint8))
    calls = backend.array(one.calls.view(np.uint8))
    _kernel()(2, 1, (calls, len(one.calls), one.arrivals, seen), cluster=2)
    return np.asarray(backend.host(seen))


def differing(backend: Any, numbers: range) -> Iterator[int]:
    """The sequences on which a device and the host class disagree."""
    for number in numbers:
        one = sequence(number)
        if not np.array_equal(run(backend, one), one.seen):
            yield number
