// Groups of whole blocks: thread_block, cluster_group, grid_group.
#pragma once

#include <cooperative_groups/detail/lanes.hpp>
#include <tmaasync/ptx/address.cuh>
#include <tmaasync/ptx/cluster.cuh>
#include <tmaasync_emulate/calls.hpp>

namespace cooperative_groups {

// A group whose kind is known only at run time: a block, lanes of a warp, a cluster or the grid.
class thread_group {
public:
    enum class Kind { kLanes, kBlock, kCluster, kGrid };

    TMAASYNC_EMULATE_INLINE thread_group(
        Kind kind, unsigned mask, unsigned long long size, unsigned long long rank
    )
        : kind_(kind), mask_(mask), size_(size), rank_(rank) {}

    TMAASYNC_EMULATE_INLINE unsigned long long size() const { return size_; }
    TMAASYNC_EMULATE_INLINE unsigned long long num_threads() const { return size_; }
    TMAASYNC_EMULATE_INLINE unsigned long long thread_rank() const { return rank_; }
    TMAASYNC_EMULATE_INLINE void sync() const;
    TMAASYNC_EMULATE_INLINE Kind kind() const { return kind_; }
    TMAASYNC_EMULATE_INLINE unsigned mask() const { return mask_; }

private:
    Kind kind_;
    unsigned mask_;  // mask of its lanes
    unsigned long long size_;
    unsigned long long rank_;
};

class thread_block {
public:
    struct arrival_token {};

    TMAASYNC_EMULATE_INLINE operator thread_group() const {
        return {thread_group::Kind::kBlock, 0, size(), thread_rank()};
    }

    TMAASYNC_EMULATE_INLINE static void sync() { __syncthreads(); }
    // As in CUDA's header, only the wait synchronises.
    TMAASYNC_EMULATE_INLINE static arrival_token barrier_arrive() { return {}; }
    TMAASYNC_EMULATE_INLINE static void barrier_wait(arrival_token&&) { __syncthreads(); }

    TMAASYNC_EMULATE_INLINE static unsigned size() { return detail::count_of(blockDim); }
    TMAASYNC_EMULATE_INLINE static unsigned num_threads() { return size(); }
    TMAASYNC_EMULATE_INLINE static unsigned thread_rank() {
        return detail::rank_of(threadIdx, blockDim);
    }
    TMAASYNC_EMULATE_INLINE static dim3 thread_index() { return threadIdx; }
    TMAASYNC_EMULATE_INLINE static dim3 group_index() { return blockIdx; }
    TMAASYNC_EMULATE_INLINE static dim3 group_dim() { return blockDim; }
    TMAASYNC_EMULATE_INLINE static dim3 dim_threads() { return blockDim; }
};

TMAASYNC_EMULATE_INLINE thread_block this_thread_block() {
    return {};
}

class cluster_group {
public:
    struct arrival_token {};

    TMAASYNC_EMULATE_INLINE operator thread_group() const {
        return {thread_group::Kind::kCluster, 0, size(), thread_rank()};
    }

    TMAASYNC_EMULATE_INLINE static void sync() { barrier_wait(barrier_arrive()); }
    TMAASYNC_EMULATE_INLINE static arrival_token barrier_arrive() {
        tmaasync::ptx::barrier_cluster_arrive();
        return {};
    }
    TMAASYNC_EMULATE_INLINE static void barrier_wait() { tmaasync::ptx::barrier_cluster_wait(); }
    TMAASYNC_EMULATE_INLINE static void barrier_wait(arrival_token&&) { barrier_wait(); }

    // The address of this block's memory in another block of the cluster.
    template <typename T>
    TMAASYNC_EMULATE_INLINE static T* map_shared_rank(T* pointer, int rank) {
        const auto address = reinterpret_cast<tmaasync::u64>(pointer);
        return reinterpret_cast<T*>(tmaasync::ptx::mapa(address, static_cast<unsigned>(rank)));
    }
    TMAASYNC_EMULATE_INLINE static unsigned query_shared_rank(const void* pointer) {
        const tmaasync_emulate::Thread& own = thread();
        const auto* const first =
            own.window - std::size_t{own.rank} * tmaasync_emulate::kWindowStride;
        const auto offset = static_cast<const std::uint8_t*>(pointer) - first;
        return static_cast<unsigned>(offset / std::ptrdiff_t{tmaasync_emulate::kWindowStride});
    }

