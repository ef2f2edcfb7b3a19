// Reads of unwritten shared memory by wgmma or TMA.
#pragma once

#include <algorithm>
#include <array>

#include "accesses.hpp"
#include "mma_operands.hpp"

namespace tmaasync_emulate {

// --- wgmma ---------------------------------------------------------------------------------------

// Counts the poisoned units of an operand, per row, or per eight rows if it is transposed.
class UnwrittenRows {
public:
    void add(uint32_t row, uint32_t offset) {
        if (units_[row]++ == 0) {
            ++rows_;
            offsets_[row] = offset;
        }
        if (first_ == kNothing) first_ = offset;
    }

    // True if something has written another unit of a poisoned row, which lies in one span of a
    // swizzle.
    bool is_half_written(const uint8_t* window, uint32_t span) const {
        const auto& poison = poisoned_window();
        for (std::size_t row = 0; row < units_.size(); ++row) {
            if (units_[row] == 0) continue;
            const uint32_t start = offsets_[row] & ~(span - 1);
            for (uint32_t offset = start; offset < start + span; offset += kMmaUnitBytes) {
                if (!is_poison(poison, window, offset)) return true;
            }
        }
        return false;
    }

    // The results of wholly unwritten rows may be unused: decode kernels fill 16 rows of A of 64,
    // and FlashAttention-2 leaves the rows of K beyond the last key unwritten, since it masks their
    // scores. A partly written row is in use, and at least one row is. No kernel in kernels/ needs
    // this.
    bool is_defect(uint32_t rows, uint32_t units_of_row) const {
        if (rows_ == 0 || rows_ == rows) return rows_ != 0;
        return std::any_of(units_.begin(), units_.end(), [&](uint32_t units) {
            return units != 0 && units != units_of_row;
        });
    }

    uint32_t first() const { return first_; }

private:
    std::array<uint32_t, kMaxMmaColumns> units_{};
    // Offset of the first poisoned unit of each row.
    std::array<uint32_t, kMaxMmaColumns> offsets_{};
    uint32_t rows_ = 0;
    uint32_t first_ = kNothing;
};

inline Words swizzle_of_bytes(uint32_t swizzle) {
    return swizzle ? "a swizzle of " + decimal(16u << swizzle) + " bytes" : Words("no swizzle");
}

inline Words reason_of_other_swizzle(
    const Fiber& issuer, const Matrix& matrix, const char* name, const Access& load
) {
    const Fiber& loader = issuer.cluster->fibers()[load.thread];
    return Words("wgmma reads ") + name + " at " + shared_at(matrix.start) + " with " +
           swizzle_of_bytes(matrix.swizzle) + ", and the TMA load of " +
           name_of_issuer(loader, load.site, issuer) + " wrote it with " +
           swizzle_of_bytes(load.pattern - 1) +
           ". Give the tensor map and the descriptor the same swizzle";
}

// Checks where an operand of `rows` rows lies, and whether it was written.
inline void check_operand(
    const Fiber& issuer, const IssuedMma& mma, const Matrix& matrix, uint32_t rows, const char* name
) {
    const auto& poison = poisoned_window();
    Cluster& cluster = *issuer.cluster;
    const uint8_t* window = issuer.cta->window;
    Detector* detector = cluster.detector();
    UnwrittenRows unwritten;
    Unwritten part;
    uint32_t furthest = 0;
    const Access* other_load = nullptr;
    matrix.for_each_unit(0, rows, [&](uint32_t row, uint32_t, uint32_t offset) {
        furthest = std::max(furthest, offset);
        if (offset > kWindowBytes - kMmaUnitBytes) return;
        // The results of further rows may be unused.
        if (row < 8 && detector && !other_load) {
            const Access* const load = detector->load_at(issuer.cta->rank, offset);
            if (load && matrix.differs(load->pattern - 1u, offset)) other_load = load;
        }
        if (is_poison(poison, window, offset)) return unwritten.add(row, offset);
        if (!detector || part.bytes) return;
        part = unwritten_part(*detector, issuer.cta->rank, offset, kMmaUnitBytes);
    });
    Words reason = beyond_shared(issuer, furthest, kMmaUnitBytes, "an operand of wgmma");
    if (reason.is_empty() && matrix.is_off_pattern()) {
        const uint32_t pattern = 128u << matrix.swizzle;
        reason = Words("wgmma reads ") + name + " at " + shared_at(matrix.start) +
                 ", and its swizzle begins at multiples of " + decimal(pattern) +
                 " bytes. Declare the tile alignas(" + decimal(pattern) +
                 "), and start operands at whole groups of 8 rows";
    }
    if (reason.is_empty() && other_load) {
        reason = reason_of_other_swizzle(issuer, matrix, name, *other_load);
    }
    const uint32_t units_of_row = matrix.transposed ? kMmaDepthBytes / 2 : 2;
    const bool is_defect = unwritten.is_defect(matrix.transposed ? rows / 8 : rows, units_of_row) ||
                           (!matrix.transposed && matrix.swizzle &&
                            unwritten.is_half_written(window, kMmaUnitBytes << matrix.swizzle));
    if (reason.is_empty() && (is_defect || part.bytes)) {
        const uint32_t first = is_defect ? unwritten.first() : part.offset;
        reason = Words("wgmma reads ") + name + " at " + shared_at(first) +
                 ", which nothing has written. " +
                 remedy_for_unwritten(
                     issuer, *issuer.cta, first, kMmaUnitBytes,
                     "Load or initialise it, and let all threads wait for that before wgmma"
                 );
    }
    if (!reason.is_empty()) cluster.report_fault(issuer, reason, mma.site);
}

// --- TMA -----------------------------------------------------------------------------------------

inline Fault fault_of_unwritten(
    const Fiber& issuer, const UnwrittenSource& source, const Words& what, uintptr_t site
) {
    Fault fault(
        what + " takes " + decimal(source.bytes) + " bytes at " + shared_at(source.offset) +
        ", which nothing has written. " +
        remedy_for_unwritten(
            issuer, *issuer.cta, source.offset, source.bytes,
            "Write the whole tile, by threads that each call fence_async_view_proxy() after it and "
            "then meet the one that issues the copy: __syncthreads()"
        )
    );
    fault.site = site;
    return fault;
}

}  // namespace tmaasync_emulate
