#include "tensor_memory/multiplication.hpp"

#include "tensor_cores/tcgen05_layouts.hpp"
#include "tensor_cores/tcgen05_matrix.hpp"
#include "tensor_cores/tcgen05_multiply.hpp"
#include "tensor_memory/pairs.hpp"
#include "tensor_memory/places.hpp"
#include "wgmma/operands.hpp"

namespace tmaasync_emulate {

static constexpr const char* kMma = "tcgen05.mma";
static constexpr const char *kScalesOfA = "scale-A", *kScalesOfB = "scale-B";
static constexpr const char* kMetadata = "sp-meta";
static constexpr const char* kSelectorsOfTf32 = "4, e";

static Tcgen05Form form_of(const Tcgen05Mma& mma) {
    Tcgen05Form form{mma.kind};
    form.ctas = static_cast<uint8_t>(mma.group);
    form.is_sparse = mma.is_sparse;
    form.is_ws = mma.is_ws;
    form.scale_vector = mma.scale_vector;
    form.a_in_tensor_memory = mma.a_in_tensor_memory;
    form.is_sm_103 = mma.is_sm_103;
    return form;
}

InstructionDescriptor descriptor_of(const Tcgen05Mma& mma) {
    return {mma.instruction, form_of(mma)};
}

uint64_t accumulators_of(const Tcgen05Mma& mma) {
    const InstructionDescriptor shape = descriptor_of(mma);
    const uint64_t form = uint64_t{mma.group} << 4 | static_cast<uint64_t>(mma.kind);
    return 1 | uint64_t{mma.d} << 1 | uint64_t{shape.m} << 33 | uint64_t{shape.n} << 43 |
           form << 54;
}

// One instruction with what follows from its descriptors.
struct Multiplication {
    const Tcgen05Mma& mma;
    InstructionDescriptor instruction;
    AccumulatorLayout layout;

    explicit Multiplication(const Tcgen05Mma& its_mma)
        : mma(its_mma),
          instruction(descriptor_of(its_mma)),
          layout(accumulator_layout(instruction.form, instruction.m)) {}

    uint32_t ctas() const { return mma.group; }
    uint32_t rows_of_a() const { return instruction.m / ctas(); }
    uint32_t rows_of_b() const { return instruction.n / ctas(); }
    Matrix matrix_a() const {
        return Tcgen05MatrixDescriptor{mma.a}.matrix(
            instruction.a, instruction.stored_k(), instruction.a_transposed,
            instruction.form.is_packed()
        );
    }
    Matrix matrix_b() const {
        return Tcgen05MatrixDescriptor{mma.b}.matrix(
            instruction.b, instruction.k, instruction.b_transposed, instruction.form.is_packed()
        );
    }

