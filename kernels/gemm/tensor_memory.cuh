#pragma once

// The GEMM of chips with tensor memory, without its epilogue. gemm_tensor_memory.cu explains tiles,
// constants and grid.
#include <tmaasync/tensor_memory.cuh>

namespace tmaasync::kernels::gemm {

using OperandA = Tcgen05Operand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>;
using OperandB = Tcgen05Operand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>;
constexpr int kM = OperandA::kExtent, kN = CTAS * OperandB::kExtent, kK = OperandA::kDepth;
using Cluster = ClusterShape<CTAS>;
// Consumer 0 stores and helper 0 multiplies; few registers are needed.
using Roles = WarpSpecialized<1, RegisterSplit<0, 0>, CTAS>;
using Sum = typename AccumulatorOf<ATile::Element>::Type;
using Accumulators = AccumulatorRing<Sum, kN, 2, CTAS>;
using Output = TmemEpilogue<CTile>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
using OperandRing = Tcgen05Ring<Stage, STAGES, CTAS>;
struct SharedMemory {
    OperandRing ring;
    Output::Shared output;
    Accumulators accumulators;

    __device__ void init() {
        ring.init();
        accumulators.init();
        output.init();
    }
};

template <typename Tile, bool kIsKMajor>
__device__ Coordinates<Tile::kRank> at(int row, int k, int batch) {
    return in_batch<Tile::kRank>(kIsKMajor ? k : row, kIsKMajor ? row : k, batch);
}

// store(output, accumulators, tile) stores the next accumulators of a tile.
template <typename Store>
__device__ __forceinline__ void multiply_in_tensor_memory(
    SharedMemory& shared,
    const ATile& a,
    const BTile& b,
    const CTile& c,
    const OutputTiles<kM, kN, Cluster, GROUP_M>& tiles,
    int k,
    const Store& store_tile
) {
    const TmemAllocation<Accumulators::kAllColumns, CTAS> tmem(shared.accumulators.address);
    const auto first = tmem.tile<Sum, kN>();
    const StaticScheduler schedule(tiles);
    const int k_blocks = count_tiles(k, kK);

    const auto load = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            const int column = tile.n + Cluster::rank_m() * OperandB::kExtent;
            for (const auto stage : producer.produce(k_blocks)) {
                const int depth = stage.iteration() * kK;
                const auto a_at = at<ATile, A_IS_K_MAJOR>(tile.m, depth, tile.batch);
                const auto b_at = at<BTile, B_IS_K_MAJOR>(column, depth, tile.batch);
                OperandRing::load(stage, a, stage->a, a_at);
                OperandRing::load(stage, b, stage->b, b_at);
            }
        }
    };
    const auto multiply = [&](int helper) {
        if (helper != 0 || !leads_pair<CTAS>() || !elect()) return;
        set_role("mma");
        auto stages = shared.ring.consumer();
        auto accumulators = shared.accumulators.producer(first);
        for ([[maybe_unused]] const auto tile : schedule) {
            const auto d = accumulators.acquire();
            for (const auto stage : stages.consume(k_blocks)) {
                const bool adds = stage.iteration() > 0;
                tcgen05_mma<OperandA, OperandB, CTAS>(d, stage->a, stage->b, adds);
            }
            accumulators.commit();
        }
    };
    const auto store = [&](int) {
        set_role("epilogue");
        wait_for_previous_grids();
        auto accumulators = shared.accumulators.consumer(first);
        Output output(shared.output);
        for (const auto tile : schedule) store_tile(output, accumulators, tile);
        output.drain();
    };
    Roles::run_with_helpers(shared, load, multiply, store, a, b, c);
}

}  // namespace tmaasync::kernels::gemm
