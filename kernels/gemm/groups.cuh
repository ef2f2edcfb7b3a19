#pragma once

#include <tmaasync/structured/row_groups.cuh>
#include <tmaasync/warp.cuh>

namespace tmaasync::kernels::gemm {

// An iterator over the rows of the groups.
class GroupRows {
public:
    __device__ explicit GroupRows(const RowGroups& groups)
        : groups_(groups), rows_(groups.after(0, 0)) {}

    // The rows of a group; groups must not decrease from call to call.
    __device__ RaggedSequence of(int group) {
        while (group_ < group) rows_ = groups_.after(rows_.end(), ++group_);
        return rows_;
    }

private:
    RowGroups groups_;
    RaggedSequence rows_;
    int group_ = 0;
};

// Write the number, counted from 1, of a group that ends before it starts or beyond the arrays, if
// there is one. Called by all lanes of each helper warp; the first one of the grid reports.
__device__ __forceinline__ void report_groups(
    const RowGroups& groups, i32* broken_group, int helper
) {
    if (helper != 0 || blockIdx.x != 0) return;
    wait_for_previous_grids();
    i32 broken = 0;
    for (i32 group = lane_index(); group < groups.count; group += 32) {
        const i32 start = group == 0 ? 0 : groups.ends[group - 1], end = groups.ends[group];
        if (end < start || end > groups.total_rows) broken = group + 1;
    }
    broken = __reduce_max_sync(0xffffffff, broken);
    if (broken != 0 && lane_index() == 0) *broken_group = broken;
}

}  // namespace tmaasync::kernels::gemm
