#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/instrument/signal.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/ptx/system.cuh>

namespace tmaasync {

using instrument::SignalLocation;

// Flags in the memory of several ranks (GPUs), which order accesses to each other's memory. Every
// rank has a pad of `count` signals. A signal holds an epoch, which increases monotonically:
// nothing is reset between launches. An out-of-range rank or signal is a fault. Pass the struct by
// value; the host's `Signals` makes one per rank.
//
// Producer, after TMA stores or reductions to a peer: commit_group() and wait_group<0>() in every
// issuing thread (wait_group_read only frees shared memory), __syncthreads() if there are several,
// then post() in one thread. Consumer: wait() in the thread that issues the loads; threads that
// read by ordinary loads synchronise with it by __syncthreads(). If TMA at the peer reads ordinary
// writes of threads, every writing thread also needs ptx::fence_proxy_async_global() before the
// __syncthreads().
struct Signals {
    static constexpr int kMaxRanks = instrument::kMaxRanks;

    u32* pads[kMaxRanks];  // each pad in its rank's memory
    instrument::SignalRecords* records;
    u64 budget_ns;  // maximum duration of a wait
    u32 ranks;
    u32 rank;  // own rank
    u32 count;
    u32 padding;

    // Set a signal of a rank to an epoch. All earlier accesses are visible to the thread that waits
    // for it (release at system scope).
    __device__ __forceinline__ void post(u32 to, u32 signal, u32 epoch) const {
        instrument::post_signal(word(to, signal), to, signal, epoch);
    }

    // Add to a signal of a rank, with release at system scope, so that several producers can
    // increment one signal. Do not post() to the same signal.
    __device__ __forceinline__ void post_reduce(u32 to, u32 signal, u32 value = 1) const {
        instrument::add_to_signal(word(to, signal), to, signal, value);
    }

    // Return the epoch of one of this rank's own signals (acquire at system scope). TMA loads of
    // announced data need ptx::fence_proxy_async_global() first.
    __device__ __forceinline__ u32 epoch_of(u32 signal) const {
        return ptx::ld_acquire_sys(word(rank, signal));
    }

    // Wait until one of this rank's own signals has reached an epoch, counted modulo 2^32. The
    // poster's earlier writes are then visible to this thread, and to TMA copies that it issues. If
    // a wait exceeds its budget, the host raises HangError: a release build traps, and in a debug
    // build all waits of all ranks return, with undefined data.
    __device__ __forceinline__ void wait(
        u32 signal, u32 epoch, SignalLocation location = {}
    ) const {
        instrument::wait_for_signal(
            {word(rank, signal), records, budget_ns, rank, signal, epoch}, location
        );
        ptx::fence_proxy_async_global();
    }

    // Synchronise one block of every rank; called by all its threads. It uses `ranks` signals from
    // `first` on, one per rank; blocks that synchronise concurrently must use different signals.
    // Epochs count up from 1. All earlier accesses happen before all later accesses; so do earlier
    // TMA copies for which wait_group<0>() has waited.
    __device__ __forceinline__ void sync_ranks(
        u32 first, u32 epoch, SignalLocation location = {}
    ) const {
        // Make this thread's writes visible to TMA at the peers.
        ptx::fence_proxy_async_global();
        __syncthreads();
        const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        const u32 threads = blockDim.x * blockDim.y * blockDim.z;
        for (u32 peer = thread; peer < ranks; peer += threads) post(peer, first + rank, epoch);
        for (u32 peer = thread; peer < ranks; peer += threads) wait(first + peer, epoch, location);
        __syncthreads();
        ptx::fence_proxy_async_global();
    }

private:
    __device__ __forceinline__ u32* word(u32 of, u32 signal) const {
        check_index("rank", of, ranks);
        check_index("signal", signal, count);
        if constexpr (instrument::kIsEmulated) {
            if (of >= ranks) instrument::trap_beyond("rank", of, ranks);
            if (signal >= count) instrument::trap_beyond("signal", signal, count);
        }
        // An access to null ends the kernel too. A trap in a branch that some threads take would
        // cost its warp the uniform registers: 268 instead of 202 instructions in the main loop of
        // scaled_gemm_reduce_scatter.cu (nvcc 13.0).
        return of < ranks && signal < count ? pads[of] + signal : nullptr;
    }
};

}  // namespace tmaasync
