// The fields of tcgen05's instruction descriptor, and their rules.
#include "tensor_cores/tcgen05_instruction.hpp"

#include <initializer_list>

namespace tmaasync_emulate {

namespace {

using Kind = Tcgen05Kind;

constexpr const char* kNames[] = {"f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"};

const char* name_of(Kind kind) {
    return kNames[static_cast<int>(kind)];
}

const char* types_of(Kind kind) {
    switch (kind) {
        case Kind::kF16:
            return "f16 (0) or bf16 (1)";
        case Kind::kTF32:
            return "tf32 (2)";
        case Kind::kI8:
            return "u8 (0) or s8 (1)";
        case Kind::kF8F6F4:
        case Kind::kMXF8F6F4:
            return "e4m3 (0), e5m2 (1), e2m3 (3), e3m2 (4) or e2m1 (5)";
        default:
            return "e2m1 (1)";
    }
}

OperandType operand_type(Kind kind, uint32_t code) {
    constexpr OperandType kNone = OperandType::kNone;
    constexpr OperandType kSmallFloats[] = {
        OperandType::kE4M3, OperandType::kE5M2, kNone, OperandType::kE2M3,
        OperandType::kE3M2, OperandType::kE2M1, kNone, kNone
    };
    switch (kind) {
        case Kind::kF16:
            return code > 1 ? kNone : code ? OperandType::kBF16 : OperandType::kF16;
        case Kind::kTF32:
            return code == 2 ? OperandType::kTF32 : kNone;
        case Kind::kI8:
            return code > 1 ? kNone : code ? OperandType::kS8 : OperandType::kU8;
        case Kind::kF8F6F4:
        case Kind::kMXF8F6F4:
            return kSmallFloats[code];
        default:
            return code == 1 ? OperandType::kE2M1 : kNone;
    }
}

uint32_t depth_of(Kind kind) {
    switch (kind) {
        case Kind::kF16:
            return 16;
        case Kind::kTF32:
            return 8;
        case Kind::kMXF4:
        case Kind::kMXF4NVF4:
            return 64;
        default:
            return 32;
    }
}

// Bits that must be 0.
uint32_t reserved_bits(const Tcgen05Form& form) {
    constexpr uint32_t kBit6 = 1u << 6, kSaturate = 1u << 3;
    constexpr uint32_t kOfScales = 3u | kSaturate | kBit6 | 7u << 24;
    if (form.kind == Kind::kMXF8F6F4) return kOfScales | 1u << 31;
    if (form.is_packed()) return kOfScales | 1u << 12 | 3u << 15;
    const uint32_t shift = form.is_ws ? 0 : 3u << 30;
    return kBit6 | (form.kind == Kind::kI8 ? 0 : kSaturate) | 1u << 23 | 1u << 29 | shift;
}

bool is_one_of(uint32_t value, std::initializer_list<uint32_t> list) {
    for (uint32_t one : list) {
        if (value == one) return true;
    }
    return false;
}

bool has_rows(const Tcgen05Form& form, uint32_t m) {
    if (form.is_ws) return is_one_of(m, {32, 64, 128});
    if (!form.is_block_scaled()) {
        return form.ctas == 1 ? is_one_of(m, {64, 128}) : is_one_of(m, {128, 256});
    }
    if (form.ctas == 1) return m == 128;
    return m == 256 || (m == 128 && !form.is_sparse);
}

uint32_t column_step(const InstructionDescriptor& at) {
    const bool is_wide = at.form.kind == Kind::kI8 || (at.b_transposed && code_bits(at.b) <= 8);
    return at.form.ctas * (is_wide ? 16 : 8);
}

bool has_columns(const InstructionDescriptor& at) {
    const uint32_t n = at.n, step = column_step(at);
    if (at.form.is_ws) return is_one_of(n, {64, 128}) || (n == 256 && !at.form.is_sparse);
    const bool is_integer = at.form.kind == Kind::kI8;
    if (is_integer && at.form.ctas == 1 && is_one_of(n, {8, 16, 24})) return true;
    return n >= (is_integer ? 32 : step) && n <= 256 && n % step == 0;
}

Reason shapes_of(const InstructionDescriptor& at) {
    const Tcgen05Form& form = at.form;
    const bool is_pair = form.ctas == 2;
    if (form.is_ws) {
        return {FaultKind::kShapesOfWs, form.is_sparse ? "64 or 128" : "64, 128 or 256"};
    }
    if (form.kind == Kind::kI8 && !is_pair) return FaultKind::kShapesOfI8;
    const char* rows = is_pair ? "128 or 256" : "64 or 128";
    if (form.is_block_scaled() && !is_pair) rows = "128";
    if (form.is_block_scaled() && is_pair && form.is_sparse) rows = "256";
    const uint32_t step = column_step(at);
    return {FaultKind::kShapesInSteps, rows, step, step};
}

// --- rules ---------------------------------------------------------------------------------------

Reason rule_of_form(const Tcgen05Form& form) {
    const char* const kind = name_of(form.kind);
    const uint32_t vector = form.scale_vector;
    if (form.is_ws && (form.ctas != 1 || form.is_block_scaled())) {
        return {FaultKind::kInstructionWs, kind, uint32_t{form.ctas}};
    }
    const bool fits = form.kind == Kind::kMXF8F6F4   ? vector == 1
                      : form.kind == Kind::kMXF4     ? vector == 2
                      : form.kind == Kind::kMXF4NVF4 ? vector == 2 || vector == 4
                                                     : vector == 0;
    return fits ? Reason() : Reason(FaultKind::kInstructionScaleVector, kind, vector);
}

Reason rule_of_bits(const InstructionDescriptor& at) {
    const uint32_t set = at.bits & reserved_bits(at.form);
    if (!set) return {};
    return {
        FaultKind::kInstructionBits, hexadecimal(set), hexadecimal(at.bits), name_of(at.form.kind)
    };
}

Reason rule_of_types(const InstructionDescriptor& at) {
    const char* const kind = name_of(at.form.kind);
    const auto refused = [&](uint32_t code, const char* what, const char* types) -> Reason {
        return {FaultKind::kInstructionType, hexadecimal(at.bits), code, what, kind, types};
    };
    if (at.a == OperandType::kNone) return refused(at.bits >> 7 & 7, "A", types_of(at.form.kind));
    if (at.b == OperandType::kNone) return refused(at.bits >> 10 & 7, "B", types_of(at.form.kind));
    if (at.has_d_type) return {};
    const bool has_half = is_one_of(
        static_cast<uint32_t>(at.form.kind),
        {static_cast<uint32_t>(Kind::kF16), static_cast<uint32_t>(Kind::kF8F6F4)}
    );
    return refused(
        at.bits >> 4 & 3, "D",
        has_half                    ? "f16 (0) or f32 (1)"
        : at.form.kind == Kind::kI8 ? "s32 (2)"
                                    : "f32 (1)"
    );
}

Reason rule_of_modifiers(const InstructionDescriptor& at) {
    if (at.is_sparse != at.form.is_sparse) {
        return {
            FaultKind::kInstructionSparsity, hexadecimal(at.bits), int{at.is_sparse},
            at.form.is_sparse ? "sparse" : "dense"
        };
    }
    if (at.is_sparse && at.selector) {
        return {FaultKind::kInstructionSelector, hexadecimal(at.bits), at.selector};
    }
    if (at.a_transposed && at.form.a_in_tensor_memory) {
        return {FaultKind::kInstructionTransposed, hexadecimal(at.bits)};
    }
    if (at.form.kind == Kind::kI8 && (at.a_negated || at.b_negated)) {
        return {FaultKind::kInstructionNegated, hexadecimal(at.bits)};
    }
    if (at.k == 96 && (at.is_sparse || !at.form.is_sm_103)) {
        return {FaultKind::kInstructionDepth, hexadecimal(at.bits)};
    }
    if (at.form.is_ws && at.m == 32 && at.max_shift) {
        return {FaultKind::kInstructionMaxShift, hexadecimal(at.bits), at.max_shift};
    }
    return {};
}

Reason rule_of_scales(const InstructionDescriptor& at) {
    if (!at.form.is_block_scaled()) return {};
    if (!at.has_e8m0_scales && at.form.scale_vector != 4) {
        return {FaultKind::kInstructionScaleType, hexadecimal(at.bits)};
    }
    if (!at.form.is_packed()) return {};
    const char* const vector = at.form.scale_vector == 2 ? "2X" : "4X";
    const bool is_deep = at.k == 96;
    const bool steps_by_1 = is_deep && at.form.scale_vector == 2;
    const bool begins_at_0 = !is_deep && at.form.scale_vector == 4;
    const char* const legal = steps_by_1 ? "0 to 3" : begins_at_0 ? "0" : "0 or 2";
    const auto refused = [&](const char* name, uint32_t id) -> Reason {
        return {FaultKind::kInstructionScaleId, hexadecimal(at.bits), name, id, vector, legal};
    };
    const auto fits = [&](uint32_t id) {
        return steps_by_1 || id == 0 || (id == 2 && !begins_at_0);
    };
    if (!fits(at.a_scale_id)) return refused("A", at.a_scale_id);
    if (!fits(at.b_scale_id)) return refused("B", at.b_scale_id);
    return {};
}

}  // namespace

InstructionDescriptor::InstructionDescriptor(uint32_t its_bits, const Tcgen05Form& its_form)
    : bits(its_bits),
      form(its_form),
      a(operand_type(form.kind, bits >> 7 & 7)),
      b(operand_type(form.kind, bits >> 10 & (form.is_packed() ? 3 : 7))),
      m((bits >> 24 & 31) << 4),
      n((bits >> 17 & 63) << 3),
      a_negated(bits >> 13 & 1),
      b_negated(bits >> 14 & 1),
      a_transposed(bits >> 15 & 1),
      b_transposed(bits >> 16 & 1),
      is_sparse(bits >> 2 & 1) {
    k = form.is_packed() && bits >> 31 ? 96 : depth_of(form.kind) << is_sparse;
    if (form.is_block_scaled()) {
        b_scale_id = bits >> 4 & 3;
        a_scale_id = bits >> 29 & 3;
        has_e8m0_scales = bits >> 23 & 1;
        return;
    }
    const uint32_t d_code = bits >> 4 & 3;
    d = d_code == 2 ? MmaSum::kInt : d_code == 1 ? MmaSum::kFloat : MmaSum::kHalf;
    const bool is_integer = form.kind == Kind::kI8;
    has_d_type =
        is_integer ? d_code == 2 : d_code == 1 || (d_code == 0 && form.kind != Kind::kTF32);
    selector = bits & 3;
    saturates = is_integer && bits >> 3 & 1;
    max_shift = form.is_ws && bits >> 30 ? 4u << (bits >> 30) : 0;
}

Reason InstructionDescriptor::broken_rule() const {
    if (Reason reason = rule_of_form(form)) return reason;
    if (Reason reason = rule_of_bits(*this)) return reason;
    if (Reason reason = rule_of_types(*this)) return reason;
    if (Reason reason = rule_of_modifiers(*this)) return reason;
    if (Reason reason = rule_of_scales(*this)) return reason;
    if (has_rows(form, m) && has_columns(*this)) return {};
    return {
        FaultKind::kInstructionShape,
        hexadecimal(bits),
        m,
        n,
        name_of(form.kind),
        uint32_t{form.ctas},
        form.is_ws       ? ".ws"
        : form.is_sparse ? ", sparse,"
                         : "",
        shapes_of(*this)
    };
}

}  // namespace tmaasync_emulate
