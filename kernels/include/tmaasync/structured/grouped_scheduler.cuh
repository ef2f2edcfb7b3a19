#pragma once

#include <tmaasync/cluster.cuh>
#include <tmaasync/ragged.cuh>
#include <tmaasync/structured/cluster_shape.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/row_groups.cuh>
#include <tmaasync/structured/schedule.cuh>

namespace tmaasync {

// A CTA's tile of a group; along the groups, m or n counts from the group's first row. The tiles of
// a cluster lie along M and share loads of B, or along N and share nothing.
struct GroupTile {
    int m;
    int n;
    int group;
    RaggedSequence rows;
    bool shares_b;
    int m_tiles_before;  // tiles along M of the groups before
};

// The scheduler of a grouped GEMM: tiles group by group, each group in rasterisation order. Groups
// lie along M, and the output has `extent` columns; or along N (swap AB), and it has `extent` rows.
// A row of tiles without a partner is processed in pairs along N, which share nothing, so that no
// CTA idles; with kMultipliesInPairs its partner is a tile without rows.
template <
    int kTileM,
    int kTileN,
    int kClusterCtas = 1,
    int kGroupM = 8,
    bool kGroupsLieAlongN = false,
    bool kMultipliesInPairs = false>
struct GroupedScheduler : Schedule<GroupedScheduler<
                              kTileM,
                              kTileN,
                              kClusterCtas,
                              kGroupM,
                              kGroupsLieAlongN,
                              kMultipliesInPairs>> {
    using Cluster = ClusterShape<kClusterCtas>;
    static_assert(kClusterCtas <= 2, "a cluster takes two tiles of the last row");

    RowGroups groups;
    int extent;
    int index;  // the cluster's tile index within the group
    int group = 0;
    int m_tiles_before = 0;
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
        if (kClusterCtas > 1 && !kMultipliesInPairs && index >= clusters_along_m()) {
            const int n_tile =
                (index - clusters_along_m()) * kClusterCtas + block_rank_in_cluster();
            return {(m_tiles() - 1) * kTileM, n_tile * kTileN, group, rows, false, m_tiles_before};
        }
        const RasterizedTile<kGroupM> tile(index, cluster_rows(), n_tiles());
        const int m_tile = tile.m_tile * kClusterCtas + Cluster::rank_m();
        return {m_tile * kTileM, tile.n_tile * kTileN, group, rows, true, m_tiles_before};
    }

private:
    __device__ __forceinline__ int m_tiles() const {
        return count_tiles(kGroupsLieAlongN ? extent : rows.length, kTileM);
    }
    __device__ __forceinline__ int n_tiles() const {
        return count_tiles(kGroupsLieAlongN ? rows.length : extent, kTileN);
    }

    // The rows of cluster tiles along M.
    __device__ __forceinline__ int cluster_rows() const {
        return (m_tiles() + (kMultipliesInPairs ? kClusterCtas - 1 : 0)) / kClusterCtas;
    }

    // The number of cluster tiles along M, and along N.
    __device__ __forceinline__ int clusters_along_m() const { return cluster_rows() * n_tiles(); }
    __device__ __forceinline__ int clusters_along_n() const {
        if constexpr (kMultipliesInPairs) return 0;
        return m_tiles() % kClusterCtas * count_tiles(n_tiles(), kClusterCtas);
    }

    // Advance to the group of the cluster's next tile.
    __device__ __forceinline__ void find_group() {
        while (index >= clusters_along_m() + clusters_along_n()) {
            index -= clusters_along_m() + clusters_along_n();
            m_tiles_before += m_tiles();
            if (++group == groups.count) return;
            rows = groups.after(rows.end(), group);
        }
    }
};

}  // namespace tmaasync
