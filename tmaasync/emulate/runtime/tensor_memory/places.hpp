// Checks of lanes and columns in tensor memory.
#pragma once

#include <cstdint>

#include "schedule/faults.hpp"

namespace tmaasync_emulate {

// Lanes and columns that an instruction accesses.
struct TensorRange {
    uint32_t lane;
    uint32_t lanes;
    uint32_t column;
    uint32_t columns;
};

// The fault of an access outside tensor memory, or to columns that are not allocated.
Reason reason_of_range(const Cta& cta, const char* instruction, const TensorRange& range);

// Where an instruction reads what nothing has written: rows of `rows` lanes, and their number of
// unwritten columns. Rows of which nothing is written may be unused, unless all are.
class UnwrittenWords {
public:
    explicit UnwrittenWords(const TensorMemory& memory) : memory_(memory) {}

    void add(uint32_t lane, uint32_t column) {
        Lane& one = lanes_[lane];
        ++one.words;
        ++words_;
        if (memory_.is_written(lane, column)) return;
        if (one.unwritten++ == 0) one.first = column;
        ++unwritten_;
    }
    void add(uint32_t lane, uint32_t column, uint32_t columns) {
        for (uint32_t i = 0; i < columns; ++i) add(lane, column + i);
    }

    // The fault, if a partly written row is read, or nothing but unwritten words. If `all`, any
    // unwritten word is one.
    Reason reason(const char* instruction, const char* operand, bool all) const;

private:
    struct Lane {
        uint32_t words = 0;
        uint32_t unwritten = 0;
        uint32_t first = 0;
    };
    const TensorMemory& memory_;
    std::array<Lane, kTensorLanes> lanes_{};
    uint32_t words_ = 0;
    uint32_t unwritten_ = 0;
};

}  // namespace tmaasync_emulate
