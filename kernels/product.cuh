#pragma once

// What kernels share that multiply tiles out of a ring: the ring, walks over the output, the
// consumers, and the way of their sums to global memory. Such a kernel defines, before it includes
// this,
//
//   OperandA, OperandB    how wgmma reads the tiles: WgmmaOperand
//   StageExtras           what a stage has beside the tiles, or an empty struct
//
// and its host ATile, BTile, CTile and the constants that gemm.cu explains.
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>

namespace tmaasync {

using Output = typename CTile::Element;
using Sum = typename SumOf<typename OperandA::Element>::Type;
using Ring = PipelineState<STAGES>;

constexpr int kInstructionRows = 64;
constexpr int kParts = ROWS / kInstructionRows;
constexpr int kGroupThreads = 128;
// With PING_PONG every consumer has tiles of its own: one multiplies while the other stores.
constexpr int kSharers = PING_PONG ? 1 : CONSUMERS;
constexpr int kBlockM = kSharers * ROWS;
constexpr int kClusterCtas = CLUSTER * SPLIT_K;
constexpr int kBlockK = OperandA::kDepth;
constexpr int kThreads = (1 + CONSUMERS) * kGroupThreads;
constexpr int kProducer = 0;
constexpr int kWarps = kGroupThreads / 32;
// Of the named barriers: before it comes one of every group.
constexpr u32 kFirstTurn = 1 + CONSUMERS;
constexpr int kEpilogueBuffers = 2;
// A tile of a batch has a side of 1 in front of the two of its matrix.
constexpr int kLines = CTile::kRank - 2;
constexpr int kInLine = CTile::kRank - 1;
constexpr int kChunkColumns = CTile::side(C_IS_N_MAJOR ? kInLine : kLines);

// How many of the CTAs that split K each store a share of the tile's columns: as many as there are
// whole chunks for.
__device__ constexpr int count_shares() {
    int shares = SPLIT_K;
    while (BLOCK_N % (shares * kChunkColumns) != 0) --shares;
    return shares;
}

constexpr int kShares = count_shares();
constexpr int kShareColumns = BLOCK_N / kShares;
constexpr int kChunks = kShareColumns / kChunkColumns;
constexpr int kLineBytes = CTile::box_side(kInLine) * static_cast<int>(sizeof(Output));

// Registers per thread: what a producer keeps and a consumer claims. The CTA has 64 Ki.
constexpr int kProducerRegisters = CONSUMERS == 3 ? 32 : 40;
constexpr int kConsumerRegisters = CONSUMERS == 3 ? 160 : 232;

static_assert(ROWS % kInstructionRows == 0, "whole instructions");
static_assert(!PING_PONG || CONSUMERS == 2, "two groups take turns");
static_assert(
    CTile::side(C_IS_N_MAJOR ? kLines : kInLine) == kInstructionRows, "a chunk has the rows of one"
);
static_assert(kLineBytes == span_bytes(CTile::kSwizzle) && kLineBytes >= 32, "see gemm.cu");
static_assert(BLOCK_N % kChunkColumns == 0, "whole chunks of output columns");
static_assert(
    kSameType<Sum, int> == kSameType<Output, int>, "integers are stored as they are summed"
);

struct SharedMemory {
    struct Stage {
        typename ATile::Shared a;
        typename BTile::Shared b;
    } stages[STAGES];
    typename CTile::Shared epilogue[CONSUMERS][kEpilogueBuffers];
    SharedMemBarrier full[STAGES];
    SharedMemBarrier empty[STAGES];
    StageExtras extras[STAGES];
};

// What a thread holds of its group's rows: of each 64 the two neighbouring columns of every eight,
// in rows lane / 4 and lane / 4 + 8 of the warp's 16.
using Sums = Sum[kParts][BLOCK_N / 2];
// The same of the columns that this CTA stores.
using Share = Sum[kParts][kShareColumns / 2];

constexpr u32 kStageBytes = ATile::kBytes + BTile::kBytes;

// The CTAs that share loads lie side by side in their cluster; those that split K CLUSTER apart.
__device__ int first_sharer() {
    if constexpr (SPLIT_K == 1) return 0;
    return block_rank_in_cluster() / CLUSTER * CLUSTER;
}

__device__ int rank_among_sharers() {
    if constexpr (SPLIT_K == 1) return block_rank_in_cluster();
    return block_rank_in_cluster() % CLUSTER;
}

// Each CTA that shares the tile loads its part of it and sends it to all.
__device__ void load_b(
    typename BTile::Shared& shared,
    SharedMemBarrier& full,
    const BTile& b,
    Coordinates<BTile::kRank> at
) {
    if constexpr (CLUSTER > 1) {
        constexpr u16 kEveryCta = (1 << CLUSTER) - 1;
        b.template async_multicast_load_partitioned<CLUSTER>(
            shared, full, at, kEveryCta << first_sharer(), rank_among_sharers()
        );
    } else {
        b.async_copy(shared, full, at);
    }
}

__device__ constexpr int ceil_div(int a, int b) {
    return (a + b - 1) / b;
}

// Which tile of so many: an order that keeps the operands of a wave in L2. GROUP_M rows of tiles
// are walked column by column.
struct TilePlace {
    int m_tile;
    int n_tile;

