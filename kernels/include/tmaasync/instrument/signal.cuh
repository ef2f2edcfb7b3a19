#pragma once

#include <tmaasync/instrument/draining.cuh>
#include <tmaasync/instrument/trace.cuh>
#include <tmaasync/ptx/special_registers.cuh>
#include <tmaasync/ptx/system.cuh>

// Waits for signals, which end in every build: with the epoch, or when their budget is spent. The
// emulator, which finds hangs by itself, replaces this header.
//
// The host mirrors the structs in tmaasync/signal.py.
namespace tmaasync::instrument {

constexpr int kMaxRanks = 16;
constexpr int kRecordsOfRank = 8;
constexpr int kFileBytes = 96;

enum RecordState : u32 {
    kFree,
    kTaken,
    kWritten,
};

// A wait that was given up.
struct SignalRecord {
    volatile u32 state;
    u32 rank;
    u32 signal;
    u32 epoch;
    u32 seen;
    u32 block[3];
    u32 thread;
    u32 line;
    u64 waited_ns;
    char file[kFileBytes];
};
static_assert(sizeof(SignalRecord) == 144, "the host reads it");

// In host memory, which all GPUs of the process reach.
struct SignalRecords {
    volatile u32 has_hung;
    u32 padding[3];
    SignalRecord records[kMaxRanks][kRecordsOfRank];
};

// The source location of a wait: as a default argument, the location of the call.
struct SignalLocation {
    const char* file;
    u32 line;

    __device__ constexpr SignalLocation(
        const char* file = __builtin_FILE(), u32 line = __builtin_LINE()
    )
        : file(file), line(line) {}
};

// Which signal a thread waits for, and who gives up.
struct SignalWait {
    const u32* word;
    SignalRecords* records;
    u64 budget_ns;
    u32 rank;
    u32 signal;
    u32 epoch;
};

// Epochs are compared modulo 2^32, as cuStreamWaitValue32 does.
__device__ __forceinline__ bool is_reached(u32 seen, u32 epoch) {
    return static_cast<int>(seen - epoch) >= 0;
}

// Take a record of a rank, all of whose kernels run on one device; null where none is left.
__device__ __forceinline__ SignalRecord* take_record(SignalRecord (&records)[kRecordsOfRank]) {
    for (SignalRecord& record : records) {
        if (atomicCAS(const_cast<u32*>(&record.state), kFree, kTaken) == kFree) return &record;
    }
    return nullptr;
}

__device__ __noinline__ inline void record_signal(
    const SignalWait& wait, u32 seen, u64 waited_ns, const SignalLocation& location
) {
    SignalRecord* const taken = take_record(wait.records->records[wait.rank]);
    if (taken == nullptr) return;
    SignalRecord& record = *taken;
    record.rank = wait.rank;
    record.signal = wait.signal;
    record.epoch = wait.epoch;
    record.seen = seen;
    record.block[0] = blockIdx.x;
    record.block[1] = blockIdx.y;
    record.block[2] = blockIdx.z;
    record.thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    record.line = location.line;
    record.waited_ns = waited_ns;
    int length = 0;
    while (location.file[length]) ++length;
    const int skipped = max(0, length - (kFileBytes - 1));
    for (int i = 0; i <= length - skipped; ++i) record.file[i] = location.file[skipped + i];
    __threadfence_system();
    record.state = kWritten;
}

// The budget is spent. In a debug build the waits of all ranks end from now on, and the kernels
// with them. In others the kernel ends here, and its context: nobody computes with data that never
// came.
__device__ __noinline__ inline void give_up_signal(
    const SignalWait& wait, u32 seen, u64 waited_ns, const SignalLocation& location
) {
    record_signal(wait, seen, waited_ns, location);
    wait.records->has_hung = 1;
    __threadfence_system();
    if constexpr (!kWatchesHangs) __trap();
}

constexpr int kPollsPerLook = 256;
// How often a wait looks in host memory whether another rank has given up.
constexpr u64 kHungLookNs = 1'000'000;

// Returns whether the epoch was reached.
__device__ __forceinline__ bool await_epoch(
    const SignalWait& wait, const SignalLocation& location
) {
    u32 seen = ptx::ld_acquire_sys(wait.word);
    if (is_reached(seen, wait.epoch)) return true;
    const u64 start = ptx::globaltimer();
    u64 next_look = start;
    while (true) {
        // Unrolled by the compiler, a wait has 170 instructions more (nvcc 13.0).
#pragma unroll 1
        for (int poll = 0; poll < kPollsPerLook; ++poll) {
            seen = ptx::ld_acquire_sys(wait.word);
            if (is_reached(seen, wait.epoch)) return true;
        }
        const u64 now = ptx::globaltimer();
        if (now - start > wait.budget_ns) {
            give_up_signal(wait, seen, now - start, location);
            return false;
        }
        if (now < next_look) continue;
        next_look = now + kHungLookNs;
        if constexpr (kWatchesHangs) {
            if (wait.records->has_hung) return false;
        }
    }
}

__device__ __forceinline__ void wait_for_signal(
    const SignalWait& wait, const SignalLocation& location
) {
    trace_signal(TraceKind::kSignalWaitBegin, wait.rank, wait.signal, wait.epoch);
    const bool is_reached_in_time = await_epoch(wait, location);
    trace_signal_wait(wait.rank, wait.signal, wait.epoch, is_reached_in_time);
}

// Posts, by the word of the signal. Noted before: the wait that they end comes after.
__device__ __forceinline__ void post_signal(u32* word, u32 to, u32 signal, u32 epoch) {
    trace_signal(TraceKind::kSignalPost, to, signal, epoch);
    ptx::st_release_sys(word, epoch);
}

__device__ __forceinline__ void add_to_signal(u32* word, u32 to, u32 signal, u32 value) {
    trace_signal(TraceKind::kSignalAdd, to, signal, value);
    ptx::red_release_sys_add(word, value);
}

}  // namespace tmaasync::instrument
