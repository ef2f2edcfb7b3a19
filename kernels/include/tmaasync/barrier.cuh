#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/instrument/draining.cuh>
#include <tmaasync/instrument/hang.cuh>
#include <tmaasync/instrument/trace.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/ptx/mbarrier.cuh>

namespace tmaasync {

// The source location of a wait. Callers leave it out, and get their own line.
using instrument::WaitLocation;

// The threads with which the acquire of a wait synchronises: of the CTA or of the cluster.
enum class Scope { kCta, kCluster };

// An mbarrier. A phase completes when `count` arrivals and all expected bytes are in; then the next
// phase begins. `wait(parity)` returns once the phase of that parity has completed, so a fresh
// barrier passes wait(1) at once and blocks wait(0).
struct alignas(8) SharedMemBarrier {
    // The limit of arrivals, and of expected bytes.
    static constexpr u32 kMaxCount = (1 << 20) - 1;

    u64 word;

    __device__ __forceinline__ u32 address() const { return ptx::shared_address(this); }

    // Initialise, by one thread; then fence_barrier_init() and a block (or cluster) barrier before
    // any use.
    __device__ __forceinline__ void init(u32 count = 1) {
        check_address("address", address(), sizeof(word));
        check_range("count", count, 1, kMaxCount);
        instrument::trace_init(address(), count);
        ptx::mbarrier_init(address(), count);
    }

    __device__ __forceinline__ void invalidate() { ptx::mbarrier_inval(address()); }

    // Arrive once and add to the bytes that the current phase waits for.
    __device__ __forceinline__ void expect_bytes(u32 bytes) {
        check_bytes(bytes);
        if (instrument::is_draining()) return;
        instrument::trace_expect(address(), bytes);
        ptx::mbarrier_arrive_expect_tx(address(), bytes);
    }

    // Arrive and expect bytes without release: nothing written before it is published. Returns the
    // state token.
    __device__ __forceinline__ u64 expect_bytes_relaxed(u32 bytes) {
        check_bytes(bytes);
        if (instrument::is_draining()) return 0;
        instrument::trace_expect(address(), bytes);
        return ptx::mbarrier_arrive_expect_tx_relaxed(address(), bytes);
    }

    // Add to the bytes that the current phase waits for, without an arrival.
    __device__ __forceinline__ void expect_tx(u32 bytes) {
        check_bytes(bytes);
        if (instrument::is_draining()) return;
        ptx::mbarrier_expect_tx(address(), bytes);
    }

    // Arrive once; returns the state token, which test_wait_state takes.
    __device__ __forceinline__ u64 arrive() {
        if (instrument::is_draining()) return 0;
        instrument::trace_arrive(address());
        return ptx::mbarrier_arrive(address());
    }

    // Arrive `count` times.
    __device__ __forceinline__ u64 arrive(u32 count) {
        check_count(count);
        if (instrument::is_draining()) return 0;
        instrument::trace_arrive(address(), count);
        return ptx::mbarrier_arrive(address(), count);
    }

    // Arrive `count` times on the same barrier of the CTA of that rank in the cluster.
    __device__ __forceinline__ void arrive_cluster(u32 cta_rank, u32 count = 1) {
        check_cta_rank(cta_rank);
        check_count(count);
        if (instrument::is_draining()) return;
        const u32 remote = ptx::mapa(address(), cta_rank);
        instrument::trace_arrive_cluster(remote, count);
        ptx::mbarrier_arrive_cluster(remote, count);
    }

    // Arrive on the barrier of another CTA without release. Enough to hand back a buffer that only
    // wgmma or TMA has read, once that read was waited for; release.cluster would wait for all of
    // the thread's memory traffic.
    __device__ __forceinline__ void arrive_cluster_relaxed(u32 cta_rank, u32 count = 1) {
        check_cta_rank(cta_rank);
        check_count(count);
        if (instrument::is_draining()) return;
        const u32 remote = ptx::mapa(address(), cta_rank);
        instrument::trace_arrive_cluster(remote, count);
        ptx::mbarrier_arrive_cluster_relaxed(remote, count);
    }

    // Arrive on, and add expected bytes to, the same barrier of another CTA, if the predicate
    // holds.
    __device__ __forceinline__ void arrive_and_expect_bytes(
        u32 bytes, u32 cta_rank, bool predicate = true
    ) {
        if (!predicate) return;
        check_cta_rank(cta_rank);
        check_bytes(bytes);
        if (instrument::is_draining()) return;
        const u32 remote = ptx::mapa(address(), cta_rank);
        instrument::trace_expect_cluster(remote, bytes);
        ptx::mbarrier_arrive_expect_tx_cluster(remote, bytes);
    }

    // Credit bytes of a transfer that does not take location, so that its waiters go on.
    __device__ __forceinline__ void complete_transaction(
        u32 cta_rank, u32 bytes, bool predicate = true
    ) {
        if (!predicate) return;
        check_cta_rank(cta_rank);
        check_bytes(bytes);
        if (instrument::is_draining()) return;
        ptx::mbarrier_complete_tx_cluster(ptx::mapa(address(), cta_rank), bytes);
    }

