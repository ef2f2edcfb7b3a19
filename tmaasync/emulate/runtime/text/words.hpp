// Text of reports, without the C++ library's streams. Where that library is linked into this one,
// the streams find the locale of the copy that the process already holds, and crash.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "abi.hpp"

namespace tmaasync_emulate {

// Most of the runtime's functions build a message, and hardly ever run. A call for each part
// compiles faster than std::string's inline functions.
#define TMAASYNC_EMULATE_COLD __attribute__((noinline, cold))

// A number that is written in base 16.
struct Hex {
    uint64_t value;
};

class Words {
public:
    Words() = default;
    TMAASYNC_EMULATE_COLD Words(const char* words) : text_(words) {}
    TMAASYNC_EMULATE_COLD Words(FaultKind fault) : fault_(fault) {}
    TMAASYNC_EMULATE_COLD Words(const Words& other)
        : text_(other.text_), mentions_(other.mentions_), fault_(other.fault_) {}
    TMAASYNC_EMULATE_COLD Words(Words&& other) noexcept
        : text_(std::move(other.text_)),
          mentions_(std::move(other.mentions_)),
          fault_(other.fault_) {}
    TMAASYNC_EMULATE_COLD Words& operator=(const Words& other) {
        text_ = other.text_;
        mentions_ = other.mentions_;
        fault_ = other.fault_;
        return *this;
    }
    TMAASYNC_EMULATE_COLD Words& operator=(Words&& other) noexcept {
        text_ = std::move(other.text_);
        mentions_ = std::move(other.mentions_);
        fault_ = other.fault_;
        return *this;
    }
    TMAASYNC_EMULATE_COLD ~Words() {}

    TMAASYNC_EMULATE_COLD Words& operator<<(const char* words) {
        text_ += words;
        return *this;
    }
    TMAASYNC_EMULATE_COLD Words& operator<<(const Words& words) {
        for (const Mention& one : words.mentions_) {
            mentions_.push_back({text_.size() + one.at, one.value, one.kind});
        }
        text_ += words.text_;
        return *this;
    }
    TMAASYNC_EMULATE_COLD Words& operator<<(char letter) {
        text_ += letter;
        return *this;
    }
    TMAASYNC_EMULATE_COLD Words& operator<<(Hex number) {
        (*this << "0x").digits(number.value, 16);
        // Smaller numbers are masks and offsets.
        return number.value > UINT32_MAX ? mention(MentionKind::kGlobalName, number.value) : *this;
    }
    template <std::integral Number>
    Words& operator<<(Number number) {
        return number < 0 ? (*this << '-').digits(-static_cast<uint64_t>(number), 10)
                          : digits(static_cast<uint64_t>(number), 10);
    }

    // A name that Python adds here.
    TMAASYNC_EMULATE_COLD Words& mention(MentionKind kind, uint64_t value = 0) {
        mentions_.push_back({text_.size(), value, kind});
        return *this;
    }

    // Make the first letter a capital.
    void capitalise() { text_.front() = static_cast<char>(text_.front() - 'a' + 'A'); }

    bool is_empty() const {
        return text_.empty() && mentions_.empty() && fault_ == FaultKind::kText;
    }
    FaultKind fault() const { return fault_; }
    const char* text() const { return text_.c_str(); }
    const std::vector<Mention>& mentions() const { return mentions_; }

private:
    TMAASYNC_EMULATE_COLD Words& digits(uint64_t number, int base) {
        char digits[24];
        text_.append(digits, std::to_chars(digits, digits + sizeof(digits), number, base).ptr);
        return *this;
    }

    std::string text_;
    std::vector<Mention> mentions_;
    FaultKind fault_ = FaultKind::kText;
};

// A sum that begins with a temporary reuses it, so that a message of many parts has one buffer.
TMAASYNC_EMULATE_COLD inline Words&& operator+(Words&& left, const Words& right) {
    return std::move(left << right);
}
TMAASYNC_EMULATE_COLD inline Words&& operator+(Words&& left, const char* right) {
    return std::move(left << right);
}
TMAASYNC_EMULATE_COLD inline Words operator+(const Words& left, const Words& right) {
    return Words(left) << right;
}
TMAASYNC_EMULATE_COLD inline Words operator+(const Words& left, const char* right) {
    return Words(left) << right;
}
TMAASYNC_EMULATE_COLD inline Words operator+(const char* left, const Words& right) {
    return Words(left) << right;
}

#undef TMAASYNC_EMULATE_COLD

template <std::integral Number>
Words decimal(Number number) {
    Words words;
    words << number;
    return words;
}

inline Words hexadecimal(uintptr_t number) {
    return Words() << Hex{number};
}

// Addresses in shared memory and in the kernel's code, as placeholders in a fault's reason.
// emulate/report/words.py replaces them by the name of the variable or the line in the source, and
// appends the array and the index to addresses in global memory.

inline Words barrier_at(uint32_t offset) {
    return Words().mention(MentionKind::kBarrier, offset);
}

inline Words shared_at(uint32_t offset) {
    return Words().mention(MentionKind::kSharedOffset, offset);
}

inline Words shared_bytes_from(uint32_t offset) {
    return Words().mention(MentionKind::kSharedBytes, offset);
}

// Placeholder for the variable at exactly this offset: "tiles[1]".
inline Words place_at(uint32_t offset) {
    return Words().mention(MentionKind::kSharedName, offset);
}

// Placeholder for a line: " at kernel.cu:38". The address is the one of the library's debugging
// information.
inline Words at_line(uintptr_t address_in_library) {
    return Words().mention(MentionKind::kLine, address_in_library);
}

// Placeholder for the barrier of a ring's stage: ": ring.full[1] ends the loads into the stage".
inline Words on_full_barrier_of(uint32_t offset) {
    return Words().mention(MentionKind::kFullBarrier, offset);
}

inline Words size_constant() {
    return Words().mention(MentionKind::kSizeConstant);
}

// A number, an access and an address in global memory, of a sentence that Python writes.
inline Words numeral(int64_t number) {
    return Words().mention(MentionKind::kNumeral, static_cast<uint64_t>(number));
}

inline Words access_of(bool writes) {
    return Words().mention(MentionKind::kAccess, writes);
}

inline Words address_at(uintptr_t address) {
    return Words().mention(MentionKind::kAddress, address);
}

}  // namespace tmaasync_emulate
