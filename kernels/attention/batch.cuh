#pragma once

// The sequences of a packed batch, described by the caller's cumulative lengths and page table.
#include "abi.cuh"
#include "config.cuh"

namespace tmaasync::kernels::attention {

struct Batch {
    const BatchLimits& limits;
    const i32* cu_seqlens_q;
    const i32* cu_seqlens_k;
    const i32* page_table;
};

__device__ __forceinline__ void find_keys(const Batch& batch, i32 index, RaggedSequence& keys) {
    keys = RaggedSequence::of(batch.cu_seqlens_k, index);
}

template <int kPageSize>
__device__ __forceinline__ void find_keys(
    const Batch& batch, i32 index, PagedSequence<kPageSize>& keys
) {
    const auto rows = RaggedSequence::of(batch.cu_seqlens_k, index);
    keys = {rows.start, rows.length, batch.page_table + i64{index} * batch.limits.table_step};
}

// A sequence of the batch; without queries and keys if it exceeds the arrays.
struct CheckedEntry {
    Entry entry;
    bool is_broken;
};

__device__ __forceinline__ CheckedEntry
entry_of(const Batch& batch, const Problem& problem, i32 index) {
    Entry entry{index, RaggedSequence::of(batch.cu_seqlens_q, index), {}};
    find_keys(batch, index, entry.keys);
    const RaggedSequence keys{entry.keys.start, entry.keys.length};
    if (entry.queries.is_within(batch.limits.max_queries, problem.queries) &&
        keys.is_within(batch.limits.max_keys, problem.keys)) {
        return {entry, false};
    }
    return {{index, {}, {}}, true};
}

// Whether this thread finds a page that does not exist, in its share of the entry's pages.
__device__ __forceinline__ bool has_wrong_page(
    const Problem&, const EntryWith<RaggedSequence>&, i32, i32
) {
    return false;
}

template <int kPageSize>
__device__ __forceinline__ bool has_wrong_page(
    const Problem& problem,
    const EntryWith<PagedSequence<kPageSize>>& entry,
    i32 thread,
    i32 threads
) {
    bool is_wrong = false;
    const i32 end = entry.queries.length > 0 ? count_tiles(entry.keys.length, kPageSize) : 0;
    // Loads in flight together.
#pragma unroll 8
    for (i32 i = thread; i < end; i += threads) {
        const i32 page = entry.keys.pages[i];
        is_wrong |= page < 0 || page >= problem.pages;
    }
    return is_wrong;
}

}  // namespace tmaasync::kernels::attention
