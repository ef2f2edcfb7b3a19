// The output of tiles whose keys attention.cu split: adds up what was summed over each part, and
// stores it, with the log-sum-exp.
//
// Types and constants are those of attention.cu. Grid: of every split span CLUSTER tiles, of
// CONSUMERS CTAs each; 128 threads.
#include "attention_parts.cuh"

using namespace tmaasync;

// A span, and the places of its parts, one behind the other.
struct alignas(16) SplitSpan {
    i32 span;
    i32 place;
    i32 parts;
};

struct Staging {
    typename OTile::Shared o;
};

extern "C" __device__ const int attention_merge_shared_bytes = sizeof(Staging);

// One group's parts of a tile.
struct PartsOfTile {
    const Part* first;
    i32 count;
    i32 group;

    __device__ const GroupPart& operator[](i32 index) const {
        return first[index * CLUSTER].groups[group];
    }
};

// Of one of the thread's rows: how much the weights of each part count.
struct MergedRow {
    int row;
    float most = kNothing;
    float total = 0;

    __device__ MergedRow(const PartsOfTile& parts, int row) : row(row) {
        for (i32 i = 0; i < parts.count; ++i) most = max(most, parts[i].most[row]);
        for (i32 i = 0; i < parts.count; ++i) total += factor(parts[i]) * parts[i].totals[row];
    }

    __device__ float factor(const GroupPart& part) const {
        return ptx::ex2_approx_ftz(part.most[row] - most);
    }
};

extern "C" __global__ void __launch_bounds__(kGroupThreads) attention_merge(
    const __grid_constant__ OTile o,
    float* lse,
    const Part* parts,
    const SplitSpan* spans,
    const __grid_constant__ Problem problem
) {
    auto& shared = dynamic_shared<Staging>();
    const i32 group = blockIdx.x % CONSUMERS;
    const i32 rank = blockIdx.x / CONSUMERS % CLUSTER;
    const SplitSpan span = spans[blockIdx.x / (CONSUMERS * CLUSTER)];
    const Tile tile = PaddedWalk(problem, nullptr, 0).tile_of(span.span, rank);
    const PartsOfTile of_tile{parts + span.place * CLUSTER + rank, span.parts, group};

    launch_dependent_grids();
    wait_for_previous_grids();
    const int row = row_of_thread(0);
    const MergedRow rows[2] = {{of_tile, row}, {of_tile, row + 8}};
    Sums sums = {};
    const i32 count = has_queries(tile, group) ? span.parts : 0;
#pragma unroll 2
    for (i32 i = 0; i < count; ++i) {
        const auto& part = of_tile[i];
        part.add_to(sums, {rows[0].factor(part), rows[1].factor(part)});
    }
    float shares[2], values[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        shares[half] = share_of(rows[half].total);
        values[half] = log_sum_exp(rows[half].most, rows[half].total);
    }
    if constexpr (HAS_LSE) write_lse(problem, tile, group, values, lse);
    store_group(o, shared.o, tile, group, sums, shares);
    if (threadIdx.x == 0) wait_group_read<0>();
}
