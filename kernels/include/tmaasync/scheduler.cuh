#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/k_range.cuh>
#include <tmaasync/ragged.cuh>
#include <tmaasync/ring.cuh>

// Tile schedulers of persistent kernels: the tiles that a cluster computes, and their order. All
// have the same interface:
//
//   for (const auto tile : schedule)                           or, to look one tile ahead,
//   for (; !schedule.done(); schedule.step()) schedule.tile()
//
// The range-based loop copies the scheduler, so producer and consumers can share one.
//
//   StaticScheduler     any number of clusters takes the tiles round-robin (CUTLASS's
//                       PersistentTileSchedulerSm90)
//   DynamicScheduler    a cluster that finishes takes the next tile from an atomic counter
//                       (FlashAttention-3's DynamicPersistentTileScheduler)
//   ListScheduler       the host assigns a tile to each cluster in each wave, for example by
//                       longest processing time first (LPT, Graham 1969)
//   StreamKScheduler    all clusters have an equal share of the blocks along K, so that none is
//                       idle in the last wave (stream-K: Osama et al. 2023; CUTLASS's
//                       PersistentTileSchedulerSm90StreamK)
//   GroupedScheduler    the tiles of groups of rows that are packed back to back (CUTLASS's
//                       PersistentTileSchedulerSm90Group)
//
// The first four take the tiles of OutputTiles, or of a type with the same members.
namespace tmaasync {

// --- ranges --------------------------------------------------------------------------------------

// The range of `for (const auto tile : schedule)`, over a copy of the scheduler.
template <typename Scheduler>
class ScheduleIterator {
public:
    struct End {};

    __device__ __forceinline__ explicit ScheduleIterator(const Scheduler& scheduler)
        : scheduler_(scheduler) {}
    __device__ __forceinline__ bool operator!=(End) const { return !scheduler_.done(); }
    __device__ __forceinline__ void operator++() { scheduler_.step(); }
    __device__ __forceinline__ auto operator*() const { return scheduler_.tile(); }

private:
    Scheduler scheduler_;
};

// The base of a scheduler (CRTP).
template <typename Scheduler>
struct Schedule {
    __device__ __forceinline__ auto begin() const {
        return ScheduleIterator<Scheduler>(static_cast<const Scheduler&>(*this));
    }
    __device__ __forceinline__ auto end() const {
        return typename ScheduleIterator<Scheduler>::End{};
    }
};

// --- clusters ------------------------------------------------------------------------------------

// The shape of a cluster: CTAs along M share the columns of B, and CTAs along N the rows of A. With
// split-K the cluster has kSplits of these groups, one per range of K. CTAs that share loads have
// adjacent ranks, along M first. <1> means no cluster.
template <int kCtasAlongM = 1, int kCtasAlongN = 1, int kSplits = 1>
struct ClusterShape {
    static constexpr int kM = kCtasAlongM;
    static constexpr int kN = kCtasAlongN;
    static constexpr int kSplitK = kSplits;
    static constexpr int kCtas = kM * kN * kSplitK;
    // The CTAs that share loads: the Group argument of a Ring.
    using Sharing = Multicast<kM * kN, kSplitK>;

    // This CTA's rank along M, along N, and among the splits of K.
    __device__ __forceinline__ static int rank_m() {
        if constexpr (kM == 1) return 0;
        if constexpr (kN == 1) return Sharing::rank();
        return Sharing::rank() % kM;
    }
    __device__ __forceinline__ static int rank_n() {
        if constexpr (kN == 1) return 0;
        if constexpr (kM == 1) return Sharing::rank();
        return Sharing::rank() / kM;
    }
    __device__ __forceinline__ static int split_rank() {
        if constexpr (kSplitK == 1) return 0;
        return block_rank_in_cluster() / (kM * kN);
    }

