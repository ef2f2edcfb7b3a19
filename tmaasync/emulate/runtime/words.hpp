// Text of reports, without the C++ library's streams: where that library is linked into this one,
// they find the locale of the copy that the process already holds, and crash.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tmaasync_emulate {

// A number to be written in base 16.
struct Hex {
    uint64_t value;
};

class Words {
public:
    Words& operator<<(std::string_view words) {
        text_ += words;
        return *this;
    }
    Words& operator<<(char letter) {
        text_ += letter;
        return *this;
    }
    Words& operator<<(Hex number) { return (*this << "0x").digits(number.value, 16); }
    template <std::integral Number>
    Words& operator<<(Number number) {
        return digits(number, 10);
    }

    const std::string& text() const { return text_; }

private:
    template <std::integral Number>
    Words& digits(Number number, int base) {
        char digits[24];
        text_.append(digits, std::to_chars(digits, digits + sizeof(digits), number, base).ptr);
        return *this;
    }

    std::string text_;
};

inline std::string hexadecimal(uintptr_t number) {
    return (Words() << Hex{number}).text();
}

// Addresses in shared memory and in the kernel's code, as a fault's reason holds them:
// emulate/reports.py replaces the braces by the name of the variable or the line in the source, and
// puts the array and the index after addresses in global memory.

inline std::string barrier_at(uint32_t offset) {
    return "{barrier " + std::to_string(offset) + "}";
}

inline std::string shared_at(uint32_t offset) {
    return "{offset " + std::to_string(offset) + "}";
}

inline std::string shared_bytes_from(uint32_t offset) {
    return "{bytes " + std::to_string(offset) + "}";
}

// The variable at this offset alone, "tiles[1]".
inline std::string place_at(uint32_t offset) {
    return "{place " + std::to_string(offset) + "}";
}

// " at kernel.cu:38", for an address as the library's debugging information counts.
inline std::string at_line(uintptr_t address_in_library) {
    return "{line " + std::to_string(address_in_library) + "}";
}

// ": ring.full[1] ends the loads into the stage", of an offset in a stage of a ring.
inline std::string on_full_barrier_of(uint32_t offset) {
    return "{stage " + std::to_string(offset) + "}";
}

}  // namespace tmaasync_emulate
