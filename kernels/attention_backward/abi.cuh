#pragma once

// The struct that the host and the kernels of the attention backward share. The host writes its
// bytes: a change of size or order is one of both sides.
#include <tmaasync/tmaasync.cuh>

namespace tmaasync {

// The problem, a parameter of all three kernels.
struct BackwardProblem {
    i32 batch;
    i32 heads;
    i32 kv_heads;
    i32 heads_per_kv_head;  // GQA: query heads that share a KV head
    i32 queries;            // positions of an entry; of packed sequences, rows of the array
    i32 keys;               // the same of keys
    i32 left;               // how many keys before its own a position sees
    i32 right;              // how many after its own
    i32 is_bottom_right;    // the last position is aligned with the last key, else first with first
    i32 query_tiles;        // of a head, in the workspace; of packed arrays, of all sequences
    i32 heads_at_once;      // KV heads whose tiles are scheduled together, so that they stay in L2
    float scale;            // of a score
    float scale_in_tanh;    // of a score before softcap's tanh
    float scale_log2;       // of a score, or of softcap's tanh, in the exponent of 2
};
static_assert(sizeof(BackwardProblem) == 56);

}  // namespace tmaasync