    // Calls act(part) for the parts of D in one CTA of the pair.
    template <class Act>
    void for_each_part(uint32_t cta, Act act) const {
        for_each_accumulator_part(
            layout, instruction.m, instruction.n, [&](const AccumulatorPart& part) {
                if (part.cta == cta) act(part);
            }
        );
    }
    bool has_half_lanes() const {
        return layout == AccumulatorLayout::kC || layout == AccumulatorLayout::kF;
    }
    bool writes(uint32_t cta, uint32_t lane) const {
        const uint32_t bit = cta * kTensorLanes + lane;
        return !(mma.disabled_lanes[bit / 32] >> bit % 32 & 1);
    }
};

// --- the issue -----------------------------------------------------------------------------------

static Reason reason_of_lane(const Multiplication& one, uint32_t address, const char* operand) {
    const uint32_t lane = tensor_lane(address);
    if (lane == 0 || (lane == 16 && one.has_half_lanes())) return {};
    return {
        FaultKind::kTensorOperandLane, operand, lane,
        one.has_half_lanes() ? FaultKind::kTensorFirstOrHalf : FaultKind::kTensorFirstLane
    };
}

// The top two bits of a scale factor's address may hold its id, which the descriptor has (CUTLASS).
static constexpr uint32_t kScaleAddress = 0x3fffffff;

static bool instruction_has_scales(const Multiplication& one) {
    return one.instruction.form.is_block_scaled();
}

static uint32_t scale_columns(const Multiplication& one, uint32_t rows) {
    const uint32_t last = one.instruction.scales() - 1;
    const uint32_t id = std::max(one.instruction.a_scale_id, one.instruction.b_scale_id);
    return scale_place(rows - 1, last, id, rows).column + 1;
}

static Reason reason_of_tensor_operands(const Multiplication& one, const Cta& cta) {
    const Tcgen05Mma& mma = one.mma;
    const uint32_t columns = accumulator_columns(one.layout, one.instruction.n);
    Reason reason = reason_of_lane(one, mma.d, "D");
    const auto check = [&](uint32_t address, uint32_t width) {
        if (reason) return;
        reason = reason_of_range(cta, kMma, {0, kTensorLanes, tensor_column(address), width});
    };
    check(mma.d, columns);
    if (instruction_has_scales(one)) {
        check(mma.a_scales & kScaleAddress, scale_columns(one, one.rows_of_a()));
        check(mma.b_scales & kScaleAddress, scale_columns(one, columns));
    }
    if (mma.is_sparse) check(mma.metadata, metadata_columns(mma.kind));
    if (mma.a_in_tensor_memory) {
        if (!reason) reason = reason_of_lane(one, mma.a, "A");
        check(static_cast<uint32_t>(mma.a), operand_columns(one.instruction));
    }
    return reason;
}

static Reason reason_of_form(const Tcgen05Mma& mma) {
    if (mma.zero_columns) return FaultKind::kTcgen05ZeroColumns;
    return descriptor_of(mma).broken_rule();
}

void check_multiplication(Fiber& fiber, const Tcgen05Mma& mma) {
    Reason reason = reason_of_form(mma);
    if (reason) fail(fiber, reason);
    const Multiplication one(mma);
    const InstructionDescriptor& instruction = one.instruction;
    if (!reason && !mma.a_in_tensor_memory) {
        reason = Tcgen05MatrixDescriptor{mma.a}.broken_rule(
            "A", instruction.a, instruction.a_transposed
        );
    }
    if (!reason) {
        reason = Tcgen05MatrixDescriptor{mma.b}.broken_rule(
            "B", instruction.b, instruction.b_transposed
        );
    }
    if (!reason) reason = reason_of_tensor_operands(one, *fiber.cta);
    if (!reason && mma.group == 2) {
        reason = reason_of_tensor_operands(one, peer_of(*fiber.cluster, *fiber.cta));
    }
    if (reason) fail(fiber, reason);
}

// --- the execution -------------------------------------------------------------------------------

// Scale factors of some rows of an operand, and the lanes that have them.
struct ScaleRows {
    uint8_t (*codes)[kMaxScales];
    uint32_t rows;
    uint32_t id;
    uint32_t address;
    uint32_t lane;
    uint32_t lanes;
};

// An mma as it is executed: by `first` alone, or by it and the next CTA.
class Execution {
public:
    Execution(Cluster& cluster, Cta& first, const TensorOperation& operation)
        : cluster_(cluster), first_(first), operation_(operation), one_(operation.mma) {}

    Reason run();

private:
    Cta& cta(uint32_t index) { return cluster_.ctas[first_.rank + index]; }
    Tcgen05Multiplication& core() { return cluster_.mma_buffers->multiplication; }

    void search_shared(Cta& cta, const Matrix& matrix, uint32_t rows);
    void search_tensor(uint32_t index);
    Reason gather_shared(
        OperandCodes& codes, const Matrix& matrix, uint32_t rows, const char* name
    );
    Reason gather_operands();
    Reason gather_tensor(uint32_t index);
    Reason gather_scales(uint32_t index, const ScaleRows& target, const char* name);
    Reason gather_all_scales(uint32_t index);
    Reason gather_metadata(uint32_t index);
    Reason reason_of_accumulators(uint32_t index);
    void multiply(uint32_t index);

