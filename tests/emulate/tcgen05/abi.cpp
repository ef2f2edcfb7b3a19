// The tcgen05 parts of the emulator's runtime as C functions, for the tests of this folder.
#include <tensor_cores/tcgen05_decode.cpp>
#include <tensor_cores/tcgen05_floats.cpp>
#include <tensor_cores/tcgen05_groups.cpp>
#include <tensor_cores/tcgen05_instruction.cpp>
#include <tensor_cores/tcgen05_layouts.hpp>
#include <tensor_cores/tcgen05_matrix.hpp>
#include <tensor_cores/tcgen05_multiply.cpp>

namespace {

using namespace tmaasync_emulate;

// Mirrored by library.py.
struct Form {
    uint8_t kind, ctas, is_sparse, is_ws, scale_vector, a_in_tensor_memory, is_sm_103;

    operator Tcgen05Form() const {
        return {
            static_cast<Tcgen05Kind>(kind), ctas,          is_sparse != 0, is_ws != 0, scale_vector,
            a_in_tensor_memory != 0,        is_sm_103 != 0
        };
    }
};

Reason last_reason;
Tcgen05Multiplication mma;

}  // namespace

extern "C" {

struct Faulted {
    uint32_t kind;
    uint64_t mentions;
    const Mention* mention;
    const char* texts;
};

Faulted tcgen05_reason() {
    return {
        static_cast<uint32_t>(last_reason.kind()), last_reason.mentions().size(),
        last_reason.mentions().data(), last_reason.texts().c_str()
    };
}

// Fields of an instruction descriptor, in the order of library.py.
uint32_t tcgen05_instruction(uint32_t bits, Form form, uint32_t* fields) {
    const InstructionDescriptor at(bits, form);
    const uint32_t found[] = {
        static_cast<uint32_t>(at.a),
        static_cast<uint32_t>(at.b),
        static_cast<uint32_t>(at.d),
        at.m,
        at.n,
        at.k,
        at.a_negated,
        at.b_negated,
        at.a_transposed,
        at.b_transposed,
        at.is_sparse,
        at.saturates,
        at.selector,
        at.max_shift,
        at.a_scale_id,
        at.b_scale_id,
        at.has_e8m0_scales,
        at.stored_k(),
        at.scales(),
        operand_columns(at),
    };
    std::copy(std::begin(found), std::end(found), fields);
    last_reason = at.broken_rule();
    return !last_reason;
}

uint32_t tcgen05_matrix(uint64_t bits, uint32_t type, uint32_t transposed) {
    last_reason = Tcgen05MatrixDescriptor{bits}.broken_rule(
        "A", static_cast<OperandType>(type), transposed != 0
    );
    return !last_reason;
}

// Codes of an operand in shared memory, as [rows][depth] variables.
void tcgen05_gather(
    uint64_t bits,
    uint32_t type,
    uint32_t rows,
    uint32_t depth,
    uint32_t transposed,
    uint32_t is_packed,
    const uint8_t* window,
    uint8_t* codes
) {
    const auto its_type = static_cast<OperandType>(type);
    mma.a.reset(its_type, depth, is_packed != 0);
    const Matrix matrix =
        Tcgen05MatrixDescriptor{bits}.matrix(its_type, depth, transposed != 0, is_packed != 0);
    mma.a.gather(matrix, window, 0, rows);
    std::memcpy(codes, mma.a.row(0), std::size_t{rows} * depth * code_bytes(its_type));
}

// Codes of one row of A in tensor memory.
void tcgen05_gather_lane(
    uint32_t type, uint32_t depth, uint32_t is_packed, const uint32_t* words, uint8_t* codes
) {
    const auto its_type = static_cast<OperandType>(type);
    mma.a.reset(its_type, depth, is_packed != 0);
    mma.a.gather_lane(0, words);
    std::memcpy(codes, mma.a.row(0), depth * code_bytes(its_type));
}

// Places of D: (cta, lane, column) of each [m][n].
uint32_t tcgen05_accumulators(Form form, uint32_t m, uint32_t n, uint32_t* places) {
    const AccumulatorLayout layout = accumulator_layout(form, m);
    for_each_accumulator_part(layout, m, n, [&](const AccumulatorPart& part) {
        for (uint32_t r = 0; r < part.rows; ++r) {
            for (uint32_t c = 0; c < part.columns; ++c) {
                uint32_t* const place = places + ((part.row + r) * n + part.column + c) * 3;
                place[0] = part.cta;
                place[1] = part.lane + r;
                place[2] = part.offset + c;
            }
        }
    });
    return accumulator_columns(layout, n);
}

void tcgen05_scale(uint32_t row, uint32_t index, uint32_t id, uint32_t rows, uint32_t* place) {
    const ScalePlace found = scale_place(row, index, id, rows);
    place[0] = found.lane;
    place[1] = found.column;
    place[2] = found.byte;
}

// Where along K the stored elements of a row are, of a part whose lanes have these words.
uint32_t tcgen05_metadata(
    uint32_t bits,
    Form form,
    uint32_t row,
    const uint32_t* words,
    uint32_t columns,
    uint8_t* indices
) {
    const InstructionDescriptor at(bits, form);
    const auto read = [&](uint32_t lane, uint32_t column) {
        return words[lane * columns + column];
    };
    return decode_metadata(at, row_metadata(at.form.kind, row, read), indices);
}

// One instruction on codes. `slowly` takes each element alone.
void tcgen05_multiply(
    uint32_t bits,
    Form form,
    const uint8_t* a,
    const uint8_t* b,
    const uint8_t* a_scales,
    const uint8_t* b_scales,
    const uint8_t* indices,
    uint32_t accumulates,
    uint32_t scale_input_d,
    uint32_t* d,
    uint32_t pitch,
    uint32_t slowly,
    uint32_t repeats
) {
    const InstructionDescriptor at(bits, form);
    for (uint32_t repeat = 0; repeat < repeats; ++repeat) {
        mma.reset(at);
        // Codes are where an operand without swizzle has them: rows of 16 bytes at most at a time.
        std::memcpy(const_cast<uint8_t*>(mma.a.row(0)), a, at.m * at.stored_k() * code_bytes(at.a));
        std::memcpy(const_cast<uint8_t*>(mma.b.row(0)), b, at.n * at.k * code_bytes(at.b));
        for (uint32_t row = 0; row < at.m && at.is_sparse; ++row) {
            std::memcpy(mma.indices[row], indices + row * at.stored_k(), at.stored_k());
        }
        const uint32_t scales = at.form.is_block_scaled() ? at.scales() : 0;
        for (uint32_t row = 0; row < at.m && scales; ++row) {
            std::memcpy(mma.a_scales[row], a_scales + row * scales, scales);
        }
        for (uint32_t row = 0; row < at.n && scales; ++row) {
            std::memcpy(mma.b_scales[row], b_scales + row * scales, scales);
        }
        mma.accumulates = accumulates != 0;
        mma.scale_input_d = scale_input_d;
        mma.decode();
        if (!slowly) {
            mma.multiply(0, at.m, 0, at.n, d, pitch);
            continue;
        }
        for (uint32_t row = 0; row < at.m; ++row) {
            for (uint32_t column = 0; column < at.n; ++column) {
                uint32_t& word = d[row * pitch + column];
                word = multiply_element(mma, row, column, word);
            }
        }
    }
}

}  // extern "C"
