#pragma once

#include <tmaasync/operands/integers.cuh>

// Waits for signals have no budget here: the emulator itself detects that no thread can go on.
namespace tmaasync::instrument {

constexpr int kMaxRanks = 16;

struct SignalRecords {};

struct SignalLocation {};

struct SignalWait {
    const u32* word;
    SignalRecords* records;
    u64 budget_ns;
    u32 rank;
    u32 signal;
    u32 epoch;
};

__device__ __forceinline__ void wait_for_signal(const SignalWait& wait, const SignalLocation&) {
    tmaasync_emulate::wait_for_signal(wait.word, wait.rank, wait.signal, wait.epoch);
}

__device__ __forceinline__ void post_signal(u32* word, u32 to, u32 signal, u32 epoch) {
    tmaasync_emulate::post_signal(word, to, signal, epoch);
}

__device__ __forceinline__ void add_to_signal(u32* word, u32 to, u32 signal, u32 value) {
    tmaasync_emulate::add_to_signal(word, to, signal, value);
}

}  // namespace tmaasync::instrument
