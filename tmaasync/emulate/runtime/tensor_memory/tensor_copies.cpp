#include "tensor_memory/tensor_copies.hpp"

#include "tensor_cores/tcgen05_matrix.hpp"
#include "tensor_memory/pairs.hpp"
#include "tensor_memory/places.hpp"
#include "wgmma/operands.hpp"

namespace tmaasync_emulate {

static constexpr const char* kCopy = "tcgen05.cp";
static constexpr const char* kShift = "tcgen05.shift";
static constexpr uint32_t kShiftColumns = 8;  // rows of 32 bytes

static uint32_t rows_of(Tcgen05CopyShape shape) {
    constexpr uint32_t kRows[] = {128, 128, 64, 32, 4};
    return kRows[static_cast<uint32_t>(shape)];
}

static uint32_t columns_of(Tcgen05CopyShape shape) {
    const bool is_wide = shape == Tcgen05CopyShape::k128x256b || shape == Tcgen05CopyShape::k4x256b;
    return is_wide ? 8 : 4;
}

// Calls act(lane) for the lanes that get a row.
template <class Act>
void for_each_lane(const Tcgen05Copy& copy, uint32_t row, Act act) {
    switch (copy.multicast) {
        case Tcgen05Multicast::kNone:
            // One row in each group of 32 lanes; that it is the first is an assumption.
            return act(copy.shape == Tcgen05CopyShape::k4x256b ? row * 32 : row);
        case Tcgen05Multicast::kX2_02_13:
            act(row);
            return act(row + 64);
        case Tcgen05Multicast::kX2_01_23:
            act(row + row / 32 * 32);
            return act(row + row / 32 * 32 + 32);
        case Tcgen05Multicast::kX4:
            for (uint32_t group = 0; group < 4; ++group) act(group * 32 + row);
    }
}

// The source: rows of 16 or 32 bytes. Groups of 16 elements of 4 or 6 bits fill 16 bytes.
static Matrix matrix_of(const Tcgen05Copy& copy) {
    const Tcgen05MatrixDescriptor descriptor{copy.matrix};
    return {copy.matrix, descriptor.swizzle(), false, TileDepth{columns_of(copy.shape) * 4, 1}};
}

void check_tensor_copy(Fiber& fiber, const Tcgen05Copy& copy) {
    Reason reason =
        Tcgen05MatrixDescriptor{copy.matrix}.broken_rule("of tcgen05.cp", OperandType::kU8, false);
    const uint32_t lane = tensor_lane(copy.address);
    for (uint32_t index = 0; index < copy.group && !reason; ++index) {
        const Cta& cta = index ? peer_of(*fiber.cluster, *fiber.cta) : *fiber.cta;
        const uint32_t column = tensor_column(copy.address);
        reason = reason_of_range(cta, kCopy, {0, kTensorLanes, column, columns_of(copy.shape)});
    }
    if (!reason && lane)
        reason = {FaultKind::kTensorOperandLane, kCopy, lane, FaultKind::kTensorFirstLane};
    if (reason) fail(fiber, reason);
}

// The bits of one element of 16, which begin with the low ones of the first byte.
static uint32_t element_of(const uint8_t* source, uint32_t index, uint32_t bits) {
    const uint32_t bit = index * bits;
    const uint32_t pair = source[bit / 8] | uint32_t{source[bit / 8 + 1]} << 8;
    return pair >> bit % 8 & ((1u << bits) - 1);
}

// Elements of 4 bits take bits 2 to 5 of a byte, as in mma.sync; elements of 6 bits the low ones.
static void decompress(const uint8_t* source, Tcgen05Source format, uint8_t* bytes) {
    const bool is_four = format == Tcgen05Source::kB4x16P64;
    for (uint32_t i = 0; i < kMmaUnitBytes; ++i) {
        const uint32_t element = element_of(source, i, is_four ? 4 : 6);
        bytes[i] = static_cast<uint8_t>(is_four ? element << 2 : element);
    }
}

static void search(Cluster& cluster, const Cta& cta, const TensorOperation& operation) {
    const Tcgen05Copy& copy = operation.copy;
    const IssuedTensor& tensor = operation.tensor;
    const Actor actor = tensor.issued.as(tensor.agent, tensor.epoch, Operation::kTcgen05Copy);
    LastCell last;
    uint32_t groups = 0;
    matrix_of(copy).for_each_unit(
        0, rows_of(copy.shape), [&](uint32_t row, uint32_t, uint32_t offset) {
            cluster.detector->shared(actor, cta.rank, offset, kMmaUnitBytes, false, last);
            for_each_lane(copy, row, [&](uint32_t lane) { groups |= tensor_groups(lane, 1); });
        }
    );
    cluster.tensor_races->touch(
        tensor, {cta.rank, groups, tensor_column(copy.address), columns_of(copy.shape)}, true
    );
}

static Reason copy_in(Cluster& cluster, Cta& cta, const TensorOperation& operation) {
    const Tcgen05Copy& copy = operation.copy;
    const Matrix matrix = matrix_of(copy);
    const Reason reason = reason_of_operand(
        *operation.issuer, cta, matrix, rows_of(copy.shape), {kCopy, "its source"}
    );
    if (reason && !is_pardoned(*operation.issuer, reason.kind(), operation.site)) return reason;
    if (cluster.detector) search(cluster, cta, operation);
    TensorMemory& memory = *cta.tensor.memory;
    matrix.for_each_unit(0, rows_of(copy.shape), [&](uint32_t row, uint32_t k, uint32_t offset) {
        uint32_t words[kMmaUnitBytes / 4];
        const uint8_t* const source = cta.window + offset;
        if (copy.source == Tcgen05Source::kWords) {
            std::memcpy(words, source, sizeof(words));
        } else {
            decompress(source, copy.source, reinterpret_cast<uint8_t*>(words));
        }
        const uint32_t column = tensor_column(copy.address) + k / 4;
        for_each_lane(copy, row, [&](uint32_t lane) {
            for (uint32_t i = 0; i < 4; ++i) memory.write(lane, column + i, words[i]);
        });
    });
    return {};
}

Reason execute_tensor_copy(Cluster& cluster, Cta& cta, const TensorOperation& operation) {
    Reason reason;
    for (uint32_t index = 0; index < operation.group && !reason; ++index) {
        reason = copy_in(cluster, cluster.ctas[cta.rank + index], operation);
    }
    return reason;
}

void check_tensor_shift(Fiber& fiber, uint32_t address) {
    const TensorRange range{tensor_lane(address), 1, tensor_column(address), kShiftColumns};
    Reason reason = reason_of_range(*fiber.cta, kShift, range);
    if (!reason && range.lane % 32) {
        reason = {
            FaultKind::kTensorLaneAlignment, kShift, range.lane, FaultKind::kTensorWholeLanes
        };
    }
    if (reason) fail(fiber, reason);
}

// Rows move down by one: lane i gets the row of lane i + 1, and the last lane keeps its own.
static void shift_in(Cluster& cluster, Cta& cta, const TensorOperation& operation) {
    const uint32_t first = tensor_lane(operation.address);
    const uint32_t column = tensor_column(operation.address);
    if (cluster.tensor_races) {
        cluster.tensor_races->touch(
            operation.tensor,
            {cta.rank, tensor_groups(first, kTensorLanes - first), column, kShiftColumns}, true
        );
    }
    TensorMemory& memory = *cta.tensor.memory;
    for (uint32_t lane = first; lane + 1 < kTensorLanes; ++lane) {
        for (uint32_t i = 0; i < kShiftColumns; ++i) {
            if (!memory.is_written(lane + 1, column + i)) continue;
            memory.write(lane, column + i, memory.read(lane + 1, column + i));
        }
    }
}

Reason execute_tensor_shift(Cluster& cluster, Cta& cta, const TensorOperation& operation) {
    for (uint32_t index = 0; index < operation.group; ++index) {
        shift_in(cluster, cluster.ctas[cta.rank + index], operation);
    }
    return {};
}

}  // namespace tmaasync_emulate
