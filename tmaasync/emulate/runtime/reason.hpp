// The reason of a fault: its kind and its facts, of which Python writes a sentence.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <tmaasync_emulate/fault.hpp>
#include <utility>
#include <vector>

namespace tmaasync_emulate {

// Most of the runtime's functions name a reason, and hardly ever do. A call for each fact compiles
// faster than inline functions of std::vector and std::string.
#define TMAASYNC_EMULATE_COLD __attribute__((noinline, cold))

class Reason {
public:
    TMAASYNC_EMULATE_COLD Reason() {}
    template <typename... Facts>
    Reason(FaultKind kind, const Facts&... facts) : kind_(kind) {
        (add(facts), ...);
    }
    TMAASYNC_EMULATE_COLD Reason(const Reason& other)
        : kind_(other.kind_), mentions_(other.mentions_), texts_(other.texts_) {}
    TMAASYNC_EMULATE_COLD Reason(Reason&& other) noexcept
        : kind_(other.kind_),
          mentions_(std::move(other.mentions_)),
          texts_(std::move(other.texts_)) {}
    TMAASYNC_EMULATE_COLD Reason& operator=(Reason other) {
        kind_ = other.kind_;
        mentions_.swap(other.mentions_);
        texts_.swap(other.texts_);
        return *this;
    }
    TMAASYNC_EMULATE_COLD ~Reason() {}

    explicit operator bool() const { return kind_ != FaultKind::kNone; }

    TMAASYNC_EMULATE_COLD void add(Mention fact) { mentions_.push_back(fact); }
    TMAASYNC_EMULATE_COLD void add(const char* text) {
        mentions_.push_back({texts_.size(), MentionKind::kText});
        texts_.append(text, std::strlen(text) + 1);
    }
    TMAASYNC_EMULATE_COLD void add(const Reason& phrase) {
        mentions_.push_back({static_cast<uint64_t>(phrase.kind_), MentionKind::kPhrase});
        for (Mention fact : phrase.mentions_) {
            if (fact.kind == MentionKind::kText) fact.value += texts_.size();
            mentions_.push_back(fact);
        }
        texts_ += phrase.texts_;
    }
    void add(FaultKind phrase) { add(Reason(phrase)); }
    template <std::integral Number>
    void add(Number number) {
        const bool is_unsigned = sizeof(Number) == 8 && std::unsigned_integral<Number>;
        add(Mention{
            static_cast<uint64_t>(int64_t(number)),
            is_unsigned ? MentionKind::kUnsigned : MentionKind::kNumeral
        });
    }

    FaultKind kind() const { return kind_; }
    const std::vector<Mention>& mentions() const { return mentions_; }
    // Each text ends with a null character.
    const std::string& texts() const { return texts_; }

private:
    FaultKind kind_ = FaultKind::kNone;
    std::vector<Mention> mentions_;
    std::string texts_;
};

#undef TMAASYNC_EMULATE_COLD

inline Mention hexadecimal(uint64_t number) {
    return {number, MentionKind::kHexadecimal};
}
// Two facts in one: user addresses have 48 bits at most.
inline Mention outside_array(uint64_t array, uint64_t address) {
    return {array << kAddressBits | address, MentionKind::kOutsideArray};
}
inline Mention list_of(std::size_t count) {
    return {count, MentionKind::kList};
}
inline Mention barrier_at(uint32_t offset) {
    return {offset, MentionKind::kBarrier};
}
inline Mention shared_at(uint32_t offset) {
    return {offset, MentionKind::kSharedOffset};
}
inline Mention shared_bytes_from(uint32_t offset) {
    return {offset, MentionKind::kSharedBytes};
}
inline Mention variable_at(uint32_t offset) {
    return {offset, MentionKind::kSharedName};
}
inline Mention full_barrier_of(uint32_t offset) {
    return {offset, MentionKind::kFullBarrier};
}
// An address as the library's debugging information has it.
inline Mention at_line(uintptr_t address_in_library) {
    return {address_in_library, MentionKind::kLine};
}
inline Mention size_constant() {
    return {0, MentionKind::kSizeConstant};
}
inline Mention access_of(bool writes) {
    return {writes, MentionKind::kAccess};
}
inline Mention lanes_of(uint32_t mask) {
    return {mask, MentionKind::kLanes};
}
inline Mention warps_of(uint32_t mask) {
    return {mask, MentionKind::kWarps};
}

}  // namespace tmaasync_emulate
