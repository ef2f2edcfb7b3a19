#pragma once

#include <tmaasync/instrument/trace_kind.cuh>
#include <tmaasync/operands/integers.cuh>

#if defined(TMAASYNC_TRACE) && TMAASYNC_TRACE
#include <tmaasync/instrument/trace_records.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/cluster.cuh>
#include <tmaasync/ptx/mbarrier.cuh>
#include <tmaasync/ptx/special_registers.cuh>
#endif

// Trace hooks: each notes one event of the warp, next to the instruction that it is about. In
// builds with TMAASYNC_TRACE=1, which the host makes for a launch inside `with trace.record()`; in
// other builds they are nothing. Emulated kernels are never built with it: the emulator traces by
// itself.
namespace tmaasync::instrument {

#if defined(TMAASYNC_TRACE) && TMAASYNC_TRACE

// True in the lowest of these lanes.
__device__ __forceinline__ bool trace_leads(u32 lanes) {
    return (lanes & ((1u << trace_thread() % 32) - 1)) == 0;
}

__device__ __forceinline__ constexpr u32 trace_addresses(u32 barrier, u32 shared = 0) {
    return barrier / 8 & 0xFFFF | shared / 16 << 16;
}

__device__ __forceinline__ constexpr u32 trace_home(u32 rank) {
    return rank << 12;
}

__device__ __forceinline__ constexpr u32 trace_number(u32 number) {
    return number << 16;
}

// Bits 32 to 47 of a clock.
__device__ __forceinline__ constexpr u32 trace_high(u64 clock) {
    return trace_number(static_cast<u32>(clock >> 32));
}

// Note an event on a barrier of this CTA. Lanes with the same barrier are one event, with their
// number.
__device__ __forceinline__ void trace_on_barrier(TraceKind kind, u32 barrier, u32 amount) {
    const u32 now = ptx::clock();
    const u32 home = ptx::cluster_ctarank();
    u32 lanes = __activemask();
    if (__popc(lanes) > 1) lanes = __match_any_sync(lanes, barrier << 4 | home);
    if (!trace_leads(lanes)) return;
    const u32 flags = trace_home(home) | trace_number(__popc(lanes));
    trace_note(kind, now, trace_addresses(barrier), amount, flags);
}

// Note an event on a barrier of the cluster, by its mapa address. As a rule each lane has another
// one: every lane notes.
__device__ __forceinline__ void trace_on_remote(TraceKind kind, u32 remote_barrier, u32 amount) {
    const u32 home = ptx::getctarank(remote_barrier);
    const u32 addresses = trace_addresses(remote_barrier - ptx::mapa(0u, home));
    trace_note(kind, ptx::clock(), addresses, amount, trace_home(home) | trace_number(1));
}

__device__ __forceinline__ void trace_init(u32 barrier, u32 count) {
    trace_open();
    trace_on_barrier(TraceKind::kInit, barrier, count);
}

__device__ __forceinline__ void trace_arrive(u32 barrier, u32 count = 1) {
    trace_on_barrier(TraceKind::kArrive, barrier, count);
}

__device__ __forceinline__ void trace_expect(u32 barrier, u32 bytes) {
    trace_on_barrier(TraceKind::kExpect, barrier, bytes);
}

__device__ __forceinline__ void trace_arrive_cluster(u32 remote_barrier, u32 count) {
    trace_on_remote(TraceKind::kArrive, remote_barrier, count);
}

__device__ __forceinline__ void trace_expect_cluster(u32 remote_barrier, u32 bytes) {
    trace_on_remote(TraceKind::kExpect, remote_barrier, bytes);
}

// Note a load, in every lane that issues one. The mask of CTAs is 0 unless it is a multicast.
__device__ __forceinline__ void trace_load(
    u32 shared, u32 barrier, u32 bytes = 0, u16 cta_mask = 0
) {
    const u32 flags = trace_home(ptx::cluster_ctarank()) | trace_number(cta_mask);
    trace_note(TraceKind::kLoad, ptx::clock(), trace_addresses(barrier, shared), bytes, flags);
}

// Note a store, in every lane that issues one.
__device__ __forceinline__ void trace_store(u32 shared, u32 bytes = 0) {
    trace_note(TraceKind::kStore, ptx::clock(), trace_addresses(0, shared), bytes);
}

__device__ __forceinline__ void trace_store_commit() {
    trace_note(TraceKind::kStoreCommit, ptx::clock(), 0, 0);
}

// Note an event of the whole warp.
__device__ __forceinline__ void trace_warp(TraceKind kind, u32 barrier = 0) {
    const u32 now = ptx::clock();
    if (trace_leads(__activemask())) trace_note(kind, now, barrier, 0);
}

// Note, in every lane, a post of a signal before it, or the beginning of a wait for a signal. A
// kernel with signals may have no barriers, whose initialisation opens the slots elsewhere.
__device__ __forceinline__ void trace_signal(
    TraceKind kind, u32 rank, u32 signal, u32 epoch_or_value
) {
    trace_open();
    trace_note(kind, ptx::clock(), signal, epoch_or_value, trace_home(rank));
}

// Note the end of a wait for a signal, in every lane.
__device__ __forceinline__ void trace_signal_wait(
    u32 rank, u32 signal, u32 epoch, bool is_reached
) {
    const u64 now = ptx::clock64();
    const TraceKind kind = is_reached ? TraceKind::kSignalWait : TraceKind::kSignalGivenUp;
    const u32 flags = trace_home(rank) | trace_high(now);
    const u32 index = trace_note(kind, static_cast<u32>(now), signal, epoch, flags);
    // As often as waits for phases, and after the longest ones.
    const bool reads = index % 32 < 4 || !is_reached;
    if (reads && trace_leads(__activemask())) trace_read_clocks(index);
}

// A wait of the warp, from here to the end of the scope: for a named barrier, or until at most
// `pending` groups are incomplete.
class TracedWait {
public:
    __device__ __forceinline__ explicit TracedWait(TraceKind kind, u32 barrier = 0, u32 pending = 0)
        : kind_(kind), barrier_(barrier), pending_(pending), began_(ptx::clock()) {}

