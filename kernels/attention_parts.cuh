#pragma once

// The sums of a tile's queries over a part of its keys, on their way from attention.cu to
// attention_merge.cu.
#include "attention_output.cuh"

namespace tmaasync {

// Four of a thread's sums.
struct alignas(16) Quad {
    float values[4];
};

// What a group leaves of a part. Every thread of attention_merge.cu reads what the thread of its
// number wrote, so a warp's accesses are of one piece.
struct GroupPart {
    Quad sums[HEAD_DIM / 8][kGroupThreads];
    float most[kGroupRows];    // of each row the score that weights are relative to, in powers of 2
    float totals[kGroupRows];  // and the sum of its weights

    __device__ __forceinline__ void write(const Sums& from) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; ++i) {
            const float* s = from + 4 * i;
            sums[i][thread_in_warpgroup()] = {s[0], s[1], s[2], s[3]};
        }
    }

    // Adds them, times the factors of the thread's two rows.
    __device__ __forceinline__ void add_to(Sums& to, const float (&factors)[2]) const {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; ++i) {
            const Quad more = sums[i][thread_in_warpgroup()];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                to[4 * i + j] += factors[j / 2] * more.values[j];
            }
        }
    }
};

// Whether any of the thread's two rows is one of the tile's queries: of others nothing is written.
__device__ __forceinline__ bool has_queries(const Tile& tile, int group) {
    return tile.position + row_of_thread(group) / HEADS_PER_TILE < tile.entry.queries.length;
}

struct Part {
    GroupPart groups[CONSUMERS];
};

// Of a row that saw nothing: less than all scores, and a number that differences can be taken of.
constexpr float kNothing = -1e30f;

}  // namespace tmaasync
