#pragma once

// The sums of a tile's queries over a part of its keys, on their way from attention.cu to
// attention_combine.cu.
#include "epilogue.cuh"

namespace tmaasync {

// What a group leaves of a part of the keys, row by row. Rows that are no queries are not written.
struct alignas(16) GroupPart {
    float sums[kGroupRows][HEAD_DIM];
    float most[kGroupRows];    // of each row the score that weights are relative to, in powers of 2
    float totals[kGroupRows];  // and the sum of its weights

    // The sums of the thread's rows.
    __device__ __forceinline__ void write(const Sums& from, const Tile& tile, int group) {
        struct alignas(8) Pair {
            float values[2];
        };
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row_of_thread(0) + 8 * half;
            if (!is_query(tile, row_of_thread(group) + 8 * half)) continue;
#pragma unroll
            for (int i = 2 * half; i < HEAD_DIM / 2; i += 4) {
                auto& sum = sums[row][accumulator_column(thread_in_warpgroup(), i)];
                reinterpret_cast<Pair&>(sum) = {from[i], from[i + 1]};
            }
        }
    }
};

struct Part {
    GroupPart groups[CONSUMERS];
};

// Where parts start that lie behind the factors of all heads of keys.
__device__ __forceinline__ Part* parts_behind(const Factors* factors, const Problem& problem) {
    const i32 count = problem.batch * (problem.heads / problem.heads_per_kv_head);
    return reinterpret_cast<Part*>(const_cast<Factors*>(factors + count + count % 2));
}

// Of a row that saw nothing: less than all scores, and a number that differences can be taken of.
constexpr float kNothing = -1e30f;

}  // namespace tmaasync
