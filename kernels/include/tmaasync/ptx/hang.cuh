#pragma once

#include <tmaasync/ptx/cluster.cuh>
#include <tmaasync/ptx/draining.cuh>
#include <tmaasync/ptx/mbarrier.cuh>

// The budget of waits in debug builds: in others every function here is nothing. The emulator,
// which finds hangs by itself, has its own version of this header.
namespace tmaasync::ptx {

#if defined(TMAASYNC_DEBUG) && TMAASYNC_DEBUG

// Where in the source a wait stands: of a default argument, where the call stands.
struct WaitPlace {
    const char* file;
    const char* function;
    u32 line;

    __device__ constexpr WaitPlace(
        const char* file = __builtin_FILE(),
        const char* function = __builtin_FUNCTION(),
        u32 line = __builtin_LINE()
    )
        : file(file), function(function), line(line) {}
};

constexpr u32 kLookEveryNs = 100;
// Once the kernel drains, the waits that it ends are held for so long: what is under way lands, and
// everybody has seen that it drains.
constexpr u64 kSettleNs = 2'000'000;
// A thread that still comes to waits then goes round in circles, and is ended.
constexpr u64 kDrainNs = 1'000'000'000;

__device__ __forceinline__ u64 globaltimer() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

__device__ __forceinline__ void exit_thread() {
    asm volatile("exit;" ::: "memory");
}

// The 64 bits of a barrier, which the PTX ISA keeps to itself. The chip has the barriers in use in
// a cache where loads do not look, and inval writes them back (measured on an H200): the last use.
__device__ __forceinline__ u64 mbarrier_last_word(u32 barrier) {
    mbarrier_inval(barrier);
    __nanosleep(kLookEveryNs);
    u64 word;
    asm volatile("ld.volatile.shared::cta.b64 %0, [%1];" : "=l"(word) : "r"(barrier) : "memory");
    return word;
}

__device__ __forceinline__ u32 dynamic_shared_address() {
    extern __shared__ __align__(1024) unsigned char tmaasync_dynamic_shared[];
    return shared_address(tmaasync_dynamic_shared);
}

// The same in all CTAs of a cluster, and in no others.
__device__ __forceinline__ u64 cluster_number() {
    const dim3 cluster = __clusterIdx();
    const dim3 clusters = __clusterGridDimInClusters();
    return cluster.x + u64{clusters.x} * (cluster.y + u64{clusters.y} * cluster.z);
}

// The end of a text that is too long.
__device__ __forceinline__ void copy_name(char (&target)[kNameBytes], const char* name) {
    int length = 0;
    while (name[length]) ++length;
    const int skipped = max(0, length - (kNameBytes - 1));
    for (int i = 0; i <= length - skipped; ++i) target[i] = name[skipped + i];
}

// By whoever is first. It is visible to all when this returns.
__device__ __forceinline__ void start_draining(HangState& state) {
    u64* const first = const_cast<u64*>(&state.first_cluster);
    if (atomicCAS(first, 0, 1 + cluster_number()) == 0) {
        state.drains_since_ns = globaltimer();
        __threadfence();
        state.is_draining = 1;
    }
    while (!is_draining()) {}
}

// Where to write what this warp waits for; null where there is no more room.
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
    record->cta_rank = cluster_ctarank();
    record->warp = warp;
    record->lanes = lanes;
}

// By one of the lanes that come here together.
__device__ __forceinline__ void record_wait(
    HangState& state, u32 barrier, u32 phase, u64 waited_ns, const WaitPlace& place
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
    record->line = place.line;
    record->word = mbarrier_last_word(barrier);
    record->waited_ns = waited_ns;
    copy_name(record->file, place.file);
    copy_name(record->function, place.function);
    __threadfence_system();
    record->is_written = 1;
}

// The end of a wait in a kernel that drains. All look at their barriers in the first half of the
// time to settle, and nobody after it, when the records take the barriers' last words.
__device__ __forceinline__ void leave_wait(
    HangState& state, u32 barrier, u32 phase, u64 start_ns, const WaitPlace& place
) {
    __threadfence();
    const u64 since = state.drains_since_ns;
    const u64 now = globaltimer();
    const bool may_look = now < since + kSettleNs / 2;
    const bool is_blocked = may_look && !mbarrier_test_wait_parity(barrier, phase);
    while (globaltimer() < since + kSettleNs) __nanosleep(kLookEveryNs);
    if (is_blocked) record_wait(state, barrier, phase, now - start_ns, place);
    if (globaltimer() > since + kDrainNs) exit_thread();
}

// Waits for the end of the phase of this parity, or of the kernel. In other builds that is left to
// the caller, and nothing was waited for.
__device__ __forceinline__ bool has_waited(u32 barrier, u32 phase, const WaitPlace& place) {
    HangState& state = tmaasync_hang_state;
    const u64 start = globaltimer();
    while (!is_draining()) {
        if (mbarrier_test_wait_parity(barrier, phase)) return true;
        if (state.budget_ns != 0 && globaltimer() - start > state.budget_ns) start_draining(state);
        __nanosleep(kLookEveryNs);
    }
    leave_wait(state, barrier, phase, start, place);
    return true;
}

// The same with acquire from all of the cluster.
__device__ __forceinline__ bool has_waited_cluster(u32 barrier, u32 phase, const WaitPlace& place) {
    const bool waited = has_waited(barrier, phase, place);
    __threadfence();
    return waited;
}

// Since when threads of a warp have been looking at one phase, again and again.
struct Looking {
    u32 barrier;
    u32 phase;
    u64 since_ns;
    u64 last_ns;
};

// By where a warp runs: room for more SMs than any GPU of this kind has.
constexpr u32 kMostSms = 160;
constexpr u32 kWarpsOfSm = 64;
inline __device__ Looking tmaasync_looking[kMostSms * kWarpsOfSm];

__device__ __forceinline__ Looking& looking() {
    u32 sm, warp;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm)::"memory");
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp)::"memory");
    return tmaasync_looking[sm % kMostSms * kWarpsOfSm + warp % kWarpsOfSm];
}

// One that was away for a while begins anew.
__device__ __forceinline__ u64 looked_since(u32 barrier, u32 phase, u64 budget_ns) {
    Looking& looking = ptx::looking();
    const u64 now = globaltimer();
    const bool is_same = looking.barrier == barrier && looking.phase == phase;
    if (!is_same || now - looking.last_ns > budget_ns / 8) looking = {barrier, phase, now, now};
    looking.last_ns = now;
    return looking.since_ns;
}

// Whether one look, in a loop of the caller's, is to be the last.
__device__ __forceinline__ bool gives_up_looking(u32 barrier, u32 phase, const WaitPlace& place) {
    HangState& state = tmaasync_hang_state;
    u64 since = globaltimer();
    if (!is_draining()) {
        if (mbarrier_test_wait_parity(barrier, phase)) return false;
        since = looked_since(barrier, phase, state.budget_ns);
        if (state.budget_ns == 0 || globaltimer() - since <= state.budget_ns) return false;
        start_draining(state);
    }
    leave_wait(state, barrier, phase, since, place);
    return true;
}

#else

struct WaitPlace {};

__device__ constexpr bool has_waited(u32, u32, const WaitPlace&) {
    return false;
}

__device__ constexpr bool has_waited_cluster(u32, u32, const WaitPlace&) {
    return false;
}

__device__ constexpr bool gives_up_looking(u32, u32, const WaitPlace&) {
    return false;
}

#endif

}  // namespace tmaasync::ptx
