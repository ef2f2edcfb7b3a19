// The tensor memory of a CTA: 128 lanes of 512 columns of 32 bits, and its allocations.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace tmaasync_emulate {

constexpr uint32_t kTensorLanes = 128;
constexpr uint32_t kTensorColumns = 512;
// Columns are allocated in multiples of this number.
constexpr uint32_t kTensorGranule = 32;
constexpr uint32_t kTensorLaneShift = 16;

inline uint32_t tensor_lane(uint32_t address) {
    return address >> kTensorLaneShift;
}
inline uint32_t tensor_column(uint32_t address) {
    return address & 0xffff;
}

// The words of tensor memory, and whether anything has written them.
class TensorMemory {
public:
    uint32_t* row(uint32_t lane) { return &words_[lane * kTensorColumns]; }
    const uint32_t* row(uint32_t lane) const { return &words_[lane * kTensorColumns]; }

    uint32_t read(uint32_t lane, uint32_t column) const { return row(lane)[column]; }
    void write(uint32_t lane, uint32_t column, uint32_t word) {
        row(lane)[column] = word;
        mark(lane, column, 1);
    }

    // Marks columns of a lane as written.
    void mark(uint32_t lane, uint32_t column, uint32_t columns) {
        auto* const first = &written_[lane * kTensorColumns + column];
        std::fill(first, first + columns, true);
    }
    bool is_written(uint32_t lane, uint32_t column) const {
        return written_[lane * kTensorColumns + column];
    }
    // The number of columns from `column` on that something has written, up to the first other.
    uint32_t written_from(uint32_t lane, uint32_t column, uint32_t columns) const {
        const auto* const first = &written_[lane * kTensorColumns + column];
        return static_cast<uint32_t>(std::find(first, first + columns, false) - first);
    }
    // Columns that are allocated hold nothing.
    void forget(uint32_t column, uint32_t columns) {
        for (uint32_t lane = 0; lane < kTensorLanes; ++lane) {
            auto* const first = &written_[lane * kTensorColumns + column];
            std::fill(first, first + columns, false);
            std::fill_n(row(lane) + column, columns, kNoWord);
        }
    }

private:
    static constexpr uint32_t kNoWord = 0xffffffff;  // NaN

    std::array<uint32_t, kTensorLanes * kTensorColumns> words_{};
    std::array<bool, kTensorLanes * kTensorColumns> written_{};
};

// Columns that one tcgen05.alloc returned.
struct TensorAllocation {
    uint32_t start;
    uint32_t columns;
    uint32_t warp;
    uintptr_t site;

    bool holds(uint32_t column) const { return column - start < columns; }
};

// The allocated columns of a CTA. As on the chip, a block lies at a multiple of its size, and the
// first of an idle SM at column 0.
class TensorColumns {
public:
    const std::vector<TensorAllocation>& all() const { return all_; }

    const TensorAllocation* of(uint32_t column) const {
        const auto found = std::find_if(all_.begin(), all_.end(), [&](const auto& one) {
            return one.holds(column);
        });
        return found == all_.end() ? nullptr : &*found;
    }

    // The first column of the range that is not allocated; kTensorColumns if all are.
    uint32_t first_free(uint32_t column, uint32_t columns) const {
        const uint32_t end = column + columns;
        while (column < end) {
            const TensorAllocation* const one = of(column);
            if (!one) return column;
            column = one->start + one->columns;
        }
        return kTensorColumns;
    }

    uint32_t free_columns() const {
        uint32_t free = kTensorColumns;
        for (const TensorAllocation& one : all_) free -= one.columns;
        return free;
    }

    // The lowest free block of this size in this CTA and in `peer`, or kTensorColumns.
    uint32_t find(uint32_t columns, const TensorColumns& peer) const {
        for (uint32_t start = 0; start + columns <= kTensorColumns; start += columns) {
            if (is_free(start, columns) && peer.is_free(start, columns)) return start;
        }
        return kTensorColumns;
    }

    void add(const TensorAllocation& one) { all_.push_back(one); }
    void remove(uint32_t start) {
        std::erase_if(all_, [&](const TensorAllocation& one) { return one.start == start; });
    }

private:
    bool is_free(uint32_t start, uint32_t columns) const {
        return std::none_of(all_.begin(), all_.end(), [&](const TensorAllocation& one) {
            return one.start < start + columns && start < one.start + one.columns;
        });
    }

    std::vector<TensorAllocation> all_;
};

}  // namespace tmaasync_emulate