    // The index of this cluster, and the number of clusters, in a one-dimensional grid.
    __device__ __forceinline__ static int index() { return blockIdx.x / kCtas; }
    __device__ __forceinline__ static int count() { return gridDim.x / kCtas; }
};

// --- grids of tiles ------------------------------------------------------------------------------

// Integer types: an extent, a coordinate, or a number of tiles or blocks is an `int` of at least 0.
// An extent plus a tile fits in it up to the host's MAX_EXTENT (tmaasync/ops/_extents.py), which
// every operation checks. Two of them are multiplied as i64 where no array bounds the result.

// The tiles that cover an extent; right for every int of at least 0.
__device__ __forceinline__ constexpr int count_tiles(int extent, int side) {
    return static_cast<int>((static_cast<u32>(extent) + side - 1) / side);
}

// The index-th of m_tiles x n_tiles tiles in rasterisation order: groups of kGroupM rows of tiles
// are visited column by column, which keeps the operands of a wave in L2 (L2 swizzle: CUTLASS's
// threadblock swizzle, Triton's grouped ordering).
template <int kGroupM>
struct RasterizedTile {
    int m_tile;
    int n_tile;

    __device__ __forceinline__ RasterizedTile(int index, int m_tiles, int n_tiles) {
        const u32 group_tiles = kGroupM * static_cast<u32>(n_tiles);
        const int group = static_cast<u32>(index) / group_tiles;
        const int within = static_cast<u32>(index) % group_tiles;
        const int rows = min(kGroupM, m_tiles - group * kGroupM);
        m_tile = group * kGroupM + within % rows;
        n_tile = within / rows;
    }
};

// Coordinates in a matrix, or, if the map has a third dimension, in one matrix of a batch.
template <int kRank>
__device__ __forceinline__ Coordinates<kRank> in_batch(int inner, int outer, int batch) {
    static_assert(kRank == 2 || kRank == 3, "a matrix, or a batch of matrices");
    if constexpr (kRank == 3) {
        return {inner, outer, batch};
    } else {
        return {inner, outer};
    }
}

// A CTA's output tile, given by its first row and column.
struct OutputTile {
    int m;
    int n;
    int batch;
};

// The tiles of an m x n output, or of a batch of outputs: matrix by matrix, each in rasterisation
// order. kTileM x kTileN is the tile of one CTA; the tiles of a cluster are adjacent.
template <int kTileM, int kTileN, typename ClusterOfTiles = ClusterShape<>, int kGroupM = 8>
struct OutputTiles {
    using Cluster = ClusterOfTiles;

    int m_tiles;
    int n_tiles;
    int batches;

    __device__ __forceinline__ OutputTiles(int m, int n, int batches = 1)
        : m_tiles(count_tiles(m, kTileM * Cluster::kM)),
          n_tiles(count_tiles(n, kTileN * Cluster::kN)),
          batches(batches) {}

    // The number of cluster tiles.
    __device__ __forceinline__ int count() const { return m_tiles * n_tiles * batches; }

    // This CTA's part of a cluster's tile.
    __device__ __forceinline__ OutputTile at(int index) const {
        const int tiles = m_tiles * n_tiles;
        const int batch = batches == 1 ? 0 : index / tiles;
        const RasterizedTile<kGroupM> tile(index - batch * tiles, m_tiles, n_tiles);
        return {
            (tile.m_tile * Cluster::kM + Cluster::rank_m()) * kTileM,
            (tile.n_tile * Cluster::kN + Cluster::rank_n()) * kTileN, batch
        };
    }
};

// The tiles of packed sequences (varlen), of kTileRows rows of a head: sequence by sequence, and in
// each head by head. Tiles of a head run from last to first, so that with a causal mask the tiles
// with the most keys come first. Tile is an aggregate of a RaggedSequence, the head, and the first
// row in the sequence. At most one tile per head of a sequence is empty (has no rows).
template <typename Tile, int kTileRows>
struct SequenceTiles {
    using Cluster = ClusterShape<>;

    const i32* cu_seqlens;
    i32 sequences;
    i32 heads;
    i32 rows;  // of the array

