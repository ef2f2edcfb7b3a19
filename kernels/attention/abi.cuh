#pragma once

// The structs that the host and the attention kernels share, each declared only here. The host
// writes or reads their bytes: change size or order on both sides.
#include <tmaasync/attention/paged.cuh>
#include <tmaasync/tmaasync.cuh>

namespace tmaasync::kernels::attention {

// --- attention.cu, attention_combine.cu, attention_work.cu ---------------------------------------

// The problem, a parameter of all three.
struct Problem {
    i32 batch;
    i32 heads;
    i32 heads_per_kv_head;  // GQA: query heads that share a KV head
    i32 queries;            // positions of an entry; for packed sequences, rows of the array
    i32 keys;               // the same for keys
    i32 left;               // window: keys before a position's own key
    i32 right;              // window: keys after a position's own key
    i32 is_bottom_right;    // the last position is aligned with the last key, else first with first
    float scale;            // factor of a score before softcap's tanh
    float scale_log2;       // factor of a score in the exponent of 2
    i32 page_step;          // rows of keys from one page to the next
    i32 pages;              // number of pages in the arrays of keys and values
};
static_assert(sizeof(Problem) == 48);

// --- padded arrays: the schedule of the host -----------------------------------------------------

// Split-KV: the blocks of keys in one split of a tile, and the workspace slot of its partial
// output.
struct KeySplit {
    i32 first = 0;
    i32 end = 0x7fffffff;
    i32 slot = -1;  // negative: the tile is not split
};
static_assert(sizeof(KeySplit) == 12);

// The work of a cluster in one wave, with split-KV. A table of [waves, clusters].
struct alignas(16) ScheduledSpan {
    i32 span;  // negative: none left
    KeySplit keys;
};
static_assert(sizeof(ScheduledSpan) == 16);

// A span whose keys are split, for attention_combine.cu: its splits have consecutive slots.
struct alignas(16) SplitSpan {
    i32 span;
    i32 first_slot;
    i32 splits;
};
static_assert(sizeof(SplitSpan) == 16);

// --- packed sequences: the schedule of attention_work.cu -----------------------------------------

// The limits against which the sequences of a batch are checked.
struct BatchLimits {
    i32 max_queries;
    i32 max_keys;
    i32 table_step;  // page table entries from one sequence to the next
};
static_assert(sizeof(BatchLimits) == 12);

// One entry of a batch: a slice of padded arrays, or a sequence of packed ones.
template <typename Keys>
struct EntryWith {
    i32 index;
    RaggedSequence queries;
    Keys keys;
};

// A tile of queries, for every head.
template <typename Keys>
struct alignas(16) WorkItem {
    EntryWith<Keys> entry;
    i32 position;
    i32 section;       // the first item of its section
    i32 section_size;  // items
};
static_assert(sizeof(WorkItem<RaggedSequence>) == 32);
static_assert(sizeof(WorkItem<PagedSequence<1>>) == 48);

// All tiles of a batch, grouped in sections: sequences whose keys, for `heads_at_once` tiles of
// heads, fit in L2. In a section tiles with the most keys come first: the
// longest-processing-time-first (LPT) schedule.
template <typename Keys>
struct WorkListWith {
    i32 count;
    i32 heads_at_once;  // divides the tiles of heads
    u32 tile_counter;   // tiles that CTAs have requested; 0 again after the last
    WorkItem<Keys> items[1];
};
static_assert(sizeof(WorkListWith<RaggedSequence>) == 16 + 32);
static_assert(sizeof(WorkListWith<PagedSequence<1>>) == 16 + 48);

// --- split-KV: the workspace ---------------------------------------------------------------------

// The partial output of one consumer over one split of the keys. Rows that are not queries are not
// written.
template <int kRows, int kHeadDim>
struct alignas(16) PartialOutput {
    float accumulators[kRows][kHeadDim];  // with FP8 operands normalised
    float row_max[kRows];  // scaled score subtracted before the exponential, as an exponent of 2;
                           // minus infinity without keys
    float row_sum[kRows];  // sum of the probabilities
};
static_assert(sizeof(PartialOutput<64, 128>) == 64 * (128 + 2) * 4);

// A workspace slot: the partial output of a tile.
template <int kConsumers, int kRows, int kHeadDim>
struct PartialTile {
    PartialOutput<kRows, kHeadDim> consumers[kConsumers];
};
static_assert(sizeof(PartialTile<2, 64, 128>) == 2 * 64 * (128 + 2) * 4);

// --- FP8 -----------------------------------------------------------------------------------------

// The scale of an operand: a number times an array element per KV head. With steps of 0 all heads
// share one element.
struct Scale {
    i64 entry_step;  // elements
    i64 head_step;
    float number;

    __device__ float at(const float* elements, i32 entry, i32 head) const {
        return elements == nullptr ? number
                                   : number * elements[entry * entry_step + head * head_step];
    }
};

struct Scales {
    Scale q, k, v;
};
static_assert(sizeof(Scales) == 72);

// The sizes that attention_values.cu needs.
struct ValueSizes {
    i32 keys;
    i32 kv_heads;
};
static_assert(sizeof(ValueSizes) == 8);

}  // namespace tmaasync::kernels::attention
