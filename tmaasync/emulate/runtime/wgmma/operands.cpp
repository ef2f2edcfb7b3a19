#include "wgmma/operands.hpp"

#include "memory/addresses.hpp"
#include "memory/unwritten.hpp"
#include "state/names.hpp"

namespace tmaasync_emulate {

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

static Reason swizzle_of_bytes(uint32_t swizzle) {
    return swizzle ? Reason(FaultKind::kSwizzle, 16u << swizzle) : FaultKind::kNoSwizzle;
}

static Reason reason_of_other_swizzle(
    const Fiber& issuer, const Matrix& matrix, const OperandName& name, const Access& load
) {
    const Fiber& loader = issuer.cluster->fibers[load.thread];
    return {
        FaultKind::kOperandSwizzle,
        name.instruction,
        name.operand,
        shared_at(matrix.start),
        swizzle_of_bytes(matrix.swizzle),
        name_of({&loader, load.site}, issuer),
        swizzle_of_bytes(load.pattern - 1u)
    };
}

// The bytes of an operand, as the search finds them.
struct OperandBytes {
    UnwrittenRows unwritten;
    Unwritten part;  // unwritten bytes of a unit of which others are written
    uint32_t furthest = 0;
    const Access* other_load = nullptr;  // a load with another swizzle
};

static OperandBytes search(
    Detector* detector, const Cta& cta, const Matrix& matrix, uint32_t rows
) {
    const auto& poison = poisoned_window();
    const uint8_t* window = cta.window;
    OperandBytes found;
    matrix.for_each_unit(0, rows, [&](uint32_t row, uint32_t, uint32_t offset) {
        found.furthest = std::max(found.furthest, offset);
        if (offset > kWindowBytes - kMmaUnitBytes) return;
        // The results of further rows may be unused.
        if (row < 8 && detector && !found.other_load) {
            const Access* const load = detector->load_at(cta.rank, offset);
            if (load && matrix.differs(load->pattern - 1u, offset)) found.other_load = load;
        }
        if (is_poison(poison, window, offset)) return found.unwritten.add(row, offset);
        if (!detector || found.part.bytes) return;
        found.part = unwritten_part(*detector, cta.rank, offset, kMmaUnitBytes);
    });
    return found;
}

static Reason reason_of_pattern(const Matrix& matrix, const OperandName& name) {
    const uint32_t pattern = 8 * matrix.span();
    return {FaultKind::kOperandPattern, name.instruction, name.operand,
            shared_at(matrix.start),    pattern,          pattern};
}

// True if unwritten rows are in use.
static bool is_defect(
    const Cta& cta, const Matrix& matrix, uint32_t rows, const UnwrittenRows& unwritten
) {
    const uint32_t unit = matrix.transposed ? matrix.tile.element_bytes : kMmaUnitBytes;
    const uint32_t units_of_row = matrix.tile.depth_bytes / unit;
    if (unwritten.is_defect(rows / matrix.unit_rows(), units_of_row)) return true;
    const uint32_t span = matrix.span();
    return !matrix.transposed && matrix.swizzle && unwritten.is_half_written(cta.window, span);
}

Reason reason_of_operand(
    const Fiber& issuer,
    const Cta& cta,
    const Matrix& matrix,
    uint32_t rows,
    const OperandName& name
) {
    const OperandBytes found = search(issuer.cluster->detector.get(), cta, matrix, rows);
    Reason reason = beyond_shared(
        issuer, found.furthest, kMmaUnitBytes, Reason(FaultKind::kMmaOperand, name.instruction)
    );
    if (reason) return reason;
    if (matrix.is_off_pattern()) return reason_of_pattern(matrix, name);
    if (found.other_load) return reason_of_other_swizzle(issuer, matrix, name, *found.other_load);
    const bool has_rows = is_defect(cta, matrix, rows, found.unwritten);
    if (!has_rows && !found.part.bytes) return {};
    const uint32_t first = has_rows ? found.unwritten.first() : found.part.offset;
    return {
        FaultKind::kUnwrittenOperand, name.instruction, name.operand, shared_at(first),
        remedy_for_unwritten(issuer, cta, first, kMmaUnitBytes, FaultKind::kInitialiseOperand)
    };
}

}  // namespace tmaasync_emulate
