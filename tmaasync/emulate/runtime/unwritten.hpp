// Shared memory that nothing has written, where wgmma or TMA reads it.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "accesses.hpp"
#include "mma_operands.hpp"

namespace tmaasync_emulate {

// --- wgmma ---------------------------------------------------------------------------------------

// Counts the units of an operand that hold poison, for each row, or eight rows if it is transposed.
class UnwrittenRows {
public:
    void add(uint32_t row, uint32_t offset) {
        if (units_[row]++ == 0) ++rows_;
        if (first_ == kNothing) first_ = offset;
    }

    // Rows that are unwritten as a whole may be ones that no thread uses the results of; a row that
    // is half written is in use, and so is one row at least.
    bool is_defect(uint32_t rows, uint32_t units_of_row) const {
        if (rows_ == 0 || rows_ == rows) return rows_ != 0;
        return std::any_of(units_.begin(), units_.end(), [&](uint32_t units) {
            return units != 0 && units != units_of_row;
        });
    }

    uint32_t first() const { return first_; }

private:
    std::array<uint32_t, kMaxMmaColumns> units_{};
    uint32_t rows_ = 0;
    uint32_t first_ = kNothing;
};

// An operand of `rows` rows: where it lies, and whether it was written.
inline void check_operand(
    const Fiber& issuer, const IssuedMma& mma, const Matrix& matrix, uint32_t rows, const char* name
) {
    const auto& poison = poisoned_window();
    Cluster& cluster = *issuer.cluster;
    const uint8_t* window = issuer.cta->window;
    UnwrittenRows unwritten;
    uint32_t furthest = 0;
    matrix.for_each_unit(0, rows, [&](uint32_t row, uint32_t, uint32_t offset) {
        furthest = std::max(furthest, offset);
        if (offset > kWindowBytes - kMmaUnitBytes || !is_poison(poison, window, offset)) return;
        unwritten.add(row, offset);
    });
    std::string reason = beyond_shared(issuer, furthest, kMmaUnitBytes, "an operand of wgmma");
    if (reason.empty() && matrix.is_off_pattern()) {
        const uint32_t pattern = 128u << matrix.swizzle;
        reason = std::string("wgmma reads ") + name + " at " + shared_at(matrix.start) +
                 ", and its swizzle begins at multiples of " + std::to_string(pattern) +
                 " bytes. Declare the tile alignas(" + std::to_string(pattern) +
                 "), and start operands at whole groups of 8 rows";
    }
    const uint32_t units_of_row = matrix.transposed ? kMmaDepthBytes / 2 : 2;
    if (reason.empty() && unwritten.is_defect(matrix.transposed ? rows / 8 : rows, units_of_row)) {
        const uint32_t first = unwritten.first();
        reason = std::string("wgmma reads ") + name + " at " + shared_at(first) +
                 ", which nothing has written. " +
                 remedy_for_unwritten(
                     issuer, *issuer.cta, first, kMmaUnitBytes,
                     "Load or initialise it, and let all threads wait for that before wgmma"
                 );
    }
    if (!reason.empty()) cluster.report_fault(issuer, std::move(reason), mma.site);
}

// --- TMA -----------------------------------------------------------------------------------------

inline Fault fault_of_unwritten(
    const Fiber& issuer, uint32_t offset, const char* what, uintptr_t site
) {
    Fault fault(
        std::string(what) + " takes " + std::to_string(kPoisonUnit) + " bytes at " +
        shared_at(offset) + ", which nothing has written. " +
        remedy_for_unwritten(
            issuer, *issuer.cta, offset, kPoisonUnit,
            "Write the whole tile, by threads that each call fence_async_view_proxy() after it and "
            "then meet the one that issues the copy: __syncthreads()"
        )
    );
    fault.site = site;
    return fault;
}

}  // namespace tmaasync_emulate
