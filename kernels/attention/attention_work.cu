// Writes the schedule of attention.cu for packed sequences: cuts them into tiles of queries, in
// sections of consecutive sequences with about `section_keys` keys together, whose keys stay in L2.
// In a section the tiles that see the most keys come first: a longest-processing-time-first (LPT)
// schedule (Graham 1969; the varlen sort of FlashAttention-3), whose last tiles are short. One CTA.
//
// Leaves out sequences that exceed the arrays, and sequences with a page that does not exist.
// Writes the number of one of them, counted from 1, to `broken_sequence`.
//
// The constants are as in attention.cu.
#include "abi.cuh"
#include "config.cuh"
#include "scheduler.cuh"

using namespace tmaasync;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBinsPerThread = 4;
constexpr int kBins = kThreads * kBinsPerThread;
constexpr int kMaxSections = 64;

struct SharedMemory {
    i32 bins[kBins];
    i32 sections[kMaxSections + 1];  // the first item of each, and the end of the last
    i32 warp_totals[kWarps];
    i32 broken;
};

extern "C" __device__ const int attention_work_shared_bytes = sizeof(SharedMemory);

struct Batch {
    const i32* cu_seqlens_q;
    const i32* cu_seqlens_k;
    const i32* page_table;
    i32 table_step;  // page table entries from one sequence to the next
    i32 pages;       // of the array
    i32 size;
    i32 max_queries;
    i32 max_keys;
};

__device__ void find_keys(const Batch& batch, i32 index, RaggedSequence& keys) {
    keys = RaggedSequence::of(batch.cu_seqlens_k, index);
}

template <int kPageSize>
__device__ void find_keys(const Batch& batch, i32 index, PagedSequence<kPageSize>& keys) {
    const auto rows = RaggedSequence::of(batch.cu_seqlens_k, index);
    keys = {rows.start, rows.length, batch.page_table + i64{index} * batch.table_step};
}

// Whether all pages of the keys exist. Called by a whole warp.
__device__ bool has_pages(const Batch&, const RaggedSequence&) {
    return true;
}

template <int kPageSize>
__device__ bool has_pages(const Batch& batch, const PagedSequence<kPageSize>& keys) {
    bool is_wrong = false;
    const i32 end = count_tiles(keys.length, kPageSize);
    for (i32 i = lane_index(); i < end; i += 32) {
        const i32 page = keys.pages[i];
        is_wrong |= page < 0 || page >= batch.pages;
    }
    return !__any_sync(kWholeWarp, is_wrong);
}

// Whether the prefix sums describe a sequence within the arrays.
template <typename Rows>
__device__ bool is_sequence(const Rows& rows, i32 max_length, i32 total) {
    return rows.start >= 0 && rows.length >= 0 && rows.length <= max_length &&
           rows.start <= total - rows.length;
}

// A broken sequence gets no queries, so that nothing of it is read or written. Called by a whole
// warp.
__device__ Entry entry_of(const Batch& batch, const Problem& problem, i32 index, i32& broken) {
    Entry entry{index, RaggedSequence::of(batch.cu_seqlens_q, index), {}};
    find_keys(batch, index, entry.keys);
    if (!is_sequence(entry.queries, batch.max_queries, problem.queries) ||
        !is_sequence(entry.keys, batch.max_keys, problem.keys) ||
        (entry.queries.length > 0 && !has_pages(batch, entry.keys))) {
        entry.queries.length = 0;
        broken = index + 1;
    }
    return entry;
}

// Calls use(tile) for every tile, once for all heads: a warp takes a sequence, a lane a tile.
template <typename Use>
__device__ void for_each_tile(const Batch& batch, const Problem& problem, i32& broken, Use use) {
    for (i32 index = warp_index(); index < batch.size; index += kWarps) {
        const Entry entry = entry_of(batch, problem, index, broken);
        const i32 step = 32 * kTilePositions;
        for (i32 at = lane_index() * kTilePositions; at < entry.queries.length; at += step) {
            use(Tile{{}, entry, 0, at});
        }
    }
}