    // An upper bound on the number of tiles, because only the device knows the lengths.
    __device__ __forceinline__ int count() const { return heads * (rows / kTileRows + sequences); }

    __device__ __forceinline__ Tile at(int index) const {
        if (sequences == 0) return {{0, 0}, 0, 0};
        int sequence = 0;
        for (int end = sequences; end - sequence > 1;) {
            const int middle = (sequence + end) / 2;
            (first_tile(middle) <= index ? sequence : end) = middle;
        }
        const auto own = RaggedSequence::of(cu_seqlens, sequence);
        if (!own.is_within(rows, rows)) return {{0, 0}, 0, 0};
        const int first = first_tile(sequence), tiles = (first_tile(sequence + 1) - first) / heads;
        const int head = (index - first) / tiles, before = (index - first) % tiles;
        const int tile = count_tiles(own.length, kTileRows) - 1 - before;
        if (index < first || head >= heads || tile < 0) return {{0, 0}, 0, 0};
        return {own, head, tile * kTileRows};
    }

private:
    // The index of a sequence's first tile.
    __device__ __forceinline__ int first_tile(int sequence) const {
        return heads * first_tile_number<kTileRows>(cu_seqlens, sequence);
    }
};

// --- schedulers ----------------------------------------------------------------------------------

// The static persistent scheduler: cluster i of c takes tiles i, i + c, i + 2 c and so on. Any
// number of clusters covers all tiles.
template <typename Tiles>
struct StaticScheduler : Schedule<StaticScheduler<Tiles>> {
    using Cluster = typename Tiles::Cluster;

    Tiles tiles;
    int index;

    __device__ __forceinline__ explicit StaticScheduler(const Tiles& tiles)
        : tiles(tiles), index(Cluster::index()) {}

    __device__ __forceinline__ bool done() const { return index >= tiles.count(); }
    __device__ __forceinline__ void step() { index += Cluster::count(); }
    __device__ __forceinline__ auto tile() const { return tiles.at(index); }
};

// The dynamic persistent scheduler: a cluster takes its next tile from an atomic tile counter in
// global memory, which is 0 before the first launch. step() takes a tile. So one thread of the
// cluster iterates over the schedule, and passes each `index` to the others, which call
// tiles.at(index). It may step ahead of the computation, which hides the latency of the atomic. It
// must iterate until done().
template <typename Tiles>
struct DynamicScheduler : Schedule<DynamicScheduler<Tiles>> {
    using Cluster = typename Tiles::Cluster;

    Tiles tiles;
    u32* counter;
    int count;  // number of tiles, read once because `tiles` may be in memory
    int index;

    __device__ __forceinline__ DynamicScheduler(const Tiles& tiles, u32* counter)
        : tiles(tiles), counter(counter), count(tiles.count()), index(Cluster::index()) {}

    __device__ __forceinline__ bool done() const { return index >= count; }

    // A cluster makes one request per tile that it computes, so the requests equal the tiles: the
    // last request wraps the counter to 0 for the next launch.
    __device__ __forceinline__ void step() {
        index = Cluster::count() + static_cast<int>(atomicInc(counter, count - 1));
    }

    __device__ __forceinline__ auto tile() const { return tiles.at(index); }
};

// A schedule made on the host: table[wave][cluster] is the index of the tile that a cluster takes
// in a wave; negative after its last tile.
template <typename Tiles>
struct ListScheduler : Schedule<ListScheduler<Tiles>> {
    using Cluster = typename Tiles::Cluster;

    Tiles tiles;
    const i32* table;
    int waves;
    int wave = 0;
    int index;

    __device__ __forceinline__ ListScheduler(const Tiles& tiles, const i32* table, int waves)
        : tiles(tiles), table(table), waves(waves), index(listed()) {}