    __device__ TilePlace(int index, int m_tiles, int n_tiles) {
        const int group = index / (GROUP_M * n_tiles);
        const int within = index % (GROUP_M * n_tiles);
        const int rows = min(GROUP_M, m_tiles - group * GROUP_M);
        m_tile = group * GROUP_M + within % rows;
        n_tile = within / rows;
    }

    // The first row and column of this CTA, whose cluster has the tile.
    __device__ int m() const {
        const int rank = CLUSTER == 1 ? 0 : rank_among_sharers();
        return (m_tile * CLUSTER + rank) * kBlockM;
    }

    __device__ int n() const { return n_tile * BLOCK_N; }
};

// A place in a matrix of a batch, or in a matrix that is none of a batch: the latter has no third
// coordinate.
template <int kRank>
__device__ Coordinates<kRank> in_batch(int inner, int outer, int batch) {
    if constexpr (kRank == 3) {
        return {inner, outer, batch};
    } else {
        return {inner, outer};
    }
}

// The output tiles of one cluster: matrix by matrix, and in each by TilePlace.
struct TileWalk {
    int m_tiles;
    int n_tiles;
    int k_blocks;
    int batches;
    int index;

    __device__ TileWalk(int m, int n, int k, int batches = 1)
        : m_tiles(ceil_div(m, kBlockM * CLUSTER)),
          n_tiles(ceil_div(n, BLOCK_N)),
          k_blocks(ceil_div(k, kBlockK)),
          batches(batches),
          index(blockIdx.x / kClusterCtas) {}

    __device__ bool done() const { return index >= m_tiles * n_tiles * batches; }
    __device__ void step() { index += gridDim.x / kClusterCtas; }

    struct Start {
        int m;
        int n;
        int batch;

        // Stores what starts so many rows and columns further on.
        template <typename Tile>
        __device__ void store(
            const Tile& c, const typename Tile::Shared& chunk, int row, int column
        ) const {
            c.async_store(chunk, place<Tile::kRank>(row, column));
        }

        // Loads what starts there in a matrix like the output.
        template <typename Tile>
        __device__ void load(
            const Tile& c, typename Tile::Shared& chunk, SharedMemBarrier& full, int row, int column
        ) const {
            c.async_copy(chunk, full, place<Tile::kRank>(row, column));
        }

        template <int kRank>
        __device__ Coordinates<kRank> place(int row, int column) const {
            const int inner = C_IS_N_MAJOR ? n + column : m + row;
            const int outer = C_IS_N_MAJOR ? m + row : n + column;
            return in_batch<kRank>(inner, outer, batch);
        }
    };