// Bins for a counting sort: the tiles of a bin are of one section and see about as many keys. Bins
// are ordered by section, and in a section from most keys to fewest.
struct Bins {
    i32 section_keys;
    i32 sections;
    i32 per_section;
    i32 shift = 0;

    __device__ Bins(i32 wanted_keys, i32 keys, i32 max_keys)
        : section_keys(max(wanted_keys, keys / kMaxSections + 1)),
          sections(keys / section_keys + 1),
          per_section(kBins / sections) {
        while (count_tiles(max_keys, BLOCK_N) >> shift >= per_section) ++shift;
    }

    __device__ i32 section(const Tile& tile) const { return tile.entry.keys.start / section_keys; }

    __device__ i32 of(const Tile& tile, const Problem& problem) const {
        const i32 seen = tile.blocks(problem).count() >> shift;
        return (section(tile) + 1) * per_section - 1 - seen;
    }
};

// The sum of the values of all threads before this one.
__device__ i32 sum_before(SharedMemory& shared, i32 value) {
    const i32 warp = warp_index(), lane = lane_index();
    i32 sum = value;
    for (i32 step = 1; step < 32; step *= 2) {
        const i32 before = __shfl_up_sync(kWholeWarp, sum, step);
        if (lane >= step) sum += before;
    }
    if (lane == 31) shared.warp_totals[warp] = sum;
    __syncthreads();
    for (i32 other = 0; other < warp; ++other) sum += shared.warp_totals[other];
    return sum - value;
}

// Turns the number of tiles in each bin into the index of its first (a prefix sum). Returns to the
// last thread the number of all tiles.
__device__ i32 scan_bins(SharedMemory& shared) {
    auto* mine = &shared.bins[threadIdx.x * kBinsPerThread];
    i32 here = 0;
    for (int i = 0; i < kBinsPerThread; ++i) here += mine[i];
    i32 first = sum_before(shared, here);
    const i32 end = first + here;
    for (int i = 0; i < kBinsPerThread; ++i) {
        const i32 next = first + mine[i];
        mine[i] = first;
        first = next;
    }
    return end;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1) attention_work(
    const i32* cu_seqlens_q,
    const i32* cu_seqlens_k,
    WorkList* list,
    const i32* page_table,
    i32* broken_sequence,
    i32 max_queries,
    i32 max_keys,
    i32 section_keys,
    i32 heads_at_once,
    i32 table_step,
    i32 pages,
    const __grid_constant__ Problem problem
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const Batch batch{cu_seqlens_q, cu_seqlens_k,  page_table,  table_step,
                      pages,        problem.batch, max_queries, max_keys};
    const Bins bins(section_keys, problem.keys, max_keys);
    for (i32 bin = threadIdx.x; bin < kBins; bin += kThreads) shared.bins[bin] = 0;
    if (threadIdx.x == 0) shared.broken = 0;
    __syncthreads();

    launch_dependent_grids();
    wait_for_previous_grids();
    i32 broken = 0;
    for_each_tile(batch, problem, broken, [&](const Tile& tile) {
        atomicAdd(&shared.bins[bins.of(tile, problem)], 1);
    });
    if (broken != 0) atomicMax(&shared.broken, broken);
    __syncthreads();

    const i32 end = scan_bins(shared);
    if (threadIdx.x == kThreads - 1) {
        list->count = end;
        list->heads_at_once = heads_at_once;
        list->tile_counter = 0;
        shared.sections[bins.sections] = end;
        if (shared.broken != 0) *broken_sequence = shared.broken;
    }
    __syncthreads();
    if (threadIdx.x < bins.sections) {
        shared.sections[threadIdx.x] = shared.bins[threadIdx.x * bins.per_section];
    }
    __syncthreads();

    for_each_tile(batch, problem, broken, [&](const Tile& tile) {
        const i32 index = atomicAdd(&shared.bins[bins.of(tile, problem)], 1);
        const i32 section = bins.section(tile);
        const i32 first = shared.sections[section], end = shared.sections[section + 1];
        list->items[index] = {tile.entry, tile.position, first, end - first};
    });
}
