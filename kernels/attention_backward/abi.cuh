#pragma once

// The struct that the host and the kernels of the attention backward share. The host writes its
// bytes: change size or order on both sides.
#include <tmaasync/tmaasync.cuh>

namespace tmaasync::kernels::attention_backward {

// The problem, a parameter of all three kernels.
struct BackwardProblem {
    i32 batch;
    i32 heads;
    i32 kv_heads;
    i32 heads_per_kv_head;  // GQA: query heads that share a KV head
    i32 queries;            // positions of an entry; for packed sequences, rows of the array
    i32 keys;               // the same for keys
    i32 lse_rows;           // elements of a head in the log-sum-exp; at least the queries
    i32 left;               // window: keys before a position's own key
    i32 right;              // window: keys after a position's own key
    i32 is_bottom_right;    // the last position is aligned with the last key, else first with first
    i32 query_tiles;        // tiles per head in the workspace; for packed arrays of all sequences
    i32 heads_at_once;      // KV heads whose tiles are scheduled together, so that they stay in L2
    float scale;            // factor of a score
    float scale_in_tanh;    // factor of a score before softcap's tanh
    float scale_log2;       // factor of a score, or of softcap's tanh, in the exponent of 2
};
static_assert(sizeof(BackwardProblem) == 60);

}  // namespace tmaasync::kernels::attention_backward
