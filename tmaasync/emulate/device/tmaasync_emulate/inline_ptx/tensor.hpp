// tcgen05 of inline PTX.
#pragma once

#include <tmaasync_emulate/inline_ptx/memory.hpp>
#include <tmaasync_emulate/tcgen05_reductions.hpp>

namespace tmaasync_emulate::inline_ptx {

// The shared address of an operand of tcgen05, whose high bits the chip ignores: kernels pass
// generic addresses of 64 bits.
TMAASYNC_EMULATE_INLINE std::uint32_t shared_of_any(std::uint64_t address) {
    return address >> 32 ? shared_of_generic(address) : static_cast<std::uint32_t>(address);
}

TMAASYNC_EMULATE_INLINE std::uint32_t tensor_address(std::uint64_t address) {
    return static_cast<std::uint32_t>(address);
}

template <Tcgen05Shape kShape, int kRepeats, bool kPacks, typename... Words>
TMAASYNC_EMULATE_INLINE void load_tensor(
    std::uint32_t address, std::uint32_t split, Words&... targets
) {
    constexpr std::size_t kCount = tcgen05_registers(kShape) * kRepeats;
    static_assert(
        sizeof...(Words) == kCount, "tcgen05.ld has as many registers as its shape and number"
    );
    std::uint32_t values[kCount];
    tcgen05_load({kShape, kRepeats, kPacks, split}, address, values);
    int i = 0;
    ((targets = values[i++]), ...);
}

// tcgen05.ld.red: the first target is the result.
template <
    Tcgen05Shape kShape,
    int kRepeats,
    Tcgen05Reduced kType,
    bool kIsMax,
    bool kIsAbsolute,
    bool kKeepsNan,
    typename... Words>
TMAASYNC_EMULATE_INLINE void reduce_tensor(
    std::uint32_t& reduced, std::uint32_t address, std::uint32_t split, Words&... targets
) {
    static_assert(
        sizeof...(Words) == tcgen05_registers(kShape) * kRepeats,
        "tcgen05.ld.red has as many registers as its shape and number"
    );
    std::uint32_t values[sizeof...(Words)];
    tcgen05_load({kShape, kRepeats, false, split}, address, values);
    reduced = tcgen05_reduced(kType, kIsMax, kIsAbsolute, kKeepsNan, values, sizeof...(Words));
    int i = 0;
    ((targets = values[i++]), ...);
}

template <Tcgen05Shape kShape, int kRepeats, bool kPacks, typename... Words>
TMAASYNC_EMULATE_INLINE void store_tensor(
    std::uint32_t address, std::uint32_t split, Words... words
) {
    static_assert(
        sizeof...(Words) == tcgen05_registers(kShape) * kRepeats,
        "tcgen05.st has as many registers as its shape and number"
    );
    const std::uint32_t values[] = {static_cast<std::uint32_t>(words)...};
    tcgen05_store({kShape, kRepeats, kPacks, split}, address, values);
}

// --- tcgen05.mma ---------------------------------------------------------------------------------

enum class TensorKindName { f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4, mxf4nvf4 };

// One tcgen05.mma, put together from the operands of its form.
struct MmaForm {
    Tcgen05Mma mma;

    TMAASYNC_EMULATE_INLINE MmaForm shared_a(std::uint64_t descriptor) {
        mma.a = descriptor;
        return *this;
    }
    TMAASYNC_EMULATE_INLINE MmaForm tensor_a(std::uint32_t address) {
        mma.a = address;
        mma.a_in_tensor_memory = true;
        return *this;
    }
    TMAASYNC_EMULATE_INLINE MmaForm scaled(std::uint32_t a, std::uint32_t b, bool is_4x) {
        mma.a_scales = a;
        mma.b_scales = b;
        mma.scale_vector = is_4x ? 4 : mma.kind == Tcgen05Kind::kMXF8F6F4 ? 1 : 2;
        return *this;
    }
    TMAASYNC_EMULATE_INLINE MmaForm sparse(bool is_sparse, std::uint32_t metadata) {
        mma.is_sparse = is_sparse;
        mma.metadata = metadata;
        return *this;
    }
    TMAASYNC_EMULATE_INLINE MmaForm shifted(bool is_shifted) {
        mma.shifts_a = is_shifted;
        return *this;
    }
    TMAASYNC_EMULATE_INLINE MmaForm ws(std::uint64_t zero_columns) {
        mma.is_ws = true;
        mma.zero_columns = zero_columns;
        return *this;
    }
    TMAASYNC_EMULATE_INLINE MmaForm scale_d(std::uint32_t exponent) {
        mma.scale_of_d = static_cast<std::uint8_t>(exponent);
        return *this;
    }
    // disable-output-lane: a vector of 4 words, or of 8 for a pair.
    template <typename... Words>
    TMAASYNC_EMULATE_INLINE MmaForm without_lanes(Words... words) {
        static_assert(sizeof...(Words) == 4 || sizeof...(Words) == 8, "4 words, or 8 for a pair");
        int i = 0;
        ((mma.disabled_lanes[i++] = static_cast<std::uint32_t>(words)), ...);
        return *this;
    }
    TMAASYNC_EMULATE_INLINE void issue() const { tcgen05_mma(mma); }
};

TMAASYNC_EMULATE_INLINE MmaForm mma_form(
    std::uint32_t group,
    TensorKindName kind,
    std::uint32_t d,
    std::uint64_t b,
    std::uint32_t instruction,
    bool accumulates
) {
    MmaForm form;
    form.mma.group = group;
    form.mma.kind = static_cast<Tcgen05Kind>(kind);
    form.mma.d = d;
    form.mma.b = b;
    form.mma.instruction = instruction;
    form.mma.accumulates = accumulates;
    return form;
}

// --- tcgen05.cp ----------------------------------------------------------------------------------

TMAASYNC_EMULATE_INLINE void copy_to_tensor(
    std::uint32_t group,
    Tcgen05CopyShape shape,
    Tcgen05Multicast multicast,
    Tcgen05Source source,
    std::uint32_t address,
    std::uint64_t matrix
) {
    tcgen05_copy({group, address, matrix, shape, multicast, source});
}

}  // namespace tmaasync_emulate::inline_ptx
