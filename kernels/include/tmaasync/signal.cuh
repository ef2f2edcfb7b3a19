#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/instrument/signal.cuh>
#include <tmaasync/ptx/fence.cuh>
#include <tmaasync/ptx/system.cuh>

namespace tmaasync {

using instrument::SignalLocation;

// Flags in the memory of several ranks (GPUs), by which they order their accesses to each other's
// memory. Every rank has a pad of `count` signals. A signal holds an epoch that only grows: a fast
// rank may be one round ahead, and nothing is reset between launches. A rank or a signal beyond
// them traps. Pass it by value; the host's `Signals` makes one for each rank.
//
// The producer, after TMA stores or reductions to a peer: commit_group() and wait_group<0>() in
// every issuing thread (wait_group_read frees shared memory and nothing else), __syncthreads()
// where they are several, then post() by one thread. The consumer: wait() by the thread that issues
// the loads. What threads wrote themselves and TMA reads at the peer needs
// ptx::fence_proxy_async_global() in every writing thread too, before the __syncthreads().
struct Signals {
    static constexpr int kMaxRanks = instrument::kMaxRanks;

    u32* pads[kMaxRanks];  // each in its rank's memory
    instrument::SignalRecords* records;
    u64 budget_ns;  // of a wait
    u32 ranks;
    u32 rank;  // this one
    u32 count;
    u32 padding;

    // Set a signal of a rank to an epoch. All that happened before is visible to whoever waits for
    // it (release at system scope).
    __device__ __forceinline__ void post(u32 to, u32 signal, u32 epoch) const {
        instrument::post_signal(word(to, signal), to, signal, epoch);
    }

    // Add to a signal of a rank, with release at system scope: several producers count up one
    // signal. No rank sets the same signal with post().
    __device__ __forceinline__ void post_reduce(u32 to, u32 signal, u32 value = 1) const {
        instrument::add_to_signal(word(to, signal), to, signal, value);
    }

    // Return the epoch of one of this rank's own signals (acquire at system scope). TMA loads of
    // what it announces need ptx::fence_proxy_async_global() first.
    __device__ __forceinline__ u32 epoch_of(u32 signal) const {
        return ptx::ld_acquire_sys(word(rank, signal));
    }

    // Wait until one of this rank's own signals has reached an epoch, counted modulo 2^32. What the
    // poster did before is then visible to this thread, and to TMA copies that it issues. A wait
    // that outlasts its budget ends the kernel, and the host raises HangError.
    __device__ __forceinline__ void wait(
        u32 signal, u32 epoch, SignalLocation location = {}
    ) const {
        instrument::wait_for_signal(
            {word(rank, signal), records, budget_ns, rank, signal, epoch}, location
        );
        ptx::fence_proxy_async_global();
    }

    // Synchronise one block of every rank, by all its threads. It takes `ranks` signals from
    // `first` on, one for each rank; blocks that synchronise at the same time take different ones.
    // Epochs count up from 1. All accesses before it happen before all accesses after it, and so do
    // TMA copies before it that were waited for with wait_group<0>().
    __device__ __forceinline__ void sync_ranks(
        u32 first, u32 epoch, SignalLocation location = {}
    ) const {
        // What this thread wrote, for TMA at the peers.
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
        if (of >= ranks) instrument::trap_beyond("rank", of, ranks);
        if (signal >= count) instrument::trap_beyond("signal", signal, count);
        return pads[of] + signal;
    }
};

}  // namespace tmaasync
