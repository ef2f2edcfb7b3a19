#pragma once

// The parts of a GEMM, derived from the host's tile types and constants, which gemm.cu explains.
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/epilogue.cuh>
#include <tmaasync/structured/k_range.cuh>
#include <tmaasync/structured/mainloop.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/structured/split_k.cuh>
#include <tmaasync/structured/static_scheduler.cuh>
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

namespace tmaasync::kernels::gemm {

// --- CTA tile, cluster and roles -----------------------------------------------------------------

static_assert(!PING_PONG || CONSUMERS == 2, "a ping-pong kernel has two consumers");
static_assert(
    !PING_PONG || (SPLIT_K == 1 && !STORES_PARTIALS), "consumers share a tile whose K is split"
);
static_assert(SPLIT_K == 1 || !STORES_PARTIALS, "K is split over a cluster or over the grid");
static_assert(
    !STORES_PARTIALS || CTile::kRank == 3, "the partial outputs of the splits are a batch"
);

// In a ping-pong kernel every consumer has its own tiles; in a cooperative one all share each tile.
constexpr int kConsumersPerTile = PING_PONG ? 1 : CONSUMERS;
constexpr int kBlockM = kConsumersPerTile * ROWS;
constexpr int kBlockK = 128 / static_cast<int>(sizeof(typename ATile::Element));

using Cluster = ClusterShape<SIDE_BY_SIDE ? 1 : CLUSTER, SIDE_BY_SIDE ? CLUSTER : 1, SPLIT_K>;
using Roles = WarpSpecialized<
    CONSUMERS,
    DefaultRegisterSplit<CONSUMERS>,
    Cluster::kCtas,
    SplitKExchange<Cluster>>;
using TileScheduler = StaticScheduler<OutputTiles<kBlockM, BLOCK_N, Cluster, GROUP_M>>;

static_assert(Cluster::kCtas <= 8, "a portable cluster has at most eight CTAs");

// The K blocks of a tile that this CTA multiplies.
template <typename Schedule>
__device__ KRange k_range(const Schedule& schedule, const OutputTile& tile, int k_blocks) {
    if constexpr (STORES_PARTIALS) return KRange(k_blocks, tile.batch, schedule.tiles.batches);
    return KRange::of<Cluster>(k_blocks);
}

// The first row of a consumer in its CTA's tile.
__device__ int consumer_row(int consumer) {
    return PING_PONG ? 0 : consumer * ROWS;
}

// --- main loop -----------------------------------------------------------------------------------

template <typename OperandA, typename OperandB>
struct TileLoop : MainLoop<OperandA, OperandB, ROWS, BLOCK_N> {
    static_assert(TileLoop::kDepth == kBlockK, "a stage is 128 bytes of K deep");
};

using Accumulators = typename AccumulatorOf<typename ATile::Element>::Type[ROWS / 64][BLOCK_N / 2];

// --- epilogue ------------------------------------------------------------------------------------

constexpr auto kOutputMajor = C_IS_N_MAJOR ? OutputMajor::kN : OutputMajor::kM;

using SplitK =
    SplitKReduction<Accumulators, OutputChunk<CTile, kOutputMajor>::kColumns, Cluster, CONSUMERS>;
// A slice is the entire tile without split-K.
using TileEpilogue = Epilogue<CTile, SplitK::kSliceColumns, kOutputMajor>;

static_assert(
    kSameType<SplitK::Register, int> == kSameType<typename CTile::Element, int>,
    "integers are stored as accumulated"
);

// --- operands ------------------------------------------------------------------------------------

// The array that holds the rows of a tile of A, and the row at which they start.
struct PartOfA {
    const ATile& a;
    int m;
};

// The part of A of every tile, where one array holds all of A.
__device__ auto part_of_whole(const ATile& a) {
    return [&a](const OutputTile& tile, int) { return PartOfA{a, tile.m}; };
}

// --- shared memory -------------------------------------------------------------------------------

// The operand tiles of one K block.
struct Stage {
    static constexpr int kBytes = ATile::kBytes + BTile::kBytes;

    typename ATile::Shared a;
    typename BTile::Shared b;
};

// Side holds the scales of a stage of a block-scaled GEMM.
template <typename Side>
using OperandRing =
    Ring<Stage, STAGES, ConsumerWarps<4 * kConsumersPerTile>, Cluster::Sharing, Side>;

template <typename Side, typename TheEpilogue = TileEpilogue>
struct SharedStorage {
    using OutputEpilogue = TheEpilogue;

    OperandRing<Side> ring;
    typename OutputEpilogue::Shared epilogue[CONSUMERS];

    __device__ void init() { ring.init(); }
};

using SharedMemory = SharedStorage<NoSide>;
using OperandProducer = RingProducer<OperandRing<NoSide>>;
// Only wgmma reads the operand stages.
using OperandConsumer = RingConsumer<OperandRing<NoSide>, Proxy::kAsync>;

}  // namespace tmaasync::kernels::gemm
