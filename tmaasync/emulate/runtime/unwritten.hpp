// Shared memory that nothing has written, where wgmma or TMA reads it.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "machine.hpp"
#include "mma_operands.hpp"

namespace tmaasync_emulate {

// --- words ---------------------------------------------------------------------------------------

inline bool overlaps(uint32_t a, uint32_t a_bytes, uint32_t b, uint32_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

// The remedy: a copy to these bytes may be in flight, else they are to be written.
inline std::string remedy_for_unwritten(
    const Fiber& reader, const Cta& cta, uint32_t offset, uint32_t bytes
) {
    Cluster& cluster = *reader.cluster;
    const auto at = [&](uintptr_t site) {
        return "{line " + std::to_string(cluster.launch().address_in_library(site)) + "}";
    };
    for (const Flight& flight : cluster.flights()) {
        if (flight.kind == Flight::Kind::kArrival || flight.target != &cta) continue;
        if (!overlaps(flight.shared, flight.bytes, offset, bytes)) continue;
        return "A TMA load to these bytes is in flight, issued by thread " +
               std::to_string(flight.issuer->index) + at(flight.site) + ": wait for its phase of " +
               barrier_at(flight.barrier) + " first";
    }
    for (const Fiber& fiber : cluster.fibers()) {
        if (fiber.cta != &cta) continue;
        for (const ThreadCopy& copy : fiber.copies) {
            if (!overlaps(copy.shared, copy.bytes, offset, bytes)) continue;
            return "A cp.async to these bytes is in flight, issued by thread " +
                   std::to_string(fiber.index) + at(copy.site) +
                   ": that thread waits with cp_async_wait<N>(), and then all threads meet";
        }
    }
    return "Load or initialise it, and let the readers wait for that";
}

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
                 remedy_for_unwritten(issuer, *issuer.cta, first, kMmaUnitBytes);
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
        remedy_for_unwritten(issuer, *issuer.cta, offset, kPoisonUnit)
    );
    fault.site = site;
    return fault;
}

}  // namespace tmaasync_emulate
