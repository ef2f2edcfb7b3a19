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

// The source location of a wait. Callers omit it; the default is their own line.
using instrument::WaitLocation;

// The scope of a wait's acquire: threads of the CTA or of the cluster.
enum class Scope { kCta, kCluster };

// An mbarrier. A phase completes after `count` arrivals and all expected bytes; then the next phase
// begins. `wait(parity)` returns once the phase of that parity has completed. On a fresh barrier
// wait(1) returns at once, and wait(0) blocks.
struct alignas(8) SharedMemBarrier {
    // The maximum number of arrivals, and of expected bytes.
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

    // Arrive once, and expect more bytes in the current phase.
    __device__ __forceinline__ void expect_bytes(u32 bytes) {
        check_bytes(bytes);
        if (instrument::is_draining()) return;
        instrument::trace_expect(address(), bytes);
        ptx::mbarrier_arrive_expect_tx(address(), bytes);
    }

    // Arrive and expect bytes without release: earlier writes are not published. Returns the state
    // token.
    __device__ __forceinline__ u64 expect_bytes_relaxed(u32 bytes) {
        check_bytes(bytes);
        if (instrument::is_draining()) return 0;
        instrument::trace_expect(address(), bytes);
        return ptx::mbarrier_arrive_expect_tx_relaxed(address(), bytes);
    }

    // Expect more bytes in the current phase, without an arrival.
    __device__ __forceinline__ void expect_tx(u32 bytes) {
        check_bytes(bytes);
        if (instrument::is_draining()) return;
        ptx::mbarrier_expect_tx(address(), bytes);
    }

    // Arrive once. Returns the state token for test_wait_state.
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

    // Arrive on the barrier of another CTA without release. This is enough to release a buffer that
    // only wgmma or TMA has read, after a wait for that read; release.cluster would wait for all of
    // the thread's memory traffic.
    __device__ __forceinline__ void arrive_cluster_relaxed(u32 cta_rank, u32 count = 1) {
        check_cta_rank(cta_rank);
        check_count(count);
        if (instrument::is_draining()) return;
        const u32 remote = ptx::mapa(address(), cta_rank);
        instrument::trace_arrive_cluster(remote, count);
        ptx::mbarrier_arrive_cluster_relaxed(remote, count);
    }

    // Arrive on the same barrier of another CTA and expect bytes there, if the predicate holds.
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

    // Credit the bytes of a transfer that is not issued, so that waiters continue. The arguments
    // have Mojo's order, in which the rank comes first.
    __device__ __forceinline__ void complete_transaction(
        u32 cta_rank, u32 bytes, bool predicate = true
    ) {
        if (!predicate) return;
        check_cta_rank(cta_rank);
        check_bytes(bytes);
        if (instrument::is_draining()) return;
        ptx::mbarrier_complete_tx_cluster(ptx::mapa(address(), cta_rank), bytes);
    }

    // Wait until the phase of this parity has completed, without a time limit. In a debug build the
    // kernel ends if a wait exceeds the budget of the host's Kernel.
    __device__ __forceinline__ void wait(u32 phase, WaitLocation location = {}) const {
        watched_wait<Scope::kCta>(phase, location, [&] {
            while (!ptx::mbarrier_try_wait_parity(address(), phase)) {}
        });
    }

    // Wait; each try suspends the thread for at most about this many nanoseconds.
    __device__ __forceinline__ void wait(
        u32 phase, u32 suspend_ns, WaitLocation location = {}
    ) const {
        watched_wait<Scope::kCta>(phase, location, [&] {
            while (!ptx::mbarrier_try_wait_parity_hint(address(), phase, suspend_ns)) {}
        });
    }

    // Wait, and acquire the writes that threads of the CTA or cluster made before they arrived.
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

    // Wait without acquire, for subsequent accesses by TMA or wgmma only.
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

    // Return whether the phase of this parity has completed. May suspend for a bounded time.
    __device__ __forceinline__ bool try_wait(u32 phase, WaitLocation location = {}) const {
        return watched_look(phase, location, [&] {
            return ptx::mbarrier_try_wait_parity(address(), phase);
        });
    }

    // Return whether the phase of this parity has completed. Never suspends the thread.
    __device__ __forceinline__ bool test_wait(u32 phase, WaitLocation location = {}) const {
        return watched_look(phase, location, [&] {
            return ptx::mbarrier_test_wait_parity(address(), phase);
        });
    }

    // Return whether the phase of a token has completed; it is the current or the previous phase.
    __device__ __forceinline__ bool test_wait_state(u64 state) const {
        if constexpr (instrument::kWatchesHangs) {
            if (instrument::is_draining()) return true;
        }
        return ptx::mbarrier_test_wait(address(), state);
    }

private:
    // Call `wait_for_phase`, or in debug builds the hang watch; traced builds record the wait.
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

    // Call `look` once. In debug builds the hang watch ends a surrounding loop that takes too
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

    // A wait identifies its phase by parity.
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

// Make initialised barriers visible to the cluster and to TMA; called by the initialising thread.
__device__ __forceinline__ void fence_barrier_init() {
    ptx::fence_mbarrier_init();
}

// Make ordinary writes to shared memory visible to TMA stores and wgmma; called by every writing
// thread, before the barrier that precedes the stores or wgmma.
__device__ __forceinline__ void fence_async_view_proxy() {
    ptx::fence_proxy_async_shared();
}

}  // namespace tmaasync
