// The arrays of the pointer parameters whose subscripts a kernel's code accesses.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "abi.hpp"

namespace tmaasync_emulate {

class OwnArrays {
public:
    OwnArrays() = default;
    // The subscripts are sorted by address, and refer to the launch's arrays.
    OwnArrays(std::span<const Subscript> subscripts, const Array* arrays, uintptr_t library)
        : subscripts_(subscripts), arrays_(arrays), library_(library) {}

    bool are_known() const { return !subscripts_.empty(); }

    // The array of the parameter that the code before a return address accesses by a subscript;
    // null if it is not known. A search for races, which asks, runs on one core.
    const Array* at(uintptr_t site, bool is_store) {
        Known& known = known_[site / kSmallestCall % kSites];
        if (known.site != site) known = {site, found(site, is_store)};
        return known.array;
    }

    uint64_t number_of(const Array* array) const { return static_cast<uint64_t>(array - arrays_); }

private:
    static constexpr std::size_t kSites = 64;
    static constexpr uintptr_t kSmallestCall = 4;  // bytes between two return addresses, at least

    struct Known {
        uintptr_t site = 0;
        const Array* array = nullptr;
    };

    const Array* found(uintptr_t site, bool is_store) const {
        const uintptr_t place = site - 1 - library_;  // the byte before belongs to the call
        const auto after = std::ranges::upper_bound(subscripts_, place, {}, &Subscript::start);
        if (after == subscripts_.begin()) return nullptr;
        const Subscript& one = after[-1];
        const bool is_this = place < one.end && (one.is_store != 0) == is_store;
        return is_this ? &arrays_[one.array] : nullptr;
    }

    std::span<const Subscript> subscripts_;
    const Array* arrays_ = nullptr;
    uintptr_t library_ = 0;
    std::array<Known, kSites> known_{};
};

}  // namespace tmaasync_emulate
