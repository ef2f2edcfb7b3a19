#include "tensor_memory/places.hpp"

namespace tmaasync_emulate {

Reason reason_of_range(const Cta& cta, const char* instruction, const TensorRange& range) {
    const uint32_t last_lane = range.lane + range.lanes - 1;
    const uint32_t last_column = range.column + range.columns - 1;
    if (last_lane >= kTensorLanes || last_column >= kTensorColumns) {
        return {FaultKind::kTensorOutside,
                instruction,
                range.lane,
                last_lane,
                range.column,
                last_column};
    }
    const uint32_t column = cta.tensor.columns.first_free(range.column, range.columns);
    if (column == kTensorColumns) return {};
    const TensorAllocation* const before = column ? cta.tensor.columns.of(column - 1) : nullptr;
    Reason held;
    if (before) {
        held = {FaultKind::kTensorHeld, before->columns, before->start, before->warp};
    }
    return {FaultKind::kTensorUnallocated, instruction, range.column, last_column, column, held};
}

Reason UnwrittenWords::reason(const char* instruction, const char* operand, bool all) const {
    if (unwritten_ == 0) return {};
    const bool any = all || unwritten_ == words_;
    for (uint32_t lane = 0; lane < kTensorLanes; ++lane) {
        const Lane& one = lanes_[lane];
        if (one.unwritten == 0 || (!any && one.unwritten == one.words)) continue;
        return {FaultKind::kUnwrittenTensor, instruction, operand, lane, one.first};
    }
    return {};
}

}  // namespace tmaasync_emulate
