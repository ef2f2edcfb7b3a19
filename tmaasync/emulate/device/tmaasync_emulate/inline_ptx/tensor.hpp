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

}  // namespace tmaasync_emulate::inline_ptx
