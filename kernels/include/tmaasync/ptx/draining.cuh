#pragma once

#include <tmaasync/ptx/integers.cuh>

// How a debug build ends a kernel that hangs. The first wait that outlasts its budget has all
// others return too: the kernel drains, so that it ends and the CUDA context lives on. From then on
// nothing is copied, and nobody arrives: a CTA that has ended is not written to.
//
// The host lays HangState out a second time, in tmaasync/kernel/hangs.py.
namespace tmaasync::ptx {

#if defined(TMAASYNC_DEBUG) && TMAASYNC_DEBUG

// Asked at compile time where a second way out of a function would cost other builds something.
constexpr bool kEndsHangs = true;

constexpr int kNameBytes = 96;

// Threads of a warp that waited in vain, and what they waited for.
struct WaitRecord {
    volatile u32 is_written;
    u32 block[3];
    u32 cta_rank;
    u32 warp;
    u32 lanes;
    u32 barrier;  // its offset in the CTA's window of shared memory
    u32 dynamic;  // where dynamic shared memory starts there
    u32 phase;
    u32 line;
    u32 padding;
    u64 word;  // the barrier's
    u64 waited_ns;
    char file[kNameBytes];
    char function[kNameBytes];
};
static_assert(sizeof(WaitRecord) == 256, "the host reads it");

// The waits of one cluster tell more than as many of any.
constexpr u32 kRecordsOfCluster = 48;
constexpr u32 kRecordsOfOthers = 16;

struct HangState {
    WaitRecord* records;  // in host memory: those of the first cluster, then others'
    u64 budget_ns;        // of one wait; 0 has them wait for ever
    // What an SM must not keep in its cache: 1 + the number of the cluster whose wait outlasted its
    // budget first, and when.
    volatile u64 first_cluster;
    volatile u64 drains_since_ns;
    volatile u32 is_draining;
    u32 waits_of_cluster;
    u32 waits_of_others;
};
static_assert(sizeof(HangState) == 48, "the host writes it");

// Of this module.
extern "C" {
inline __device__ HangState tmaasync_hang_state;
}

__device__ __forceinline__ bool is_draining() {
    return tmaasync_hang_state.is_draining != 0;
}

#else

constexpr bool kEndsHangs = false;

__device__ constexpr bool is_draining() {
    return false;
}

#endif

}  // namespace tmaasync::ptx
