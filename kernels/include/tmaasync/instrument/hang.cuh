#pragma once

#include <tmaasync/instrument/draining.cuh>
#include <tmaasync/instrument/role.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/cluster.cuh>
#include <tmaasync/ptx/exit.cuh>
#include <tmaasync/ptx/mbarrier.cuh>
#include <tmaasync/ptx/shared.cuh>
#include <tmaasync/ptx/special_registers.cuh>

// The hang watch: the budget of waits in debug builds. In other builds every function here is
// nothing. The emulator, which finds hangs by itself, replaces this header.
namespace tmaasync::instrument {

#if defined(TMAASYNC_DEBUG) && TMAASYNC_DEBUG

// The source location of a wait: as a default argument, the location of the call.
struct WaitLocation {
    const char* file;
    const char* function;
    u32 line;

    __device__ constexpr WaitLocation(
        const char* file = __builtin_FILE(),
        const char* function = __builtin_FUNCTION(),
        u32 line = __builtin_LINE()
    )
        : file(file), function(function), line(line) {}
};

constexpr u32 kLookEveryNs = 100;
// The time that a draining kernel holds each wait before it returns: copies in flight land
// meanwhile, and every thread sees that the kernel drains.
constexpr u64 kSettleNs = 2'000'000;
// A thread that still comes to waits after this time loops without end, and is ended.
constexpr u64 kDrainNs = 1'000'000'000;

// The 64 bits of a barrier, which are opaque in the PTX ISA. The chip keeps barriers in use in a
// cache that loads do not see, and inval writes them back (measured on an H200): the barrier's end.
__device__ __forceinline__ u64 mbarrier_last_word(u32 barrier) {
    ptx::mbarrier_inval(barrier);
    __nanosleep(kLookEveryNs);
    return ptx::ld_volatile_shared(barrier);
}

__device__ __forceinline__ u32 dynamic_shared_address() {
    extern __shared__ __align__(1024) unsigned char tmaasync_dynamic_shared[];
    return ptx::shared_address(tmaasync_dynamic_shared);
}

// The number of this CTA's cluster in the grid.
__device__ __forceinline__ u64 cluster_number() {
    const dim3 cluster = __clusterIdx();
    const dim3 clusters = __clusterGridDimInClusters();
    return cluster.x + u64{clusters.x} * (cluster.y + u64{clusters.y} * cluster.z);
}

// Copy a name; of one that is too long, its end.
template <int kBytes>
__device__ __forceinline__ void copy_name(char (&target)[kBytes], const char* name) {
    int length = 0;
    while (name[length]) ++length;
    const int skipped = max(0, length - (kBytes - 1));
    for (int i = 0; i <= length - skipped; ++i) target[i] = name[skipped + i];
}

// Make the kernel drain. It is visible to all threads when this returns.
__device__ __forceinline__ void start_draining(HangState& state) {
    u64* const first = const_cast<u64*>(&state.first_cluster);
    if (atomicCAS(first, 0, 1 + cluster_number()) == 0) {
        state.drains_since_ns = ptx::globaltimer();
        __threadfence();
        state.is_draining = 1;
    }
    while (!is_draining()) {}
}

// Take a record for this warp's wait; null where none is left.
__device__ __forceinline__ WaitRecord* take_record(HangState& state) {
    if (state.first_cluster == 1 + cluster_number()) {
        const u32 index = atomicAdd(&state.waits_of_cluster, 1);
        return index < kRecordsOfCluster ? state.records + index : nullptr;
    }
    const u32 index = atomicAdd(&state.waits_of_others, 1);
    return index < kRecordsOfOthers ? state.records + kRecordsOfCluster + index : nullptr;
}

__device__ __forceinline__ void record_threads(WaitRecord* record, u32 warp, u32 lanes) {
    record->block[0] = blockIdx.x;
    record->block[1] = blockIdx.y;
    record->block[2] = blockIdx.z;
    record->cta_rank = ptx::cluster_ctarank();
    record->warp = warp;
    record->lanes = lanes;
    const WarpRole role = role_of_warp();
    copy_name(record->role, role.name ? role.name : "");
    record->role_number = role.number;
}

// Record a wait, in one of the lanes that come here together.
__device__ __forceinline__ void record_wait(
    HangState& state, u32 barrier, u32 phase, u64 waited_ns, const WaitLocation& location
) {
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const u32 lanes = __activemask();
    if (thread % 32 != __ffs(lanes) - 1) return;
    WaitRecord* const record = take_record(state);
    if (record == nullptr) return;
    record_threads(record, thread / 32, lanes);
    record->barrier = barrier;
    record->dynamic = dynamic_shared_address();
    record->phase = phase;
    record->line = location.line;
    record->word = mbarrier_last_word(barrier);
    record->waited_ns = waited_ns;
    copy_name(record->file, location.file);
    copy_name(record->function, location.function);
    __threadfence_system();
    record->is_written = 1;
}

// End a wait in a kernel that drains. Barriers are tested in the first half of the time to settle
// only: after it the records take the barriers' last words, which ends the barriers.
__device__ __forceinline__ void leave_wait(
    HangState& state, u32 barrier, u32 phase, u64 start_ns, const WaitLocation& location
) {
    __threadfence();
    const u64 since = state.drains_since_ns;
    const u64 now = ptx::globaltimer();
    const bool may_look = now < since + kSettleNs / 2;
    const bool is_blocked = may_look && !ptx::mbarrier_test_wait_parity(barrier, phase);
    while (ptx::globaltimer() < since + kSettleNs) __nanosleep(kLookEveryNs);
    if (is_blocked) record_wait(state, barrier, phase, now - start_ns, location);
    if (ptx::globaltimer() > since + kDrainNs) ptx::exit();
}

// Wait until the phase of this parity has completed, or until the kernel drains. In other builds it
// returns false at once, and the caller waits.
__device__ __forceinline__ bool has_waited(u32 barrier, u32 phase, const WaitLocation& location) {
    HangState& state = tmaasync_hang_state;
    const u64 start = ptx::globaltimer();
    while (!is_draining()) {
        if (ptx::mbarrier_test_wait_parity(barrier, phase)) return true;
        const u64 waited = ptx::globaltimer() - start;
        if (state.budget_ns != 0 && waited > state.budget_ns) start_draining(state);
        __nanosleep(kLookEveryNs);
    }
    leave_wait(state, barrier, phase, start, location);
    return true;
}

// Wait with acquire from all of the cluster.
__device__ __forceinline__ bool has_waited_cluster(
    u32 barrier, u32 phase, const WaitLocation& location
) {
    const bool waited = has_waited(barrier, phase, location);
    __threadfence();
    return waited;
}

// A loop of the caller's around try_wait or test_wait: the phase, and since when it has polled it.
struct Polling {
    u32 barrier;
    u32 phase;
    u64 since_ns;
    u64 last_ns;
};

inline __device__ Polling tmaasync_polling[kWarpSlots];

__device__ __forceinline__ Polling& polling_of_warp() {
    return tmaasync_polling[warp_slot()];
}

// When this warp began to poll this phase. A pause of an eighth of the budget begins anew.
__device__ __forceinline__ u64 polls_since(u32 barrier, u32 phase, u64 budget_ns) {
    Polling& polling = polling_of_warp();
    const u64 now = ptx::globaltimer();
    const bool is_same = polling.barrier == barrier && polling.phase == phase;
    if (!is_same || now - polling.last_ns > budget_ns / 8) polling = {barrier, phase, now, now};
    polling.last_ns = now;
    return polling.since_ns;
}

// End a loop of the caller's around try_wait or test_wait that exceeds the budget: true when it is
// to stop.
__device__ __forceinline__ bool gives_up(u32 barrier, u32 phase, const WaitLocation& location) {
    HangState& state = tmaasync_hang_state;
    u64 since = ptx::globaltimer();
    if (!is_draining()) {
        if (ptx::mbarrier_test_wait_parity(barrier, phase)) return false;
        since = polls_since(barrier, phase, state.budget_ns);
        if (state.budget_ns == 0 || ptx::globaltimer() - since <= state.budget_ns) return false;
        start_draining(state);
    }
    leave_wait(state, barrier, phase, since, location);
    return true;
}

#else

struct WaitLocation {};

__device__ constexpr bool has_waited(u32, u32, const WaitLocation&) {
    return false;
}

__device__ constexpr bool has_waited_cluster(u32, u32, const WaitLocation&) {
    return false;
}

__device__ constexpr bool gives_up(u32, u32, const WaitLocation&) {
    return false;
}

#endif

}  // namespace tmaasync::instrument
