// Writes the schedule of attention.cu for packed sequences: cuts them into tiles of queries, in
// sections of consecutive sequences with about `section_keys` keys in total, which stay in L2. In a
// section the tiles with the most keys come first: a longest-processing-time-first (LPT) schedule
// (Graham 1969; the varlen sort of FlashAttention-3), whose last tiles are short. One CTA.
//
// Skips sequences that exceed the arrays or have a page that does not exist, and all sequences from
// the first whose queries run backwards on, which may overlap others. Writes the number of one of
// them, counted from 1, to `broken_sequence`.
//
// The constants are as in attention.cu.
#include <tmaasync/warp_reductions.cuh>

#include "abi.cuh"
#include "batch.cuh"
#include "config.cuh"
#include "scheduler.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::attention;

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
    i32 in_order;  // number of leading sequences before any whose queries run backwards
};

extern "C" __device__ const int attention_work_shared_bytes = sizeof(SharedMemory);

// The first sequence in this thread's share whose queries run backwards; the number of sequences if
// none do.
__device__ i32 first_backwards(const Batch& batch, const Problem& problem) {
    i32 first = problem.batch;
#pragma unroll 4
    for (i32 index = threadIdx.x; index < problem.batch; index += kThreads) {
        if (batch.cu_seqlens_q[index + 1] < batch.cu_seqlens_q[index]) first = min(first, index);
    }
    return first;
}

// Whether this thread finds a page that does not exist. A warp checks every 32nd sequence; several
// warps share a sequence if there are at most half as many as warps.
__device__ bool finds_wrong_page(const Batch& batch, const Problem& problem) {
    if constexpr (PAGE_SIZE == 0) return false;
    bool is_wrong = false;
    const i32 shares = max(1, kWarps / max(1, problem.batch));
    for (i32 share = warp_index(); share < problem.batch * shares; share += kWarps) {
        const Entry entry = entry_of(batch, problem, share / shares).entry;
        const i32 thread = share % shares * 32 + lane_index();
        is_wrong |= has_wrong_page(problem, entry, thread, 32 * shares);
    }
    return is_wrong;
}

// Call use(tile) for every tile, once for all heads: a warp takes a sequence, a lane a tile.
template <typename Use>
__device__ void for_each_tile(
    const Batch& batch,
    const Problem& problem,
    i32 sequences,
    bool checks_pages,
    i32& broken,
    Use use
) {
    for (i32 index = warp_index(); index < sequences; index += kWarps) {
        auto [entry, is_broken] = entry_of(batch, problem, index);
        if (checks_pages) {
            const bool is_wrong = has_wrong_page(problem, entry, lane_index(), 32);
            is_broken |= __any_sync(kWholeWarp, is_wrong);
        }
        if (is_broken) {
            broken = index + 1;
            continue;
        }
        const u32 end = entry.queries.length, step = 32 * kTilePositions;
        for (u32 at = lane_index() * kTilePositions; at < end; at += step) {
            use(Tile{{}, entry, 0, static_cast<i32>(at)});
        }
    }
}

// Bins for a counting sort: the tiles of a bin belong to one section and have similarly many keys.
// Bins are ordered by section, and in a section from most keys to fewest.
struct Bins {
    i32 section_keys;
    i32 sections;
    i32 per_section;
    i32 shift = 0;

    __device__ Bins(i32 wanted_keys, i32 keys, i32 max_keys)
        : section_keys(max(wanted_keys, keys / kMaxSections + 1)),
          sections(keys / section_keys + 1),
          per_section(kBins / sections) {
        while ((max_keys / BLOCK_N + 1) >> shift >= per_section) ++shift;
    }

    __device__ i32 section(const Tile& tile) const { return tile.entry.keys.start / section_keys; }

    __device__ i32 of(const Tile& tile, const Problem& problem) const {
        const i32 seen = tile.blocks(problem).count() >> shift;
        return (section(tile) + 1) * per_section - 1 - seen;
    }
};

// The sum of the values of all lower threads (an exclusive scan).
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

// Convert the number of tiles in each bin to the index of its first tile (a prefix sum). Return the
// total number of tiles in the last thread.
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
    i32 section_keys,
    i32 heads_at_once,
    const __grid_constant__ BatchLimits limits,
    const __grid_constant__ Problem problem
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const Batch batch{limits, cu_seqlens_q, cu_seqlens_k, page_table};
    const Bins bins(section_keys, problem.keys, limits.max_keys);
    for (i32 bin = threadIdx.x; bin < kBins; bin += kThreads) shared.bins[bin] = 0;
    if (threadIdx.x == 0) {
        shared.broken = 0;
        shared.in_order = problem.batch;
    }
    __syncthreads();

    launch_dependent_grids();
    wait_for_previous_grids();
    const i32 backwards = first_backwards(batch, problem);
    if (backwards < problem.batch) atomicMin(&shared.in_order, backwards);
    const bool checks_pages = __syncthreads_or(finds_wrong_page(batch, problem));
    const i32 sequences = shared.in_order;
    i32 broken = sequences < problem.batch ? sequences + 1 : 0;
    for_each_tile(batch, problem, sequences, checks_pages, broken, [&](const Tile& tile) {
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

    for_each_tile(batch, problem, sequences, checks_pages, broken, [&](const Tile& tile) {
        const i32 index = atomicAdd(&shared.bins[bins.of(tile, problem)], 1);
        const i32 section = bins.section(tile);
        const i32 first = shared.sections[section], end = shared.sections[section + 1];
        list->items[index] = {tile.entry, tile.position, first, end - first};
    });
}