    __device__ __forceinline__ bool done() const { return index < 0; }
    __device__ __forceinline__ void step() {
        ++wave;
        index = listed();
    }
    __device__ __forceinline__ auto tile() const { return tiles.at(index); }

private:
    __device__ __forceinline__ int listed() const {
        if (wave >= waves) return -1;
        const int tile = table[wave * Cluster::count() + Cluster::index()];
        check(
            tile < tiles.count(), "table[wave][cluster]", tile, "it must be below", tiles.count()
        );
        return tile;
    }
};

// --- stream-K ------------------------------------------------------------------------------------

// The K blocks of a tile that one cluster multiplies. The cluster with the last blocks finishes the
// tile. The earlier blocks belong to `peers` clusters, whose indices directly precede its own.
template <typename Tile, typename Cluster>
struct StreamKTile : Tile {
    KRange k_blocks;
    int peers;
    bool finishes;
};

// Hybrid stream-K. The K blocks of the first tiles are divided into one range per cluster; ranges
// are equal up to one block. The other tiles are not split, the same number for every cluster. With
// more tiles than clusters a range has one to two tiles, so that at most two clusters share a tile.
// StreamKReduction adds up their accumulators. A cluster processes its range backwards: first the
// tile that the next cluster finishes, last the tile that it finishes itself. A cluster waits for
// earlier clusters, so all clusters must be resident at once. A tile has k_blocks, at least one.
template <typename Tiles>
struct StreamKScheduler : Schedule<StreamKScheduler<Tiles>> {
    using Cluster = typename Tiles::Cluster;
    using Tile = StreamKTile<decltype(static_cast<const Tiles*>(nullptr)->at(0)), Cluster>;

    Tiles tiles;
    int k_blocks;
    int divided;  // number of divided tiles, the first ones
    i64 from;     // remaining range of their blocks for this cluster
    i64 to;
    int index;  // index of the next undivided tile

    __device__ __forceinline__ StreamKScheduler(const Tiles& tiles, int k_blocks)
        : tiles(tiles),
          k_blocks(k_blocks),
          divided(count_divided(tiles.count())),
          from(range_start(Cluster::index())),
          to(range_start(Cluster::index() + 1)),
          index(divided + Cluster::index()) {}

    __device__ __forceinline__ bool done() const { return from == to && index >= tiles.count(); }

    __device__ __forceinline__ void step() {
        if (from == to) {
            index += Cluster::count();
        } else {
            to = max(from, tile_start());
        }
    }

    __device__ __forceinline__ Tile tile() const {
        if (from == to) return {tiles.at(index), KRange(k_blocks), 0, true};
        const i64 start = tile_start();
        const int first = static_cast<int>(max(from, start) - start);
        return {
            tiles.at(static_cast<int>(start / k_blocks)),
            KRange::between(first, static_cast<int>(to - start)),
            Cluster::index() - cluster_of(start), to == start + k_blocks
        };
    }

private:
    // The tiles of a partial last wave, plus the wave before it.
    __device__ __forceinline__ static int count_divided(int tiles) {
        const int last_wave = tiles % Cluster::count();
        return last_wave == 0 || tiles < Cluster::count() ? last_wave
                                                          : last_wave + Cluster::count();
    }

    // The first block of the last tile with remaining blocks.
    __device__ __forceinline__ i64 tile_start() const { return (to - 1) / k_blocks * k_blocks; }

    // The first longer() clusters have shorter() + 1 blocks, the others shorter().
    __device__ __forceinline__ i64 blocks() const { return i64{divided} * k_blocks; }
    __device__ __forceinline__ int shorter() const {
        return static_cast<int>(blocks() / Cluster::count());
    }
    __device__ __forceinline__ int longer() const {
        return static_cast<int>(blocks() % Cluster::count());
    }

