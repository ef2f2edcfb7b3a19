#pragma once

#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/integers.cuh>

// What warps do, noted in global memory for tmaasync.trace: in builds with TMAASYNC_TRACE=1, which
// the host makes for a launch inside `with trace.record()`. In other builds every function here is
// nothing.
namespace tmaasync::ptx {

#if defined(TMAASYNC_TRACE) && TMAASYNC_TRACE
constexpr bool kIsTraced = true;
#else
constexpr bool kIsTraced = false;
#endif

// In the order of RecordKind in tmaasync/trace/chip/layout.py.
enum class TraceKind : u32 {
    kInit = 1,
    kExpect,
    kArrive,
    kWait,
    kLoad,
    kStore,
    kStoreCommit,
    kStoreWaitRead,
    kStoreWait,
    kMmaCommit,
    kMmaWait,
    kNamedArrive,
    kNamedWait,
    kClusterArrive,
    kClusterWait,
};

// RECORD_DTYPE of layout.py. `time` is when it was over; `more` when a wait began, or a number.
struct alignas(16) TraceRecord {
    u32 time;
    u32 what;   // kind: 5 bits, lane: 5, parity: 1, ready: 1, CTA of the barrier: 4, number: 16
    u32 where;  // barrier / 8: 16 bits, buffer / 16: 16
    u32 more;
};

// CLOCKS_DTYPE: the two clocks read at once.
struct alignas(16) TraceClocks {
    u64 global_ns;
    u64 cycles;
};

constexpr int kTraceClocks = 16;
constexpr u32 kTraceNothing = ~0u;

// WARP_DTYPE. The first clocks are those of the block's opening, the others of some of its waits.
struct TraceWarp {
    TraceClocks clocks[kTraceClocks];
    u32 processor;
    u32 dynamic_shared;
    u64 unused;
};

// BUFFER_DTYPE, written by the host before each launch. Behind a warp's records there is one more,
// for the last of those that have no room, with the number of all in `more`.
struct TraceBuffer {
    TraceWarp* warps;
    TraceRecord* records;
    u32 records_per_warp;
    u32 blocks;
    u32 launch;
    u32 unused;
};

// In shared memory: where a warp notes, and how much it has. The tag tells whether it is this
// block's of this launch, or what an earlier one left there.
struct alignas(16) TraceSlot {
    u32 tag;
    u32 used;
    TraceRecord* records;
};

#if defined(TMAASYNC_TRACE) && TMAASYNC_TRACE
extern "C" __constant__ TraceBuffer tmaasync_trace = {};
#endif

// What the host told; null in builds that are not traced.
__device__ __forceinline__ const TraceBuffer* trace_buffer() {
#if defined(TMAASYNC_TRACE) && TMAASYNC_TRACE
    return &tmaasync_trace;
#else
    return nullptr;
#endif
}

// The multiprocessor's cycle, or 0 in a build that is not traced.
__device__ __forceinline__ u32 trace_clock() {
    u32 cycles = 0;
    if constexpr (kIsTraced) asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
    return cycles;
}

__device__ __forceinline__ TraceClocks trace_clocks() {
    TraceClocks now;
    asm volatile("mov.u64 %0, %%globaltimer;\n\tmov.u64 %1, %%clock64;"
                 : "=l"(now.global_ns), "=l"(now.cycles)::"memory");
    return now;
}

__device__ __forceinline__ u32 trace_processor() {
    u32 processor;
    asm("mov.u32 %0, %%smid;" : "=r"(processor));
    return processor;
}

__device__ __forceinline__ u32 trace_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ u32 trace_block() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

__device__ __forceinline__ u32 trace_thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__device__ __forceinline__ u32 trace_warps() {
    return (blockDim.x * blockDim.y * blockDim.z + 31) / 32;
}

__device__ __forceinline__ u32 trace_tag() {
    return trace_buffer()->launch + trace_block() * 0x9E3779B1u;
}

// The first byte of dynamic shared memory, at whose end the host leaves room for the slots.
__device__ __forceinline__ u32 trace_dynamic_shared() {
    extern __shared__ __align__(1024) unsigned char tmaasync_trace_shared[];
    return shared_address(tmaasync_trace_shared);
}

__device__ __forceinline__ TraceSlot* trace_slot(u32 warp) {
    extern __shared__ __align__(1024) unsigned char tmaasync_trace_shared[];
    u32 size_bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size_bytes));
    auto* end = reinterpret_cast<TraceSlot*>(tmaasync_trace_shared + size_bytes);
    return end - trace_warps() + warp;
}