    __device__ Start start() const {
        const int tiles = m_tiles * n_tiles;
        const int batch = batches == 1 ? 0 : index / tiles;
        const TilePlace place(index - batch * tiles, m_tiles, n_tiles);
        return {place.m(), place.n(), batch};
    }
};

__device__ void open_ring(SharedMemory& shared) {
    for (int stage = 0; stage < STAGES; ++stage) {
        shared.full[stage].init(1);
        // One lane of every warp that reads a stage, in every CTA that our multicast writes into.
        shared.empty[stage].init(kSharers * kWarps * CLUSTER);
    }
    fence_barrier_init();
}

// The warp has read the stage: tells the producer of every CTA that wrote into it.
__device__ void release_stage(SharedMemory& shared, u32 stage) {
    if constexpr (CLUSTER == 1) {
        if (lane_index() == 0) shared.empty[stage].arrive();
    } else {
        if (lane_index() < CLUSTER) {
            shared.empty[stage].arrive_cluster_relaxed(first_sharer() + lane_index());
        }
    }
}

// Where the rows of a group begin in its tile.
__device__ int group_row(int consumer) {
    return PING_PONG ? 0 : consumer * ROWS;
}

__device__ void fence_sums(Sums& sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        wgmma_fence_operands(sums[part]);
    }
}

// `on_issued` is called when the tensor cores have all their work.
template <typename OnIssued>
__device__ void multiply_tile(
    SharedMemory& shared,
    Ring& place,
    Sums& sums,
    int consumer,
    int k_blocks,
    const OnIssued& on_issued
) {
    u32 previous = 0;
    for (int block = 0; block < k_blocks; ++block, place.step()) {
        auto& stage = shared.stages[place.index];
        u64 a[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const int row = group_row(consumer) + part * kInstructionRows;
            a[part] = OperandA::descriptor(stage.a, row);
        }
        const u64 b = OperandB::descriptor(stage.b, 0);
        // The operands of this stage have landed.
        shared.full[place.index].wait(place.phase);
        fence_sums(sums);
        ptx::wgmma_fence();
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            wgmma_tile<OperandA, OperandB>(sums[part], a[part], b, block > 0);
        }
        ptx::wgmma_commit_group();
        // One group stays in flight, so the tensor cores never drain; the one before has finished.
        ptx::wgmma_wait_group<1>();
        fence_sums(sums);
        if (block > 0) release_stage(shared, previous);
        previous = place.index;
    }
    on_issued();
    ptx::wgmma_wait_group<0>();
    fence_sums(sums);
    release_stage(shared, previous);
}

// A chunk is lines of the output in its memory's order: rows, or columns.
__device__ u32 offset_in_chunk(int line, int byte) {
    return swizzled<CTile::kSwizzle>(line * kLineBytes + byte);
}

// Where unit (16 bytes) of a line lies.
__device__ u32 unit_address(const typename CTile::Shared& chunk, int line, int unit) {
    return ptx::shared_address(chunk.bytes) + offset_in_chunk(line, unit * 16);
}

// 16-bit output: four 8x8 matrices a time. A lane gives the address of one row of one matrix.
template <typename T>
__device__ void write_rows_16bit(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    const int lane = lane_index();
    const int row = threadIdx.x % kGroupThreads / 32 * 16 + lane % 16;
#pragma unroll
    for (int unit = 0; unit < kLineBytes / 16; unit += 2) {
        const Sum* s = sums + first + unit * 4;
        ptx::stmatrix_x4(
            unit_address(chunk, row, unit + lane / 16), accumulator_pair<T>(s, 0),
            accumulator_pair<T>(s, 1), accumulator_pair<T>(s, 2), accumulator_pair<T>(s, 3)
        );
    }
}

// 32-bit output: a lane holds two neighbouring columns of rows lane / 4 and lane / 4 + 8.
__device__ void write_rows_32bit(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    struct alignas(8) Pair {
        Sum low, high;
    };
    const int lane = lane_index();
    const int row = threadIdx.x % kGroupThreads / 32 * 16 + lane / 4;
#pragma unroll
    for (int eight = 0; eight < kChunkColumns / 8; ++eight) {
        const Sum* s = sums + first + eight * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 offset = offset_in_chunk(row + 8 * half, eight * 32 + lane % 4 * 8);
            auto* pair = reinterpret_cast<Pair*>(chunk.bytes + offset);
            *pair = {s[2 * half], s[2 * half + 1]};
        }
    }
}

