#pragma once

// The GEMMs of chips with tensor memory: their parts, and the loops of their roles.
// gemm_tensor_memory.cu explains tiles, constants and grid.
#include <tmaasync/structured/k_range.cuh>
#include <tmaasync/tensor_memory.cuh>

namespace tmaasync::kernels::gemm {

using OperandA = Tcgen05Operand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>;
using OperandB = Tcgen05Operand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>;
constexpr int kM = OperandA::kExtent, kN = CTAS * OperandB::kExtent, kK = OperandA::kDepth;
using Cluster = ClusterShape<CTAS>;
// The consumers store and helper 0 multiplies.
template <int kConsumers>
using RolesOf = WarpSpecialized<kConsumers, RegisterSplit<0, 0>, CTAS>;
using Roles = RolesOf<1>;

template <typename Stage, typename AccumulatorStages>
struct SharedStorage {
    using Accumulators = AccumulatorStages;
    static constexpr int kConsumers = Accumulators::kReaderWarps / 4;
    using Output = TmemEpilogue<CTile, 2 / kConsumers>;

    Tcgen05Ring<Stage, STAGES, CTAS> ring;
    typename Output::Shared output[kConsumers];
    Accumulators accumulators;

    __device__ void init() {
        ring.init();
        accumulators.init();
        for (auto& each : output) each.init();
    }
};

template <typename Tile, bool kIsKMajor>
__device__ Coordinates<Tile::kRank> at(int row, int k, int batch) {
    return in_batch<Tile::kRank>(kIsKMajor ? k : row, kIsKMajor ? row : k, batch);
}

// The tiles of a matrix or a batch, which take equal times: cluster launch control would save no
// wave. Each is over all of K; or, with STORES_PARTIALS, of the partial output of one of `batches`
// splits, none of which is empty.
struct MatrixTiles {
    OutputTiles<kM, kN, Cluster, GROUP_M> tiles;
    int k_blocks;

    __device__ MatrixTiles(int m, int n, int k, int batches = 1)
        : tiles(m, n, batches), k_blocks(count_tiles(k, kK)) {}

    __device__ auto schedule() const { return StaticScheduler(tiles); }
    __device__ KRange range(const OutputTile& tile) const {
        return STORES_PARTIALS ? KRange(k_blocks, tile.batch, tiles.batches) : KRange(k_blocks);
    }
    __device__ void help(int) const {}
};

// The first column of this CTA's part of a tile of B.
__device__ __forceinline__ int first_column_of_b(const OutputTile& tile) {
    return tile.n + Cluster::rank_m() * OperandB::kExtent;
}

// Load the operands that this CTA has of a K block.
template <typename Ring>
__device__ __forceinline__ void load_operands(
    const ProducerStage<Ring>& stage,
    const ATile& a,
    const BTile& b,
    const OutputTile& tile,
    int block
) {
    const int depth = block * kK, column = first_column_of_b(tile);
    Ring::load(stage, a, stage->a, at<ATile, A_IS_K_MAJOR>(tile.m, depth, tile.batch));
    Ring::load(stage, b, stage->b, at<BTile, B_IS_K_MAJOR>(column, depth, tile.batch));
}

// Run the roles on all tiles of `work`: work.schedule() is their scheduler, which may read the
// output of an earlier grid, and work.range(tile) the K blocks of a tile, at least one; two warps
// call work.help(0) and (1). load(stage, tile, block) loads a K block, multiply(d, stage, tile)
// issues the mma of a stage, and store(output, accumulators, tile, consumer) stores the next
// accumulators of a tile. `first` is the first set of accumulators. With kIsSetOfStage each stage
// has a set of its own.
template <
    bool kIsSetOfStage = false,
    typename Shared,
    typename Work,
    typename Load,
    typename Multiply,
    typename Store,
    typename... Maps>
__device__ __forceinline__ void run_roles(
    Shared& shared,
    const typename Shared::Accumulators::Tile& first,
    const Work& work,
    const Load& load,
    const Multiply& multiply,
    const Store& store,
    const Maps&... maps
) {
    const auto load_all = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : work.schedule()) {
            const KRange blocks = work.range(tile);
            for (const auto& stage : producer.produce(blocks.count)) {
                load(stage, tile, blocks.first + stage.iteration());
            }
        }
    };
    const auto multiply_all = [&] {
        if (!leads_pair<CTAS>() || !elect()) return;
        set_role("mma");
        wait_for_previous_grids();
        auto stages = shared.ring.consumer();
        auto accumulators = shared.accumulators.producer(first);
        for (const auto tile : work.schedule()) {
            auto d = accumulators.acquire();
#pragma unroll 4  // 4 instructions fewer a stage
            for (const auto& stage : stages.consume(work.range(tile).count)) {
                if (kIsSetOfStage && stage.iteration() > 0) {
                    accumulators.commit();
                    d = accumulators.acquire();
                }
                multiply(d, stage, tile);
            }
            accumulators.commit();
        }
    };
    const auto store_all = [&](int consumer) {
        set_role("epilogue");
        wait_for_previous_grids();
        auto accumulators = shared.accumulators.consumer(first);
        typename Shared::Output output(shared.output[consumer], 1 + consumer);
        for (const auto tile : work.schedule()) store(output, accumulators, tile, consumer);
        output.drain();
    };
    RolesOf<Shared::kConsumers>::run_with_helpers(
        shared, load_all, [&](int helper) { helper == 0 ? multiply_all() : work.help(helper - 1); },
        store_all, maps...
    );
}

}  // namespace tmaasync::kernels::gemm