    TMAASYNC_EMULATE_INLINE static unsigned block_rank() { return thread().rank; }
    TMAASYNC_EMULATE_INLINE static unsigned num_blocks() { return thread().ctas; }
    TMAASYNC_EMULATE_INLINE static dim3 dim_blocks() { return thread().cluster_dim; }
    TMAASYNC_EMULATE_INLINE static dim3 block_index() {
        const uint3 size = thread().cluster_dim, at = thread().block;
        return {at.x % size.x, at.y % size.y, at.z % size.z};
    }
    TMAASYNC_EMULATE_INLINE static unsigned thread_rank() {
        return block_rank() * thread_block::size() + thread_block::thread_rank();
    }
    TMAASYNC_EMULATE_INLINE static dim3 thread_index() {
        const dim3 block = block_index();
        return {
            block.x * blockDim.x + threadIdx.x, block.y * blockDim.y + threadIdx.y,
            block.z * blockDim.z + threadIdx.z
        };
    }
    TMAASYNC_EMULATE_INLINE static unsigned size() { return num_blocks() * thread_block::size(); }
    TMAASYNC_EMULATE_INLINE static unsigned num_threads() { return size(); }
    TMAASYNC_EMULATE_INLINE static dim3 dim_threads() {
        const uint3 size = thread().cluster_dim;
        return {size.x * blockDim.x, size.y * blockDim.y, size.z * blockDim.z};
    }

private:
    TMAASYNC_EMULATE_INLINE static const tmaasync_emulate::Thread& thread() {
        return tmaasync_emulate::current_thread();
    }
};

TMAASYNC_EMULATE_INLINE cluster_group this_cluster() {
    return {};
}

// The grid, which synchronises in a cooperative launch.
class grid_group {
public:
    struct arrival_token {
        unsigned phase;
    };

    TMAASYNC_EMULATE_INLINE operator thread_group() const {
        return {thread_group::Kind::kGrid, 0, size(), thread_rank()};
    }

    TMAASYNC_EMULATE_INLINE static bool is_valid() { return tmaasync_emulate::is_cooperative(); }
    TMAASYNC_EMULATE_INLINE static void sync() { barrier_wait(barrier_arrive()); }

    TMAASYNC_EMULATE_INLINE static arrival_token barrier_arrive() {
        __syncthreads();
        if (thread_block::thread_rank() != 0) return {0};
        __threadfence();
        return {tmaasync_emulate::grid_barrier_arrive()};
    }
    TMAASYNC_EMULATE_INLINE static void barrier_wait(arrival_token&& token) {
        if (thread_block::thread_rank() == 0) {
            tmaasync_emulate::grid_barrier_wait(token.phase);
            __threadfence();
        }
        __syncthreads();
    }

    TMAASYNC_EMULATE_INLINE static unsigned long long size() {
        return num_blocks() * thread_block::size();
    }
    TMAASYNC_EMULATE_INLINE static unsigned long long num_threads() { return size(); }
    TMAASYNC_EMULATE_INLINE static unsigned long long thread_rank() {
        return block_rank() * thread_block::size() + thread_block::thread_rank();
    }
    TMAASYNC_EMULATE_INLINE static dim3 thread_index() {
        return {
            blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
            blockIdx.z * blockDim.z + threadIdx.z
        };
    }
    TMAASYNC_EMULATE_INLINE static dim3 group_dim() { return gridDim; }
    TMAASYNC_EMULATE_INLINE static dim3 dim_threads() {
        return {gridDim.x * blockDim.x, gridDim.y * blockDim.y, gridDim.z * blockDim.z};
    }
    TMAASYNC_EMULATE_INLINE static dim3 dim_blocks() { return gridDim; }
    TMAASYNC_EMULATE_INLINE static dim3 block_index() { return blockIdx; }
    TMAASYNC_EMULATE_INLINE static unsigned long long num_blocks() {
        return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z;
    }
    TMAASYNC_EMULATE_INLINE static unsigned long long block_rank() {
        const uint3 at = blockIdx, grid = gridDim;
        return at.x + static_cast<unsigned long long>(grid.x) *
                          (at.y + static_cast<unsigned long long>(grid.y) * at.z);
    }
    TMAASYNC_EMULATE_INLINE static dim3 dim_clusters() {
        const uint3 size = tmaasync_emulate::current_thread().cluster_dim;
        return {gridDim.x / size.x, gridDim.y / size.y, gridDim.z / size.z};
    }
    TMAASYNC_EMULATE_INLINE static dim3 cluster_index() {
        const uint3 size = tmaasync_emulate::current_thread().cluster_dim;
        return {blockIdx.x / size.x, blockIdx.y / size.y, blockIdx.z / size.z};
    }
    TMAASYNC_EMULATE_INLINE static unsigned long long num_clusters() {
        return num_blocks() / cluster_group::num_blocks();
    }
    TMAASYNC_EMULATE_INLINE static unsigned long long cluster_rank() {
        const dim3 at = cluster_index(), grid = dim_clusters();
        return at.x + static_cast<unsigned long long>(grid.x) *
                          (at.y + static_cast<unsigned long long>(grid.y) * at.z);
    }
};

TMAASYNC_EMULATE_INLINE grid_group this_grid() {
    return {};
}

TMAASYNC_EMULATE_INLINE void thread_group::sync() const {
    switch (kind_) {
        case Kind::kLanes:
            return __syncwarp(mask_);
        case Kind::kBlock:
            return thread_block::sync();
        case Kind::kCluster:
            return cluster_group::sync();
        case Kind::kGrid:
            return grid_group::sync();
    }
}

}  // namespace cooperative_groups
