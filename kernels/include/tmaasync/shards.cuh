// Shards of the rows of a matrix, one per rank, and the rounds in which ranks exchange them.
#pragma once
#include <tmaasync/ptx/gpu.cuh>
#include <tmaasync/signal.cuh>
#include <tmaasync/types.cuh>

namespace tmaasync {

// The shard of rank r has the rows from starts[r] to starts[r + 1]. A parameter that the host
// packs.
struct Shards {
    i32 starts[Signals::kMaxRanks + 1];
    i32 columns;
    i32 slots;  // signals for the parts of a shard, whatever its size

    __device__ __forceinline__ int rows(int rank) const { return starts[rank + 1] - starts[rank]; }
};

// Every launch adds this to the round counter.
constexpr u64 kRoundStep = 1 << 16;

// Return the epoch of this launch, counted from 1. The counter is in the rank's own memory, so that
// a CUDA graph can repeat the launch. Each of `callers` threads of the grid calls it once: the
// first adds what the others leave of kRoundStep, so no thread sees the next epoch.
__device__ __forceinline__ u32 enter_round(u64* counter, u32 caller, u32 callers) {
    const u64 share = caller == 0 ? kRoundStep - (callers - 1) : 1;
    return static_cast<u32>(ptx::atom_add_quotient<kRoundStep>(counter, share)) + 1;
}

// A rank's part in one round. Signal s of a pad is the epoch in which rank s has entered the round;
// `slots` signals for what each rank sends follow. Only rank s posts to the signals of rank s, so
// that they increase.
struct Round {
    const Signals& signals;
    const Shards& shards;
    u32 epoch;

    // Let all ranks store into the memory of this rank: all earlier launches of its stream are
    // done.
    __device__ __forceinline__ void enter() const {
        for (u32 peer = 0; peer < signals.ranks; ++peer) enter_at(peer);
    }

    // The same for one rank.
    __device__ __forceinline__ void enter_at(u32 peer) const {
        signals.post(peer, signals.rank, epoch);
    }

    __device__ __forceinline__ u32 signal_of(u32 source, int slot) const {
        return signals.ranks + source * shards.slots + slot;
    }
};

}  // namespace tmaasync