    Cluster& cluster_;
    Cta& first_;
    const TensorOperation& operation_;
    const Multiplication one_;
};

// Reports the reads of an operand in shared memory, which are of the async proxy.
void Execution::search_shared(Cta& cta, const Matrix& matrix, uint32_t rows) {
    Detector* const detector = cluster_.detector.get();
    if (!detector) return;
    const IssuedTensor& tensor = operation_.tensor;
    const Actor actor = tensor.issued.as(tensor.agent, tensor.epoch, Operation::kTcgen05Mma);
    LastCell last;
    matrix.for_each_unit(0, rows, [&](uint32_t, uint32_t, uint32_t offset) {
        detector->shared(actor, cta.rank, offset, kMmaUnitBytes, false, last);
    });
}

Reason Execution::gather_shared(
    OperandCodes& codes, const Matrix& matrix, uint32_t rows, const char* name
) {
    for (uint32_t index = 0; index < one_.ctas(); ++index) {
        Cta& owner = cta(index);
        const Fiber& issuer = *operation_.issuer;
        const Reason reason = reason_of_operand(issuer, owner, matrix, rows, {kMma, name});
        if (reason && !is_pardoned(issuer, reason.kind(), operation_.site)) return reason;
        search_shared(owner, matrix, rows);
        codes.gather(matrix, owner.window, index * rows, rows);
    }
    return {};
}

// Reads the rows of A that a CTA has in tensor memory.
Reason Execution::gather_tensor(uint32_t index) {
    const TensorMemory& memory = *cta(index).tensor.memory;
    const uint32_t column = tensor_column(one_.mma.a), lane = tensor_lane(one_.mma.a);
    const uint32_t columns = operand_columns(one_.instruction);
    UnwrittenWords unwritten(memory);
    one_.for_each_part(index, [&](const AccumulatorPart& part) {
        for (uint32_t row = 0; row < part.rows; ++row) {
            const uint32_t at = lane + part.lane + row;
            unwritten.add(at, column, columns);
            if (part.column) continue;
            // .ashift: each row is the one after it, but for the last.
            const bool is_moved = one_.mma.shifts_a && row + 1 < part.rows;
            core().a.gather_lane(part.row + row, memory.row(at + is_moved) + column);
        }
    });
    return unwritten.reason(kMma, "A", false);
}

// Reads scale factors in a CTA. Each of its groups of 32 lanes has a copy.
Reason Execution::gather_scales(uint32_t index, const ScaleRows& target, const char* name) {
    const TensorMemory& memory = *cta(index).tensor.memory;
    const uint32_t first = tensor_column(target.address), scales = one_.instruction.scales();
    UnwrittenWords unwritten(memory);
    for (uint32_t row = 0; row < target.rows; ++row) {
        for (uint32_t i = 0; i < scales; ++i) {
            const ScalePlace place = scale_place(row, i, target.id, target.rows);
            const uint32_t column = first + place.column;
            for (uint32_t lane = place.lane; lane < target.lanes; lane += 32) {
                unwritten.add(target.lane + lane, column);
            }
            const uint32_t group = row / 32 % (target.lanes / 32) * 32;
            const uint32_t word = memory.read(target.lane + group + place.lane, column);
            target.codes[row][i] = static_cast<uint8_t>(word >> 8 * place.byte);
        }
    }
    const Reason reason = unwritten.reason(kMma, name, true);
    if (!reason && cluster_.tensor_races) {
        const uint32_t groups = tensor_groups(target.lane, target.lanes);
        const uint32_t columns = scale_columns(one_, target.rows);
        cluster_.tensor_races->touch(
            operation_.tensor, {cta(index).rank, groups, first, columns}, false
        );
    }
    return reason;
}

Reason Execution::gather_all_scales(uint32_t index) {
    const uint32_t rows = one_.rows_of_a();
    Reason reason = gather_scales(
        index,
        {core().a_scales + index * rows, rows, one_.instruction.a_scale_id,
         one_.mma.a_scales & kScaleAddress, 0, kTensorLanes},
        kScalesOfA
    );
    one_.for_each_part(index, [&](const AccumulatorPart& part) {
        if (reason || part.row != index * rows) return;
        reason = gather_scales(
            index,
            {core().b_scales + part.column, part.columns, one_.instruction.b_scale_id,
             one_.mma.b_scales & kScaleAddress, part.lane, part.rows},
            kScalesOfB
        );
    });
    return reason;
}

// Reads where along K each element of sparse A is.
Reason Execution::gather_metadata(uint32_t index) {
    const TensorMemory& memory = *cta(index).tensor.memory;
    const Tcgen05Kind kind = one_.mma.kind;
    const uint32_t column = tensor_column(one_.mma.metadata);
    const uint32_t lane = tensor_lane(one_.mma.metadata), columns = metadata_columns(kind);
    UnwrittenWords unwritten(memory);
    Reason reason;
    uint32_t groups = 0;
    one_.for_each_part(index, [&](const AccumulatorPart& part) {
        groups |= tensor_groups(lane + part.lane, part.rows);
        for (uint32_t row = 0; row < part.rows && !reason; ++row) {
            unwritten.add(lane + part.lane + row, column, columns);
            const uint64_t metadata = row_metadata(kind, row, [&](uint32_t at, uint32_t offset) {
                return memory.read(lane + part.lane + at, column + offset);
            });
            if (part.column) continue;
            const uint32_t broken =
                decode_metadata(one_.instruction, metadata, core().indices[part.row + row]);
            if (!broken) continue;
            const bool is_tf32 = kind == Tcgen05Kind::kTF32;
            reason = {
                FaultKind::kSparseMetadata, part.row + row, hexadecimal(broken & 15),
                is_tf32 ? kSelectorsOfTf32 : kSelectors
            };
        }
    });
    if (cluster_.tensor_races) {
        cluster_.tensor_races->touch(
            operation_.tensor, {cta(index).rank, groups, column, columns}, false
        );
    }
    const Reason missing = unwritten.reason(kMma, kMetadata, true);
    return missing ? missing : reason;
}

Reason Execution::gather_operands() {
    Reason reason;
    for (uint32_t index = 0; index < one_.ctas(); ++index) {
        if (!reason && instruction_has_scales(one_)) reason = gather_all_scales(index);
        if (!reason && one_.mma.is_sparse) reason = gather_metadata(index);
    }
    if (reason) return reason;
    if (!one_.mma.a_in_tensor_memory) {
        reason = gather_shared(core().a, one_.matrix_a(), one_.rows_of_a(), "A");
    }
    for (uint32_t index = 0; one_.mma.a_in_tensor_memory && index < one_.ctas(); ++index) {
        if (!reason) reason = gather_tensor(index);
    }
    if (reason) return reason;
    return gather_shared(core().b, one_.matrix_b(), one_.rows_of_b(), "B");
}

void Execution::search_tensor(uint32_t index) {
    TensorRaces* const races = cluster_.tensor_races.get();
    if (!races) return;
    const Tcgen05Mma& mma = one_.mma;
    const uint32_t rank = cta(index).rank;
    uint32_t groups = 0, width = 0, reads = 0;
    one_.for_each_part(index, [&](const AccumulatorPart& part) {
        groups |= tensor_groups(tensor_lane(mma.d) + part.lane, part.rows);
        reads |= tensor_groups(tensor_lane(mma.a) + part.lane, part.rows);
        width = part.columns;
    });
    if (mma.a_in_tensor_memory) {
        const uint32_t columns = operand_columns(one_.instruction);
        races->touch(operation_.tensor, {rank, reads, tensor_column(mma.a), columns}, false);
    }
    races->touch(operation_.tensor, {rank, groups, tensor_column(mma.d), width}, true, true);
}

// An mma that adds to accumulators needs all of them.
Reason Execution::reason_of_accumulators(uint32_t index) {
    if (!one_.mma.accumulates) return {};
    const TensorMemory& memory = *cta(index).tensor.memory;
    const uint32_t column = tensor_column(one_.mma.d), lane = tensor_lane(one_.mma.d);
    Reason reason;
    one_.for_each_part(index, [&](const AccumulatorPart& part) {
        for (uint32_t row = 0; row < part.rows && !reason; ++row) {
            const uint32_t at = lane + part.lane + row;
            const uint32_t written = memory.written_from(at, column, part.columns);
            if (written == part.columns || !one_.writes(index, at)) continue;
            reason = {FaultKind::kUnwrittenTensor, kMma, "D", at, column + written};
        }
    });
    return reason;
}

void Execution::multiply(uint32_t index) {
    TensorMemory& memory = *cta(index).tensor.memory;
    const uint32_t column = tensor_column(one_.mma.d);
    one_.for_each_part(index, [&](const AccumulatorPart& part) {
        const uint32_t lane = tensor_lane(one_.mma.d) + part.lane;
        std::vector<uint32_t> kept;
        for (uint32_t row = 0; row < part.rows; ++row) {
            if (one_.writes(index, lane + row)) {
                memory.mark(lane + row, column, part.columns);
                continue;
            }
            const uint32_t* const words = memory.row(lane + row) + column;
            kept.insert(kept.end(), words, words + part.columns);
        }
        core().multiply(
            part.row, part.rows, part.column, part.columns, memory.row(lane) + column,
            kTensorColumns
        );
        const uint32_t* words = kept.data();
        for (uint32_t row = 0; row < part.rows && !kept.empty(); ++row) {
            if (one_.writes(index, lane + row)) continue;
            std::copy_n(words, part.columns, memory.row(lane + row) + column);
            words += part.columns;
        }
    });
}

Reason Execution::run() {
    core().reset(one_.instruction);
    core().accumulates = one_.mma.accumulates;
    core().scale_input_d = one_.mma.scale_of_d;
    Reason reason = gather_operands();
    for (uint32_t index = 0; index < one_.ctas() && !reason; ++index) {
        search_tensor(index);
        reason = reason_of_accumulators(index);
        const Fiber& issuer = *operation_.issuer;
        if (reason && is_pardoned(issuer, reason.kind(), operation_.site)) reason = {};
    }
    if (reason) return reason;
    core().decode();
    for (uint32_t index = 0; index < one_.ctas(); ++index) multiply(index);
    return {};
}

Reason execute_multiplication(Cluster& cluster, Cta& cta, const TensorOperation& operation) {
    return Execution(cluster, cta, operation).run();
}

}  // namespace tmaasync_emulate
