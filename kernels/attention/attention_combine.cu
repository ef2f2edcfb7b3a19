// The output of tiles whose keys attention.cu split: adds up what was summed over each part, and
// stores it, with the log-sum-exp.
//
//   WARPS  of a CTA, each of which adds up one row at a time
//
// Types and other constants are those of attention.cu. `splits` are the SplitSpans of padded
// arrays; of packed ones it is the list that attention.cu worked off, with `parts_of_tile` for each
// tile. Grid: of every split span CLUSTER tiles, or as many tiles as there may be at most, of
// CONSUMERS CTAs each; 32 * WARPS threads.
#include "split_kv.cuh"

using namespace tmaasync;

// A span, and the places of its parts, one behind the other.
struct alignas(16) SplitSpan {
    i32 span;
    i32 place;
    i32 parts;
};

using Output = typename OTile::Element;

struct Staging {
    typename OTile::Shared o;
};

extern "C" __device__ const int attention_combine_shared_bytes = sizeof(Staging);

// One group's parts of a tile.
struct PartsOfTile {
    const Part* first;
    i32 count;
    i32 group;

    __device__ __forceinline__ const GroupPart& operator[](i32 index) const {
        return first[index * CLUSTER].groups[group];
    }
};

// What a CTA adds up.
struct SplitTile {
    Tile tile;
    PartsOfTile parts;
    bool is_there;
};

__device__ __forceinline__ SplitTile
split_tile(const Problem& problem, const Part* parts, void* splits, i32 parts_of_tile) {
    SplitTile found{{}, {parts, parts_of_tile, static_cast<i32>(blockIdx.x) % CONSUMERS}, true};
    const i32 index = blockIdx.x / CONSUMERS;
    if constexpr (IS_PACKED) {
        auto& list = *static_cast<WorkList*>(splits);
        const PackedWalk walk(problem, list, parts_of_tile);
        found.is_there = index < list.count * walk.heads;
        if (found.is_there) found.tile = walk.tile_of(index);
        found.parts.first += index * parts_of_tile;
    } else {
        const auto& split = static_cast<const SplitSpan*>(splits)[index / CLUSTER];
        found.tile = PaddedWalk(problem, nullptr, 0).tile_of(split.span, index % CLUSTER);
        found.parts.first += split.place * CLUSTER + index % CLUSTER;
        found.parts.count = split.parts;
    }
    return found;
}

struct alignas(16) Quad {
    float values[4];
};

constexpr int kQuads = HEAD_DIM / 4;
constexpr int kQuadsOfLane = (kQuads + 31) / 32;

// A row of a tile. Each lane of its warp has four columns, and four of every 128 behind.
struct Row {
    int row;
    float most = kNothing;  // what the sums are relative to, as in GroupPart
    float total = 0;
    Quad sums[kQuadsOfLane] = {};

    __device__ __forceinline__ explicit Row(int row) : row(row) {}

    // Adds up to 32 parts from `first` on. Each lane weighs one of them.
    __device__ __forceinline__ void add(const PartsOfTile& parts, i32 first) {
        const i32 count = min(parts.count - first, 32), lane = lane_index();
        float own_most = kNothing, own_total = 0;
        if (lane < count) {
            own_most = parts[first + lane].most[row];
            own_total = parts[first + lane].totals[row];
        }
        const float before = most;
        most = fmaxf(most, max_of_warp(own_most));
        const float factor = ptx::ex2_approx_ftz(own_most - most);
        scale(ptx::ex2_approx_ftz(before - most));
        total += sum_of_warp(factor * own_total);
        // As many loads under way as there are registers for.
#pragma unroll 8 / kQuadsOfLane
        for (i32 i = 0; i < count; ++i) {
            add(parts[first + i], __shfl_sync(kWholeWarp, factor, i));
        }
    }

    // Stages its output.
    __device__ __forceinline__ void write(typename OTile::Shared& staged) {
        struct alignas(8) Four {
            u32 pairs[2];
        };
        scale(share_of(total));
#pragma unroll
        for (int i = 0; i < kQuadsOfLane; ++i) {
            if (!has(i)) continue;
            const float* v = sums[i].values;
            auto* place = staged.bytes + OutputO::offset_bytes(row, 4 * quad(i));
            *reinterpret_cast<Four*>(place) = {
                pack_pair<Output>(v[0], v[1]), pack_pair<Output>(v[2], v[3])
            };
        }
    }

private:
    __device__ __forceinline__ static int quad(int i) { return 32 * i + lane_index(); }
    __device__ __forceinline__ static bool has(int i) {
        return kQuads % 32 == 0 || quad(i) < kQuads;
    }

    __device__ __forceinline__ void add(const GroupPart& part, float factor) {
        const auto* quads = reinterpret_cast<const Quad*>(part.sums[row]);
#pragma unroll
        for (int i = 0; i < kQuadsOfLane; ++i) {
            if (!has(i)) continue;
            const Quad more = quads[quad(i)];
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[i].values[j] += factor * more.values[j];
        }
    }

    __device__ __forceinline__ void scale(float factor) {
        total *= factor;
#pragma unroll
        for (auto& quad : sums) {
#pragma unroll
            for (float& sum : quad.values) sum *= factor;
        }
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) attention_combine(
    const __grid_constant__ OTile o,
    float* lse,
    const Part* parts,
    void* splits,
    int parts_of_tile,
    const __grid_constant__ Problem problem
) {
    auto& shared = dynamic_shared<Staging>();
    launch_dependent_grids();
    // The list of packed tiles is made by one of them.
    if constexpr (IS_PACKED) wait_for_previous_grids();
    const auto [tile, of_tile, is_there] = split_tile(problem, parts, splits, parts_of_tile);
    if (!is_there) return;
    const i32 group = of_tile.group;
    wait_for_previous_grids();
    for (int index = warp_index(); index < kGroupRows; index += WARPS) {
        const int row_of_tile = group * kGroupRows + index;
        if (!is_query(tile, row_of_tile)) continue;
        Row row{index};
        for (i32 first = 0; first < of_tile.count; first += 32) row.add(of_tile, first);
        if constexpr (HAS_LSE) {
            const float value = log_sum_exp(row.most, row.total);
            if (lane_index() == 0) lse_of(problem, tile, row_of_tile, lse) = value;
        }
        row.write(shared.o);
    }
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        store_staged(o, shared.o, tile, group);
        wait_group_read<0>();
    }
}
