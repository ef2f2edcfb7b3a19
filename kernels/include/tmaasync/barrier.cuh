#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/ptx/hang.cuh>
#include <tmaasync/ptx/mbarrier.cuh>
#include <tmaasync/trace.cuh>

namespace tmaasync {

// Where in the source a wait stands. Callers leave it out, and get their own line.
using ptx::WaitPlace;

// Who the acquire of a wait synchronises with.
enum class Scope { kCta, kCluster };

// An mbarrier. A phase completes when `count` arrivals and all expected bytes are in; then the next
// phase begins. `wait(parity)` returns once the phase of that parity has completed, so a fresh
// barrier passes wait(1) at once and blocks wait(0).
struct alignas(8) SharedMemBarrier {
    // Of arrivals, and of bytes to come.
    static constexpr u32 kMaxCount = (1 << 20) - 1;

    u64 word;

    __device__ __forceinline__ u32 address() const { return ptx::shared_address(this); }

    // One thread; then fence_barrier_init() and a block (or cluster) barrier before any use.
    __device__ __forceinline__ void init(u32 count = 1) {
        check_address("address", address(), sizeof(word));
        check_range("count", count, 1, kMaxCount);
        ptx::mbarrier_init(address(), count);
    }

    __device__ __forceinline__ void invalidate() { ptx::mbarrier_inval(address()); }

    // Arrives once and adds to the bytes that the current phase waits for.
    __device__ __forceinline__ void expect_bytes(u32 bytes) {
        check_range("bytes", bytes, 0, kMaxCount);
        ptx::mbarrier_arrive_expect_tx(address(), bytes);
    }

    // The same without release: nothing written before it is published. Returns the state token.
    __device__ __forceinline__ u64 expect_bytes_relaxed(u32 bytes) {
        check_range("bytes", bytes, 0, kMaxCount);
        return ptx::mbarrier_arrive_expect_tx_relaxed(address(), bytes);
    }

    // Adds to the bytes that the current phase waits for. Does not arrive.
    __device__ __forceinline__ void expect_tx(u32 bytes) {
        check_range("bytes", bytes, 0, kMaxCount);
        ptx::mbarrier_expect_tx(address(), bytes);
    }

    // Arrives once; returns the state token, which test_wait_state takes.
    __device__ __forceinline__ u64 arrive() { return ptx::mbarrier_arrive(address()); }

    // Arrives `count` times.
    __device__ __forceinline__ u64 arrive(u32 count) {
        check_range("count", count, 1, kMaxCount);
        return ptx::mbarrier_arrive(address(), count);
    }

    // Arrives `count` times on the same barrier of the CTA of that rank in the cluster.
    __device__ __forceinline__ void arrive_cluster(u32 cta_rank, u32 count = 1) {
        check_cta_rank(cta_rank);
        check_range("count", count, 1, kMaxCount);
        ptx::mbarrier_arrive_cluster(ptx::mapa(address(), cta_rank), count);
    }

    // The same without release. Enough to hand back a buffer that only wgmma or TMA has read, once
    // that read was waited for; release.cluster would wait for all of the thread's memory traffic.
    __device__ __forceinline__ void arrive_cluster_relaxed(u32 cta_rank, u32 count = 1) {
        check_cta_rank(cta_rank);
        check_range("count", count, 1, kMaxCount);
        ptx::mbarrier_arrive_cluster_relaxed(ptx::mapa(address(), cta_rank), count);
    }

    // Arrives on, and adds expected bytes to, the same barrier of another CTA, if the predicate
    // holds.
    __device__ __forceinline__ void arrive_and_expect_bytes(
        u32 bytes, u32 cta_rank, bool predicate = true
    ) {
        if (!predicate) return;
        check_cta_rank(cta_rank);
        check_range("bytes", bytes, 0, kMaxCount);
        ptx::mbarrier_arrive_expect_tx_cluster(ptx::mapa(address(), cta_rank), bytes);
    }