__device__ __forceinline__ TraceSlot trace_read(const TraceSlot* slot) {
    TraceSlot seen;
    asm volatile(
        "ld.volatile.shared.v2.u32 {%0, %1}, [%3];\n\t"
        "ld.volatile.shared.u64 %2, [%3 + 8];"
        : "=r"(seen.tag), "=r"(seen.used), "=l"(seen.records)
        : "r"(shared_address(slot))
        : "memory"
    );
    return seen;
}

__device__ __forceinline__ void trace_store_record(
    TraceRecord* record, u32 time, u32 what, u32 where, u32 more
) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(record)),
                 "r"(time), "r"(what), "r"(where), "r"(more)
                 : "memory");
}

// Before the first barrier of the block is initialised, by the thread that does it: from here on
// its warps note. Several threads may come, each once or more.
__device__ __forceinline__ void trace_open() {
    const u32 block = trace_block();
    // The last is opened last.
    const bool is_open = trace_read(trace_slot(trace_warps() - 1)).tag == trace_tag();
    if (is_open || block >= trace_buffer()->blocks) return;
    const TraceClocks now = trace_clocks();
    for (u32 warp = 0; warp < trace_warps(); ++warp) {
        const u64 index = static_cast<u64>(block) * trace_warps() + warp;
        TraceWarp& home = trace_buffer()->warps[index];
        home.clocks[0] = now;
        home.processor = trace_processor();
        home.dynamic_shared = trace_dynamic_shared();
        TraceSlot* slot = trace_slot(warp);
        slot->records = trace_buffer()->records + index * (trace_buffer()->records_per_warp + 1);
        __threadfence_block();
        for (TraceSlot seen = trace_read(slot); seen.tag != trace_tag(); seen = trace_read(slot)) {
            const u64 before = static_cast<u64>(seen.used) << 32 | seen.tag;
            atomicCAS(reinterpret_cast<u64*>(slot), before, static_cast<u64>(trace_tag()));
        }
    }
}

// Returns the record's number, or kTraceNothing. Kept short: it lies between the instructions that
// are being timed.
__device__ __forceinline__ u32
trace_note(TraceKind kind, u32 time, u32 where, u32 more, u32 flags = 0) {
    TraceSlot* slot = trace_slot(trace_thread() / 32);
    // Counted before the tag is known, so that the two do not wait for each other.
    const u32 index = atomicAdd(&slot->used, 1);
    const TraceSlot seen = trace_read(slot);
    if (seen.tag != trace_tag()) return kTraceNothing;
    const u32 room = trace_buffer()->records_per_warp;
    const u32 what = static_cast<u32>(kind) | trace_thread() % 32 << 5 | flags;
    const bool has_room = index < room;
    trace_store_record(
        seen.records + (has_room ? index : room), time, what, where, has_room ? more : index
    );
    return index;
}

// Of the latest records, one time of every 32: enough to fit a line through.
__device__ __forceinline__ void trace_read_clocks(u32 index) {
    const u64 warp = static_cast<u64>(trace_block()) * trace_warps() + trace_thread() / 32;
    trace_buffer()->warps[warp].clocks[1 + index / 32 % (kTraceClocks - 1)] = trace_clocks();
}

// The home of a shared::cluster address.
__device__ __forceinline__ u32 trace_rank_of(u32 remote) {
    u32 rank;
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank) : "r"(remote) : "memory");
    return rank;
}

// --- what the instructions note -----------------------------------------------------------------

// Whether this lane notes what all of these do.
__device__ __forceinline__ bool trace_leads(u32 lanes) {
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return (lanes & ((1u << thread % 32) - 1)) == 0;
}

__device__ __forceinline__ constexpr u32 trace_place(u32 barrier, u32 shared = 0) {
    return barrier / 8 & 0xFFFF | shared / 16 << 16;
}

__device__ __forceinline__ constexpr u32 trace_home(u32 rank) {
    return rank << 12;
}

__device__ __forceinline__ constexpr u32 trace_number(u32 number) {
    return number << 16;
}

