#pragma once

#include <tmaasync/operands/integers.cuh>

// Draining: the end of a kernel that hangs, in debug builds. The first wait that exceeds its budget
// makes all other waits return too, so that the kernel ends and the CUDA context survives. From
// then on nothing is copied and nobody arrives: a CTA that has ended is not written to.
//
// The host mirrors HangState in tmaasync/kernel/hangs.py.
namespace tmaasync::instrument {

#if defined(TMAASYNC_DEBUG) && TMAASYNC_DEBUG

// Asked at compile time where a second exit of a function would change the code of other builds.
constexpr bool kWatchesHangs = true;

constexpr int kNameBytes = 96;
constexpr int kRoleBytes = 32;

// Threads of a warp whose wait exceeded its budget, and the phase that they waited for.
struct WaitRecord {
    volatile u32 is_written;
    u32 block[3];
    u32 cta_rank;
    u32 warp;
    u32 lanes;
    u32 barrier;  // its offset in the CTA's shared memory
    u32 dynamic;  // the offset of dynamic shared memory
    u32 phase;
    u32 line;
    u32 role_number;
    u64 word;  // the barrier's
    u64 waited_ns;
    char file[kNameBytes];
    char function[kNameBytes];
    char role[kRoleBytes];  // empty: the kernel names none
};
static_assert(sizeof(WaitRecord) == 288, "the host reads it");

// Most records are kept for the first cluster: its waits explain more than waits of any clusters.
constexpr u32 kRecordsOfCluster = 48;
constexpr u32 kRecordsOfOthers = 16;

struct HangState {
    WaitRecord* records;  // in host memory: of the first cluster, then of others
    u64 budget_ns;        // of one wait; 0 means for ever
    // Not cached by an SM: 1 + the number of the cluster whose wait exceeded its budget first, and
    // when.
    volatile u64 first_cluster;
    volatile u64 drains_since_ns;
    volatile u32 is_draining;
    u32 waits_of_cluster;
    u32 waits_of_others;
};
static_assert(sizeof(HangState) == 48, "the host writes it");

// One per module.
extern "C" {
inline __device__ HangState tmaasync_hang_state;
}

__device__ __forceinline__ bool is_draining() {
    return tmaasync_hang_state.is_draining != 0;
}

#else

constexpr bool kWatchesHangs = false;

__device__ constexpr bool is_draining() {
    return false;
}

#endif

}  // namespace tmaasync::instrument