    // Credits bytes of a transfer that does not take place, so that its waiters go on.
    __device__ __forceinline__ void complete_transaction(
        u32 cta_rank, u32 bytes, bool predicate = true
    ) {
        if (!predicate) return;
        check_cta_rank(cta_rank);
        check_range("bytes", bytes, 0, kMaxCount);
        ptx::mbarrier_complete_tx_cluster(ptx::mapa(address(), cta_rank), bytes);
    }

    // Returns once the phase of this parity has completed. Never gives up; but a debug build ends a
    // kernel of which a wait takes longer than the host's Kernel allows.
    __device__ __forceinline__ void wait(u32 phase, WaitPlace place = {}) const {
        check_phase(phase);
        const TracedWait traced(address(), phase);
        if (ptx::has_waited(address(), phase, place)) return;
        while (!ptx::mbarrier_try_wait_parity(address(), phase)) {}
    }

    // The same, where each look suspends the thread for about this many nanoseconds at most.
    __device__ __forceinline__ void wait(u32 phase, u32 suspend_ns, WaitPlace place = {}) const {
        check_phase(phase);
        const TracedWait traced(address(), phase);
        if (ptx::has_waited(address(), phase, place)) return;
        while (!ptx::mbarrier_try_wait_parity_hint(address(), phase, suspend_ns)) {}
    }

    template <Scope kScope>
    __device__ __forceinline__ void wait_acquire(u32 phase, WaitPlace place = {}) const {
        check_phase(phase);
        if constexpr (kScope == Scope::kCta) {
            wait(phase, place);
        } else {
            const TracedWait traced(address(), phase);
            if (ptx::has_waited_cluster(address(), phase, place)) return;
            while (!ptx::mbarrier_try_wait_parity_cluster(address(), phase)) {}
        }
    }

    // The same without acquire, for a wait after which only TMA or wgmma touch the data.
    template <Scope kScope>
    __device__ __forceinline__ void wait_relaxed(u32 phase, WaitPlace place = {}) const {
        check_phase(phase);
        const TracedWait traced(address(), phase);
        if (ptx::has_waited(address(), phase, place)) return;
        if constexpr (kScope == Scope::kCta) {
            while (!ptx::mbarrier_try_wait_parity_relaxed(address(), phase)) {}
        } else {
            while (!ptx::mbarrier_try_wait_parity_relaxed_cluster(address(), phase)) {}
        }
    }

    // Whether the phase of this parity has completed. May suspend the thread for a bounded time.
    __device__ __forceinline__ bool try_wait(u32 phase, WaitPlace place = {}) const {
        check_phase(phase);
        if constexpr (ptx::kEndsHangs) {
            if (ptx::gives_up_looking(address(), phase, place)) return true;
        }
        return ptx::mbarrier_try_wait_parity(address(), phase);
    }

    // Whether the phase of this parity has completed. Never suspends the thread.
    __device__ __forceinline__ bool test_wait(u32 phase, WaitPlace place = {}) const {
        check_phase(phase);
        if constexpr (ptx::kEndsHangs) {
            if (ptx::gives_up_looking(address(), phase, place)) return true;
        }
        return ptx::mbarrier_test_wait_parity(address(), phase);
    }

    // Whether the phase of a state token has completed, which is the current one or the one before.
    __device__ __forceinline__ bool test_wait_state(u64 state) const {
        if constexpr (ptx::kEndsHangs) {
            if (ptx::is_draining()) return true;
        }
        return ptx::mbarrier_test_wait(address(), state);
    }

private:
    // Waits name a phase by its parity.
    __device__ __forceinline__ static void check_phase(u32 phase) {
        check_range("phase", phase, 0, 1);
    }
};
static_assert(sizeof(SharedMemBarrier) == 8, "an mbarrier is one 64-bit word");

// After init, by the initialising thread: makes the barriers visible to the cluster and to TMA.
__device__ __forceinline__ void fence_barrier_init() {
    ptx::fence_mbarrier_init();
}

// After ordinary writes to shared memory, by every writing thread, before a barrier that precedes a
// TMA store or a wgmma reading what was written.
__device__ __forceinline__ void fence_async_view_proxy() {
    ptx::fence_proxy_async_shared();
}

}  // namespace tmaasync
