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

#if defined(TMAASYNC_TRACE) && TMAASYNC_TRACE

// RECORD_DTYPE of layout.py. `time` is when it was over; `more` when a wait began, or a number.
struct alignas(16) TraceRecord {
    u32 time;
    u32 what;   // kind: 5 bits, lane: 5, parity: 1, ready: 1, CTA of the barrier: 4, number: 16
    u32 where;  // barrier / 8: 16 bits, buffer / 16: 16
    u32 more;
};

// CLOCKS_DTYPE: the two clocks read at once.
struct TraceClocks {
    u64 global_ns;
    u64 cycles;
};

// WARP_DTYPE. Clocks are read with records 0, 1, 2, 4, 8, ... of the warp.
struct alignas(16) TraceWarp {
    TraceClocks clocks[16];
    u32 dropped;
    u32 processor;
    u32 dynamic_shared;
    u32 unused;
};

// BUFFER_DTYPE, written by the host before each launch.
struct TraceBuffer {
    TraceWarp* warps;
    TraceRecord* records;
    u32 records_per_warp;
    u32 blocks;
    u32 launch;
    u32 unused;
};

extern "C" {
__constant__ TraceBuffer tmaasync_trace;
}

__device__ __forceinline__ u32 trace_clock() {
    u32 cycles;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
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

// The first byte of dynamic shared memory, at whose end the host leaves a word for each warp.
__device__ __forceinline__ u32 trace_dynamic_shared() {
    extern __shared__ __align__(1024) unsigned char tmaasync_trace_shared[];
    return shared_address(tmaasync_trace_shared);
}

// The next free record of the warp, whose word holds how many were used, behind a tag: what an
// earlier block or launch left there is none of ours. Atomic, because lanes may have diverged.
__device__ __forceinline__ u32 trace_next(u32 warp, u32 warps, u32 block) {
    extern __shared__ __align__(1024) unsigned char tmaasync_trace_shared[];
    u32 size_bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size_bytes));
    auto* words = reinterpret_cast<u64*>(tmaasync_trace_shared + size_bytes) - warps;
    const u64 tag = static_cast<u64>(tmaasync_trace.launch + block * 0x9E3779B1u) << 32;
    u64 seen = *const_cast<volatile u64*>(&words[warp]);
    for (;;) {
        const u64 used = (seen ^ tag) >> 32 == 0 ? seen & 0xFFFFFFFFu : 0;
        const u64 before = atomicCAS(&words[warp], seen, tag | (used + 1));
        if (before == seen) return static_cast<u32>(used);
        seen = before;
    }
}

__device__ __forceinline__ void trace_note(
    TraceKind kind, u32 time, u32 where, u32 more, u32 flags = 0
) {
    const u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (block >= tmaasync_trace.blocks) return;
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const u32 warps = (blockDim.x * blockDim.y * blockDim.z + 31) / 32;
    const u32 index = trace_next(thread / 32, warps, block);
    const u64 warp = static_cast<u64>(block) * warps + thread / 32;
    TraceWarp& home = tmaasync_trace.warps[warp];
    if ((index & (index - 1)) == 0 && index >> 15 == 0)
        home.clocks[32 - __clz(index)] = trace_clocks();
    if (index == 0) {
        home.processor = trace_processor();
        home.dynamic_shared = trace_dynamic_shared();
    }
    if (index >= tmaasync_trace.records_per_warp) {
        atomicAdd(&home.dropped, 1);
        return;
    }
    const u32 what = static_cast<u32>(kind) | thread % 32 << 5 | flags;
    tmaasync_trace.records[warp * tmaasync_trace.records_per_warp + index] = {
        time, what, where, more
    };
}

// The home of a shared::cluster address.
__device__ __forceinline__ u32 trace_rank_of(u32 remote) {
    u32 rank;
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank) : "r"(remote) : "memory");
    return rank;
}

#else

__device__ __forceinline__ u32 trace_clock() {
    return 0;
}
__device__ __forceinline__ u32 trace_rank() {
    return 0;
}
__device__ __forceinline__ u32 trace_rank_of(u32) {
    return 0;
}
__device__ __forceinline__ void trace_note(TraceKind, u32, u32, u32, u32 = 0) {}

#endif

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
        const u32 lanes = __match_any_sync(__activemask(), barrier << 4 | home);
        if (!trace_leads(lanes)) return;
        const u32 flags = trace_home(home) | trace_number(__popc(lanes));
        trace_note(kind, now, trace_place(barrier), amount, flags);
    }
}

__device__ __forceinline__ void trace_init(u32 barrier, u32 count) {
    if constexpr (kIsTraced) {
        trace_on_barrier(TraceKind::kInit, barrier, trace_rank(), count);
    }
}

__device__ __forceinline__ void trace_arrive(u32 barrier, u32 count = 1) {
    if constexpr (kIsTraced) trace_on_barrier(TraceKind::kArrive, barrier, trace_rank(), count);
}

__device__ __forceinline__ void trace_expect(u32 barrier, u32 bytes) {
    if constexpr (kIsTraced) trace_on_barrier(TraceKind::kExpect, barrier, trace_rank(), bytes);
}

// The same of mapa addresses.
__device__ __forceinline__ void trace_arrive_cluster(u32 remote_barrier, u32 count) {
    if constexpr (kIsTraced) {
        const u32 home = trace_rank_of(remote_barrier);
        trace_on_barrier(TraceKind::kArrive, remote_barrier - mapa(0u, home), home, count);
    }
}

__device__ __forceinline__ void trace_expect_cluster(u32 remote_barrier, u32 bytes) {
    if constexpr (kIsTraced) {
        const u32 home = trace_rank_of(remote_barrier);
        trace_on_barrier(TraceKind::kExpect, remote_barrier - mapa(0u, home), home, bytes);
    }
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
        const u32 flags = trace_home(trace_rank()) | parity << 10 | u32{ready} << 11;
        trace_wait(TraceKind::kWait, began, trace_place(barrier), flags);
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