// 16-bit output whose columns are contiguous: lines of the chunk are columns, so the two matrices
// of a warp are transposed on the way.
template <typename T>
__device__ void write_columns_16bit(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    const int lane = lane_index();
    const int unit = threadIdx.x % kGroupThreads / 32 * 2 + lane / 8 % 2;
#pragma unroll
    for (int column = 0; column < kChunkColumns; column += 8) {
        const Sum* s = sums + first + column / 2;
        ptx::stmatrix_x2_trans(
            unit_address(chunk, column + lane % 8, unit), accumulator_pair<T>(s, 0),
            accumulator_pair<T>(s, 1)
        );
    }
}

// 32-bit output whose columns are contiguous: 32 rows to a line, the other 32 in the second box.
__device__ void write_columns_32bit(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
        const int row = threadIdx.x % kGroupThreads / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const u32 offset = offset_in_chunk(column, row % 32 * 4);
        *reinterpret_cast<Sum*>(chunk.bytes + row / 32 * CTile::kBoxBytes + offset) =
            sums[first + i];
    }
}

__device__ void write_chunk(
    typename CTile::Shared& chunk, const Sum (&sums)[kShareColumns / 2], int first
) {
    constexpr bool kIs16Bit = sizeof(Output) == 2;
    if constexpr (C_IS_N_MAJOR && kIs16Bit) {
        write_rows_16bit<Output>(chunk, sums, first);
    } else if constexpr (C_IS_N_MAJOR) {
        write_rows_32bit(chunk, sums, first);
    } else if constexpr (kIs16Bit) {
        write_columns_16bit<Output>(chunk, sums, first);
    } else {
        write_columns_32bit(chunk, sums, first);
    }
}

// What becomes of the sums before they are rounded: this is nothing. A tile's, whose rows and
// columns start there, may take from the ring what the producer put behind the tile's operands.
struct Untouched {
    template <typename Start>
    __device__ void tile(Share&, Ring&, const Start&) const {}
    // The sums of the columns of one chunk.
    __device__ void chunk(Sum*) const {}
};

// The group's output chunks take turns in its epilogue buffers, across tiles too: `chunks` counts
// them.
template <typename Finish, typename Start>
__device__ void store_part(
    SharedMemory& shared,
    u32& chunks,
    Sum (&sums)[kShareColumns / 2],
    const Finish& finish,
    const CTile& c,
    int consumer,
    int part,
    const Start& start
) {
    const NamedBarrier<kGroupThreads> group{1u + consumer};
    const bool leads = threadIdx.x % kGroupThreads == 0;
#pragma unroll
    for (int index = 0; index < kChunks; ++index, ++chunks) {
        auto& chunk = shared.epilogue[consumer][chunks % kEpilogueBuffers];
        // The store that read this buffer before has finished reading.
        if (leads) wait_group_read<kEpilogueBuffers - 1>();
        group.sync();
        finish.chunk(sums + index * kChunkColumns / 2);
        write_chunk(chunk, sums, index * kChunkColumns / 2);
        fence_async_view_proxy();
        group.sync();
        if (leads) {
            const int row = group_row(consumer) + part * kInstructionRows;
            start.store(c, chunk, row, index * kChunkColumns);
            commit_group();
        }
    }
}

template <typename Finish, typename Start>
__device__ void store_sums(
    SharedMemory& shared,
    u32& chunks,
    Share& sums,
    const Finish& finish,
    const CTile& c,
    int consumer,
    const Start& start
) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        store_part(shared, chunks, sums[part], finish, c, consumer, part, start);
    }
}

// What the group stored has been read.
__device__ void end_stores() {
    if (threadIdx.x % kGroupThreads == 0) wait_group_read<0>();
}