// Lanes may have different barriers; those of the same are noted as one, and how many they are.
__device__ __forceinline__ void trace_on_barrier(
    TraceKind kind, u32 barrier, u32 home, u32 amount
) {
    if constexpr (kIsTraced) {
        const u32 now = trace_clock();
        u32 lanes = __activemask();
        if (__popc(lanes) > 1) lanes = __match_any_sync(lanes, barrier << 4 | home);
        if (!trace_leads(lanes)) return;
        const u32 flags = trace_home(home) | trace_number(__popc(lanes));
        trace_note(kind, now, trace_place(barrier), amount, flags);
    }
}

__device__ __forceinline__ void trace_init(u32 barrier, u32 count) {
    if constexpr (kIsTraced) {
        trace_open();
        trace_on_barrier(TraceKind::kInit, barrier, trace_rank(), count);
    }
}

__device__ __forceinline__ void trace_arrive(u32 barrier, u32 count = 1) {
    if constexpr (kIsTraced) trace_on_barrier(TraceKind::kArrive, barrier, trace_rank(), count);
}

__device__ __forceinline__ void trace_expect(u32 barrier, u32 bytes) {
    if constexpr (kIsTraced) trace_on_barrier(TraceKind::kExpect, barrier, trace_rank(), bytes);
}

// The same of mapa addresses, which as a rule are another in each lane: all note.
__device__ __forceinline__ void trace_on_remote(TraceKind kind, u32 remote_barrier, u32 amount) {
    if constexpr (kIsTraced) {
        const u32 home = trace_rank_of(remote_barrier);
        const u32 place = trace_place(remote_barrier - mapa(0u, home));
        trace_note(kind, trace_clock(), place, amount, trace_home(home) | trace_number(1));
    }
}

__device__ __forceinline__ void trace_arrive_cluster(u32 remote_barrier, u32 count) {
    if constexpr (kIsTraced) trace_on_remote(TraceKind::kArrive, remote_barrier, count);
}

__device__ __forceinline__ void trace_expect_cluster(u32 remote_barrier, u32 bytes) {
    if constexpr (kIsTraced) trace_on_remote(TraceKind::kExpect, remote_barrier, bytes);
}

// A wait of the warp that is over.
__device__ __forceinline__ void trace_wait(TraceKind kind, u32 began, u32 where, u32 flags) {
    if constexpr (kIsTraced) {
        const u32 now = trace_clock();
        if (trace_leads(__activemask())) trace_note(kind, now, where, began, flags);
    }
}

__device__ __forceinline__ void trace_phase_wait(u32 barrier, u32 parity, bool ready, u32 began) {
    if constexpr (kIsTraced) {
        const u32 now = trace_clock();
        if (!trace_leads(__activemask())) return;
        const u32 flags = trace_home(trace_rank()) | parity << 10 | u32{ready} << 11;
        const u32 index = trace_note(TraceKind::kWait, now, trace_place(barrier), began, flags);
        // Of every few notes one is a wait, so that of every 32 one reads the clocks, or a few.
        if (index % 32 < 4) trace_read_clocks(index);
    }
}

// Every lane's load and store is one of its own. A mask of CTAs is 0 unless many receive the load.
__device__ __forceinline__ void trace_load(
    u32 shared, u32 barrier, u32 bytes = 0, u16 cta_mask = 0
) {
    if constexpr (kIsTraced) {
        const u32 flags = trace_home(trace_rank()) | trace_number(cta_mask);
        trace_note(TraceKind::kLoad, trace_clock(), trace_place(barrier, shared), bytes, flags);
    }
}

__device__ __forceinline__ void trace_store(u32 shared, u32 bytes = 0) {
    if constexpr (kIsTraced) {
        trace_note(TraceKind::kStore, trace_clock(), trace_place(0, shared), bytes);
    }
}

__device__ __forceinline__ void trace_store_commit() {
    if constexpr (kIsTraced) trace_note(TraceKind::kStoreCommit, trace_clock(), 0, 0);
}

// What a warp does as one.
__device__ __forceinline__ void trace_warp(TraceKind kind, u32 barrier = 0) {
    if constexpr (kIsTraced) {
        const u32 now = trace_clock();
        if (trace_leads(__activemask())) trace_note(kind, now, barrier, 0);
    }
}

}  // namespace tmaasync::ptx
