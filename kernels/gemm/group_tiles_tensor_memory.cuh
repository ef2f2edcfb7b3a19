#pragma once

// The tiles of grouped GEMMs on tensor memory. grouped_gemm_tensor_memory.cu explains them.
#include <tmaasync/structured/grouped_scheduler.cuh>

#include "groups.cuh"
#include "tensor_memory.cuh"

namespace tmaasync::kernels::gemm {

static_assert(A_IS_K_MAJOR, "rows of A are rows in memory");

struct GroupTiles {
    RowGroups groups;
    int n;
    int k_blocks;
    i32* broken_group;

    __device__ auto schedule() const {
        return GroupedScheduler<kM, kN, CTAS, GROUP_M, false, true>(groups, n);
    }
    __device__ KRange range(const GroupTile&) const { return KRange(k_blocks); }
    __device__ void help(int helper) const { report_groups(groups, broken_group, helper); }
};

// A tile in the arrays: its first row of A, and its matrix of B.
__device__ __forceinline__ OutputTile in_arrays(const GroupTile& tile) {
    return {tile.rows.start + tile.m, tile.n, tile.group};
}

}  // namespace tmaasync::kernels::gemm