// Two groups that have tiles of their own take turns at the tensor cores.
__device__ void take_turn(int consumer) {
    NamedBarrier<2 * kGroupThreads>{kFirstTurn + consumer}.sync();
}

__device__ void pass_turn(int consumer) {
    NamedBarrier<2 * kGroupThreads>{kFirstTurn + 1 - consumer}.arrive();
}

// Each group has every second tile. It looks at the ring only in its turn: by then the other has
// seen all stages before its own land, and no phase is taken for one two laps later.
template <typename Walk, typename Finish>
__device__ void multiply_tiles_in_turns(
    SharedMemory& shared, const CTile& c, Walk walk, int consumer, const Finish& finish
) {
    auto place = Ring::for_consumer();
    u32 chunks = 0;
    bool has_turn = consumer == 0;
    if (!has_turn && !walk.done()) {
        walk.step();
        place.advance(walk.k_blocks);
    }
    while (!walk.done()) {
        const auto start = walk.start();
        walk.step();
        const bool is_last = walk.done();
        if (!has_turn) take_turn(consumer);
        has_turn = false;
        Sums sums;
        multiply_tile(shared, place, sums, consumer, walk.k_blocks, [&] {
            if (!is_last) pass_turn(consumer);
        });
        finish.tile(sums, place, start);
        store_sums(shared, chunks, sums, finish, c, consumer, start);
        if (is_last) break;
        walk.step();
        place.advance(walk.k_blocks);
    }
    end_stores();
}

// All groups share every tile.
template <typename Walk, typename Finish>
__device__ void multiply_tiles_together(
    SharedMemory& shared, const CTile& c, Walk walk, int consumer, const Finish& finish
) {
    auto place = Ring::for_consumer();
    u32 chunks = 0;
    for (; !walk.done(); walk.step()) {
        const auto start = walk.start();
        Sums sums;
        multiply_tile(shared, place, sums, consumer, walk.k_blocks, [] {});
        finish.tile(sums, place, start);
        store_sums(shared, chunks, sums, finish, c, consumer, start);
    }
    end_stores();
}

// `walk` has the interface of TileWalk, `finish` that of Untouched.
template <typename Walk, typename Finish>
__device__ void multiply_tiles(
    SharedMemory& shared, const CTile& c, Walk walk, int consumer, const Finish& finish
) {
    if constexpr (PING_PONG) {
        multiply_tiles_in_turns(shared, c, walk, consumer, finish);
    } else {
        multiply_tiles_together(shared, c, walk, consumer, finish);
    }
}

// The roles of a CTA's warpgroups: `load(shared)` is that of one thread of the first, which puts
// tiles into the ring; `multiply(shared, consumer)` that of every other group, which takes them
// out. `tiles` are the parameters whose maps are fetched ahead.
template <typename Load, typename Multiply, typename... Tiles>
__device__ __forceinline__ void run_roles(Load load, Multiply multiply, const Tiles&... tiles) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int group = warpgroup_index();

    // The next grid may open its rings while this one multiplies.
    launch_dependent_grids();
    if (threadIdx.x == 0) {
        (tiles.prefetch_descriptor(), ...);
        open_ring(shared);
    }
    if constexpr (CLUSTER == 1) {
        __syncthreads();
    } else {
        cluster_sync();
    }

    if (group == kProducer) {
        release_registers<kProducerRegisters>();
        if (warp_index() == 0 && elect()) {
            wait_for_previous_grids();
            load(shared);
        }
        // The consumers meet those of the other CTAs: see split_k.cuh.
        if constexpr (SPLIT_K > 1) {
            cluster_sync();
            cluster_sync();
        }
    } else {
        claim_registers<kConsumerRegisters>();
        multiply(shared, group - 1);
    }
    // No CTA leaves while a peer may still write into its shared memory or arrive on its barriers.
    if constexpr (CLUSTER > 1 && SPLIT_K == 1) cluster_sync();
}

}  // namespace tmaasync
