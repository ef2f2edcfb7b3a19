#pragma once

#include <tmaasync/instrument/trace_kind.cuh>
#include <tmaasync/operands/integers.cuh>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/global.cuh>
#include <tmaasync/ptx/shared.cuh>
#include <tmaasync/ptx/special_registers.cuh>

// The records of a trace in global memory, in builds with TMAASYNC_TRACE=1: what warps do, for
// tmaasync.trace on the host, whose tmaasync/trace/chip/layout.py mirrors the structs.
namespace tmaasync::instrument {

// RECORD_DTYPE of layout.py. `time` is the end of the event; `more` the start of a wait, or a
// number. Waits for barriers and for signals, which may last longer than the 32 bits of `time`
// count, have bits 32 to 47 of the clock as their number. Of a signal, `where` is its index, `more`
// the epoch, and the rank replaces the CTA of a barrier.
struct alignas(16) TraceRecord {
    u32 time;
    u32 what;   // kind: 5 bits, lane: 5, parity: 1, ready: 1, CTA of the barrier: 4, number: 16
    u32 where;  // barrier / 8: 16 bits, buffer / 16: 16
    u32 more;
};

// CLOCKS_DTYPE: the two clocks, read one right after the other.
struct alignas(16) TraceClocks {
    u64 global_ns;
    u64 cycles;
};

constexpr int kTraceClocks = 16;
constexpr int kTraceRoleBytes = 28;
constexpr u32 kTraceNothing = ~0u;

// WARP_DTYPE. The first clocks are read when the block opens, the others at some of its waits.
struct TraceWarp {
    TraceClocks clocks[kTraceClocks];
    u32 processor;
    u32 dynamic_shared;
    u64 unused;
    char role[kTraceRoleBytes];  // empty: the kernel names none
    u32 role_number;             // kNoNumber: none
};

// BUFFER_DTYPE, written by the host before each launch. After a warp's records there is one more:
// the last record that has no room, with the number of all records in `more`.
struct TraceBuffer {
    TraceWarp* warps;
    TraceRecord* records;
    u32 records_per_warp;
    u32 blocks;
    u32 launch;
    u32 unused;
};

// In shared memory: where a warp's records lie, and how many there are. The tag identifies the
// block and the launch: an earlier block's slot has another one.
struct alignas(16) TraceSlot {
    u32 tag;
    u32 used;
    TraceRecord* records;
};

extern "C" __constant__ TraceBuffer tmaasync_trace = {};

__device__ __forceinline__ TraceClocks trace_clocks() {
    const u64 global_ns = ptx::globaltimer();
    return {global_ns, ptx::clock64()};
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
    return tmaasync_trace.launch + trace_block() * 0x9E3779B1u;
}

// The first byte of dynamic shared memory, at whose end the host leaves room for the slots.
__device__ __forceinline__ u32 trace_dynamic_shared() {
    extern __shared__ __align__(1024) unsigned char tmaasync_trace_shared[];
    return ptx::shared_address(tmaasync_trace_shared);
}

__device__ __forceinline__ TraceSlot* trace_slot(u32 warp) {
    extern __shared__ __align__(1024) unsigned char tmaasync_trace_shared[];
    const u32 size_bytes = ptx::dynamic_smem_size();
    auto* end = reinterpret_cast<TraceSlot*>(tmaasync_trace_shared + size_bytes);
    return end - trace_warps() + warp;
}

__device__ __forceinline__ TraceSlot trace_read(const TraceSlot* slot) {
    const u32 address = ptx::shared_address(slot);
    TraceSlot seen;
    ptx::ld_volatile_shared_v2(address, seen.tag, seen.used);
    seen.records = reinterpret_cast<TraceRecord*>(ptx::ld_volatile_shared(address + 8));
    return seen;
}

__device__ __forceinline__ void trace_store_record(
    TraceRecord* record, u32 time, u32 what, u32 where, u32 more
) {
    const u32 words[4] = {time, what, where, more};
    ptx::st_global(record, words, true);
}

// Open the slots of the block's warps, in the thread that initialises the first barrier. Several
// threads may do so, each once or more.
__device__ __forceinline__ void trace_open() {
    const u32 block = trace_block();
    // The last is opened last.
    const bool is_open = trace_read(trace_slot(trace_warps() - 1)).tag == trace_tag();
    if (is_open || block >= tmaasync_trace.blocks) return;
    const TraceClocks now = trace_clocks();
    for (u32 warp = 0; warp < trace_warps(); ++warp) {
        const u64 index = static_cast<u64>(block) * trace_warps() + warp;
        TraceWarp& home = tmaasync_trace.warps[index];
        home.clocks[0] = now;
        home.processor = ptx::smid();
        home.dynamic_shared = trace_dynamic_shared();
        TraceSlot* slot = trace_slot(warp);
        slot->records = tmaasync_trace.records + index * (tmaasync_trace.records_per_warp + 1);
        __threadfence_block();
        for (TraceSlot seen = trace_read(slot); seen.tag != trace_tag(); seen = trace_read(slot)) {
            const u64 before = static_cast<u64>(seen.used) << 32 | seen.tag;
            atomicCAS(reinterpret_cast<u64*>(slot), before, static_cast<u64>(trace_tag()));
        }
    }
}

// Note a record; returns its number, or kTraceNothing. Kept short: it lies between the instructions
// that are timed.
__device__ __forceinline__ u32
trace_note(TraceKind kind, u32 time, u32 where, u32 more, u32 flags = 0) {
    TraceSlot* slot = trace_slot(trace_thread() / 32);
    // Counted before the tag is known, so that neither waits for the other.
    const u32 index = atomicAdd(&slot->used, 1);
    const TraceSlot seen = trace_read(slot);
    if (seen.tag != trace_tag()) return kTraceNothing;
    const u32 room = tmaasync_trace.records_per_warp;
    const u32 what = static_cast<u32>(kind) | trace_thread() % 32 << 5 | flags;
    const bool has_room = index < room;
    trace_store_record(
        seen.records + (has_room ? index : room), time, what, where, has_room ? more : index
    );
    return index;
}

// Read both clocks next to a record, one of every 32: enough to fit a line through.
__device__ __forceinline__ void trace_read_clocks(u32 index) {
    const u64 warp = static_cast<u64>(trace_block()) * trace_warps() + trace_thread() / 32;
    tmaasync_trace.warps[warp].clocks[1 + index / 32 % (kTraceClocks - 1)] = trace_clocks();
}

}  // namespace tmaasync::instrument