    // The first block of a cluster's range, and the cluster whose range contains a block.
    __device__ __forceinline__ i64 range_start(int cluster) const {
        return i64{cluster} * shorter() + min(cluster, longer());
    }
    __device__ __forceinline__ int cluster_of(i64 block) const {
        const i64 ahead = i64{longer()} * (shorter() + 1);
        const i64 after = block < ahead ? block / (shorter() + 1) : (block - ahead) / shorter();
        return static_cast<int>(after) + (block < ahead ? 0 : longer());
    }
};

// --- groups of rows ------------------------------------------------------------------------------

// Groups of rows packed back to back in an array: group g has the rows from ends[g - 1], or 0, to
// ends[g] (offs of PyTorch's _grouped_mm). There is at least one group; any group may be empty.
struct RowGroups {
    const i32* ends;
    i32 count;
    i32 total_rows;

    // The rows of a group, which start at the previous group's end. An end before the start or
    // beyond the arrays is clamped.
    __device__ __forceinline__ RaggedSequence after(i32 start, i32 group) const {
        check_range("offsets[group]", ends[group], start, total_rows);
        return {start, min(max(ends[group], start), total_rows) - start};
    }
};

// A CTA's tile of a group; along the groups, m or n counts from the group's first row. The tiles of
// a cluster lie along M and share loads of B, or along N and share nothing.
struct GroupTile {
    int m;
    int n;
    int group;
    RaggedSequence rows;
    bool shares_b;
};

// The scheduler of a grouped GEMM: tiles group by group, each group in rasterisation order. Groups
// lie along M, and the output has `extent` columns; or along N (swap AB), and it has `extent` rows.
// A row of tiles without a partner is processed in pairs along N, which share nothing, so that no
// CTA idles.
template <
    int kTileM,
    int kTileN,
    int kClusterCtas = 1,
    int kGroupM = 8,
    bool kGroupsLieAlongN = false>
struct GroupedScheduler
    : Schedule<GroupedScheduler<kTileM, kTileN, kClusterCtas, kGroupM, kGroupsLieAlongN>> {
    using Cluster = ClusterShape<kClusterCtas>;
    static_assert(kClusterCtas <= 2, "a cluster takes two tiles of the last row");

    RowGroups groups;
    int extent;
    int index;  // the cluster's tile index within the group
    int group = 0;
    RaggedSequence rows;

    __device__ __forceinline__ GroupedScheduler(const RowGroups& groups, int extent)
        : groups(groups), extent(extent), index(Cluster::index()), rows(groups.after(0, 0)) {
        find_group();
    }

    __device__ __forceinline__ bool done() const { return group == groups.count; }

    __device__ __forceinline__ void step() {
        index += Cluster::count();
        find_group();
    }

    __device__ __forceinline__ GroupTile tile() const {
        if (kClusterCtas > 1 && index >= clusters_along_m()) {
            const int n_tile =
                (index - clusters_along_m()) * kClusterCtas + block_rank_in_cluster();
            return {(m_tiles() - 1) * kTileM, n_tile * kTileN, group, rows, false};
        }
        const RasterizedTile<kGroupM> tile(index, m_tiles() / kClusterCtas, n_tiles());
        const int m_tile = tile.m_tile * kClusterCtas + Cluster::rank_m();
        return {m_tile * kTileM, tile.n_tile * kTileN, group, rows, true};
    }

private:
    __device__ __forceinline__ int m_tiles() const {
        return count_tiles(kGroupsLieAlongN ? extent : rows.length, kTileM);
    }
    __device__ __forceinline__ int n_tiles() const {
        return count_tiles(kGroupsLieAlongN ? rows.length : extent, kTileN);
    }

    // The number of cluster tiles along M, and along N.
    __device__ __forceinline__ int clusters_along_m() const {
        return m_tiles() / kClusterCtas * n_tiles();
    }
    __device__ __forceinline__ int clusters_along_n() const {
        return m_tiles() % kClusterCtas * count_tiles(n_tiles(), kClusterCtas);
    }

    // Advance to the group of the cluster's next tile.
    __device__ __forceinline__ void find_group() {
        while (index >= clusters_along_m() + clusters_along_n()) {
            index -= clusters_along_m() + clusters_along_n();
            if (++group == groups.count) return;
            rows = groups.after(rows.end(), group);
        }
    }
};

}  // namespace tmaasync