    __device__ __forceinline__ ~TracedWait() {
        const u32 now = ptx::clock();
        if (!trace_leads(__activemask())) return;
        trace_note(kind_, now, barrier_, began_, trace_number(pending_));
    }

    TracedWait(const TracedWait&) = delete;
    TracedWait& operator=(const TracedWait&) = delete;

private:
    TraceKind kind_;
    u32 barrier_;
    u32 pending_;
    u32 began_;
};

// A wait for a phase of a barrier, from here to the end of the scope.
class TracedPhaseWait {
public:
    // A phase that is complete when the wait begins is marked so: its time of completion is
    // unknown.
    __device__ __forceinline__ TracedPhaseWait(u32 barrier, u32 phase)
        : barrier_(barrier),
          phase_(phase),
          began_(ptx::clock()),
          is_ready_(ptx::mbarrier_test_wait_parity(barrier, phase)) {}

    __device__ __forceinline__ ~TracedPhaseWait() {
        const u64 now = ptx::clock64();
        if (!trace_leads(__activemask())) return;
        const u32 flags = trace_home(ptx::cluster_ctarank()) | phase_ << 10 | u32{is_ready_} << 11 |
                          trace_high(now);
        const u32 index = trace_note(
            TraceKind::kWait, static_cast<u32>(now), trace_addresses(barrier_), began_, flags
        );
        // Every few notes one is a wait, so that one or a few in every 32 notes read the clocks.
        if (index % 32 < 4) trace_read_clocks(index);
    }

    TracedPhaseWait(const TracedPhaseWait&) = delete;
    TracedPhaseWait& operator=(const TracedPhaseWait&) = delete;

private:
    u32 barrier_;
    u32 phase_;
    u32 began_;
    bool is_ready_;
};

#else

__device__ constexpr void trace_init(u32, u32) {}
__device__ constexpr void trace_arrive(u32, u32 = 1) {}
__device__ constexpr void trace_expect(u32, u32) {}
__device__ constexpr void trace_arrive_cluster(u32, u32) {}
__device__ constexpr void trace_expect_cluster(u32, u32) {}
__device__ constexpr void trace_load(u32, u32, u32 = 0, u16 = 0) {}
__device__ constexpr void trace_store(u32, u32 = 0) {}
__device__ constexpr void trace_store_commit() {}
__device__ constexpr void trace_warp(TraceKind, u32 = 0) {}
__device__ constexpr void trace_signal(TraceKind, u32, u32, u32) {}
__device__ constexpr void trace_signal_wait(u32, u32, u32, bool) {}

// The destructors are what keeps a compiler from calling the variables unused.
struct TracedWait {
    __device__ __forceinline__ explicit TracedWait(TraceKind, u32 = 0, u32 = 0) {}
    __device__ __forceinline__ ~TracedWait() {}
};

struct TracedPhaseWait {
    __device__ __forceinline__ TracedPhaseWait(u32, u32) {}
    __device__ __forceinline__ ~TracedPhaseWait() {}
};

#endif

}  // namespace tmaasync::instrument
