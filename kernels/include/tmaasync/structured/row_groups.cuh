#pragma once

#include <tmaasync/check.cuh>
#include <tmaasync/ragged.cuh>

namespace tmaasync {

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

}  // namespace tmaasync