    // Wait until the phase of this parity has completed. Never gives up; but a debug build ends a
    // kernel of which a wait takes longer than the host's Kernel allows.
    __device__ __forceinline__ void wait(u32 phase, WaitLocation location = {}) const {
        watched_wait<Scope::kCta>(phase, location, [&] {
            while (!ptx::mbarrier_try_wait_parity(address(), phase)) {}
        });
    }

    // Wait, where each look suspends the thread for about this many nanoseconds at most.
    __device__ __forceinline__ void wait(
        u32 phase, u32 suspend_ns, WaitLocation location = {}
    ) const {
        watched_wait<Scope::kCta>(phase, location, [&] {
            while (!ptx::mbarrier_try_wait_parity_hint(address(), phase, suspend_ns)) {}
        });
    }

    // Wait, and acquire the writes of threads of the CTA or the cluster before their arrivals.
    template <Scope kScope>
    __device__ __forceinline__ void wait_acquire(u32 phase, WaitLocation location = {}) const {
        watched_wait<kScope>(phase, location, [&] {
            if constexpr (kScope == Scope::kCta) {
                while (!ptx::mbarrier_try_wait_parity(address(), phase)) {}
            } else {
                while (!ptx::mbarrier_try_wait_parity_cluster(address(), phase)) {}
            }
        });
    }

    // Wait without acquire, before accesses by TMA or wgmma alone.
    template <Scope kScope>
    __device__ __forceinline__ void wait_relaxed(u32 phase, WaitLocation location = {}) const {
        watched_wait<Scope::kCta>(phase, location, [&] {
            if constexpr (kScope == Scope::kCta) {
                while (!ptx::mbarrier_try_wait_parity_relaxed(address(), phase)) {}
            } else {
                while (!ptx::mbarrier_try_wait_parity_relaxed_cluster(address(), phase)) {}
            }
        });
    }

    // True once the phase of this parity has completed. May suspend the thread for a bounded time.
    __device__ __forceinline__ bool try_wait(u32 phase, WaitLocation location = {}) const {
        return watched_look(phase, location, [&] {
            return ptx::mbarrier_try_wait_parity(address(), phase);
        });
    }

    // True once the phase of this parity has completed. Never suspends the thread.
    __device__ __forceinline__ bool test_wait(u32 phase, WaitLocation location = {}) const {
        return watched_look(phase, location, [&] {
            return ptx::mbarrier_test_wait_parity(address(), phase);
        });
    }

    // True once the phase of a state token has completed: the current phase or the one before.
    __device__ __forceinline__ bool test_wait_state(u64 state) const {
        if constexpr (instrument::kWatchesHangs) {
            if (instrument::is_draining()) return true;
        }
        return ptx::mbarrier_test_wait(address(), state);
    }

private:
    // Wait by `wait_for_phase`, or in debug builds by the hang watch; traced builds note the wait.
    template <Scope kAcquired, typename Wait>
    __device__ __forceinline__ void watched_wait(
        u32 phase, const WaitLocation& location, const Wait& wait_for_phase
    ) const {
        check_phase(phase);
        const instrument::TracedPhaseWait traced(address(), phase);
        if constexpr (kAcquired == Scope::kCta) {
            if (instrument::has_waited(address(), phase, location)) return;
        } else {
            if (instrument::has_waited_cluster(address(), phase, location)) return;
        }
        wait_for_phase();
    }

    // Look once by `look`. In debug builds the hang watch ends a loop around it that takes too
    // long.
    template <typename Look>
    __device__ __forceinline__ bool watched_look(
        u32 phase, const WaitLocation& location, const Look& look
    ) const {
        check_phase(phase);
        if constexpr (instrument::kWatchesHangs) {
            if (instrument::gives_up(address(), phase, location)) return true;
        }
        return look();
    }

    // Waits name a phase by its parity.
    __device__ __forceinline__ static void check_phase(u32 phase) {
        check_range("phase", phase, 0, 1);
    }

    __device__ __forceinline__ static void check_count(u32 count) {
        check_range("count", count, 1, kMaxCount);
    }

    __device__ __forceinline__ static void check_bytes(u32 bytes) {
        check_range("bytes", bytes, 0, kMaxCount);
    }
};
static_assert(sizeof(SharedMemBarrier) == 8, "an mbarrier is one 64-bit word");

// Make initialised barriers visible to the cluster and to TMA, by the initialising thread.
__device__ __forceinline__ void fence_barrier_init() {
    ptx::fence_mbarrier_init();
}

// Make ordinary writes to shared memory visible to TMA stores and wgmma, by every writing thread,
// before the barrier that precedes them.
__device__ __forceinline__ void fence_async_view_proxy() {
    ptx::fence_proxy_async_shared();
}

}  // namespace tmaasync
