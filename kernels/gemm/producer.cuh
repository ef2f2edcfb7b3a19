#pragma once

// The operands of gemm.cu and gemm_epilogue.cu, and the producer that loads them.
#include "config.cuh"

namespace tmaasync::kernels::gemm {

using Loop = TileLoop<
    WgmmaOperand<ATile, A_IS_K_MAJOR ? Major::kK : Major::kMN>,
    WgmmaOperand<BTile, B_IS_K_MAJOR ? Major::kK : Major::kMN>>;

// Whether A is loaded 64 rows at a time, never beyond its end: see shifted_row().
constexpr bool kShiftsRows =
    A_IS_K_MAJOR && C_IS_N_MAJOR && ATile::box_side(ATile::kRank - 2) == 64;

// The last row of m at which a load of 64 rows may start.
__device__ constexpr int last_row(int m) {
    return kShiftsRows ? max(m - 64, 0) : kUnshifted;
}

__device__ Coordinates<ATile::kRank> a_at(const OutputTile& tile, int k) {
    const int m = tile.m;
    return in_batch<ATile::kRank>(A_IS_K_MAJOR ? k : m, A_IS_K_MAJOR ? m : k, tile.batch);
}

__device__ Coordinates<BTile::kRank> b_at(const OutputTile& tile, int k) {
    const int n = tile.n;
    return in_batch<BTile::kRank>(B_IS_K_MAJOR ? k : n, B_IS_K_MAJOR ? n : k, tile.batch);
}

// Load an operand tile that kCtas CTAs share: the multicast group, or one CTA.
template <int kCtas, typename LoadedStage, typename Tile>
__device__ void load_operand(
    const LoadedStage& stage,
    typename Tile::Shared& shared,
    const Tile& tile,
    Coordinates<Tile::kRank> at
) {
    if constexpr (kCtas > 1) {
        stage.async_multicast_load(tile, shared, at);
    } else {
        tile.async_copy(shared, stage.full(), at);
    }
}

// Load a tile of A, 64 rows at a time.
template <typename LoadedStage>
__device__ void load_rows(
    const LoadedStage& stage, const ATile& a, const OutputTile& tile, int k, int last
) {
    constexpr int kBoxes = ATile::kBoxes / Cluster::kN;
    static_assert(ATile::kBoxes % Cluster::kN == 0, "CTAs load as many boxes each");
    static_assert(
        !kShiftsRows || ATile::kBoxes * 64 == ATile::side(ATile::kRank - 2),
        "a box has the whole depth of a stage"
    );
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
        const int box = Cluster::rank_n() * kBoxes + i;
        const auto at = a_at({shifted_row(tile.m + 64 * box, last), tile.n, tile.batch}, k);
        if constexpr (Cluster::kN > 1) {
            const u16 ctas = Cluster::Sharing::cta_mask();
            a.async_multicast_load_box(stage->a, stage.full(), at, box, ctas);
        } else {
            a.async_copy_box(stage->a, stage.full(), at, box);
        }
    }
}

// The default load_more().
struct LoadNoMore {
    __device__ void operator()(OperandProducer&, const OutputTile&) const {}
};

// Load the operands of every tile. part_of(tile, k) returns the part of A for a K block, and may
// wait for its data. After each tile, load_more(producer, tile) may fill further stages.
template <typename PartOf, typename Schedule, typename LoadMore = LoadNoMore>
__device__ void load_tiles(
    SharedMemory& shared,
    PartOf part_of,
    const BTile& b,
    const Schedule& schedule,
    int k_blocks,
    int m,
    LoadMore load_more = {}
) {
    auto producer = shared.ring.producer();
    for (const auto tile : schedule) {
        const auto blocks = k_range(schedule, tile, k_blocks);
        for (const auto stage : producer.produce(blocks.count)) {
            const int k = (blocks.first + stage.iteration()) * kBlockK;
            const PartOfA part = part_of(tile, k);
            const OutputTile rows{part.m, tile.n, tile.batch};
            if constexpr (kShiftsRows) {
                load_rows(stage, part.a, rows, k, last_row(m));
            } else {
                load_operand<Cluster::kN>(stage, stage->a, part.a, a_at(rows, k));
            }
            load_operand<Cluster::kM>(stage, stage->b, b, b_at(tile, k));
        }
        load_more(producer, tile);
    }
}

}  // namespace tmaasync::kernels::gemm
