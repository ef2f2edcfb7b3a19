// Contents of shared memory before its first write. Every pair of bytes is a NaN of every type. The
// signs depend on the address and tell poison from data: 7 bits in each unit of 16 bytes.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tmaasync_emulate/calls.hpp>

namespace tmaasync_emulate {

using PoisonedWindow = std::array<uint64_t, kWindowBytes / sizeof(uint64_t)>;

inline std::unique_ptr<const PoisonedWindow> make_poison() {
    auto words = std::make_unique<PoisonedWindow>();
    for (uint64_t i = 0; i < words->size(); ++i) {
        // The signs are never all clear or all set, nor make up 0x7fffffff, the NaN of an MMA.
        uint64_t signs = 1 + (i * 0x9e3779b97f4a7c15 >> 32) % 13;
        if (signs >= 0b0101) ++signs;
        uint64_t word = 0x7fff7fff7fff7fff;
        for (uint64_t half = 0; half < 4; ++half) word |= (signs >> half & 1) << (16 * half + 15);
        (*words)[i] = word;
    }
    return words;
}

inline const PoisonedWindow& poisoned_window() {
    static const auto words = make_poison();
    return *words;
}

// True if a unit, at a multiple of its size, still holds its first contents.
inline bool is_poison(const PoisonedWindow& poison, const uint8_t* window, uint32_t offset) {
    uint64_t word;
    std::memcpy(&word, window + offset, sizeof(word));
    if (word != poison[offset / sizeof(word)]) return false;
    std::memcpy(&word, window + offset + sizeof(word), sizeof(word));
    return word == poison[offset / sizeof(word) + 1];
}

}  // namespace tmaasync_emulate
