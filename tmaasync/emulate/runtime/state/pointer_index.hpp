// The pointers that the arrays of a launch hold, in order, to find the memory that one leads to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "abi.hpp"

namespace tmaasync_emulate {

// Arrays and arguments may hold pointers to other arrays, as a grouped GEMM's table does. The size
// of a pointer's array is unknown, so an address belongs to the nearest pointer or array before it.
//
// A search of all words takes as long as the arrays are large, so it happens once, and again only
// for an address that the last one does not explain: a kernel may have written a pointer since.
class PointerIndex {
public:
    // An address farther from a pointer than this is not part of the pointer's array.
    static constexpr uint64_t kFarBytes = uint64_t{1} << 32;
    // Linux links executables from here on, and their heap follows. Lower numbers are not pointers.
    static constexpr uint64_t kLowestPointer = uint64_t{1} << 22;
    // User space ends here (47 bits on x86-64, 48 on AArch64).
    static constexpr uint64_t kHighestPointer = uint64_t{1} << 48;

    // The memory of a pointer that holds the bytes at the address; empty if there is none.
    Reach around(const std::vector<Array>& arrays, uintptr_t address, uint64_t bytes) {
        const std::lock_guard guard(mutex_);
        const auto holds = [&](Reach reach) {
            return reach.end > address && bytes <= reach.end - address;
        };
        if (searches_ != 0) {
            if (const Reach reach = known(arrays, address); holds(reach)) return reach;
        }
        search(arrays);
        const Reach reach = known(arrays, address);
        return holds(reach) ? reach : Reach{};
    }

    // How often all words were searched.
    uint64_t searches() const { return searches_; }

private:
    struct Pointer {
        uintptr_t value;
        uintptr_t at;  // address of the word with it; 0 for the beginning of an array

        bool is_there() const {
            uint64_t word = value;
            if (at) std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof(word));
            return word == value;
        }
    };

    void search(const std::vector<Array>& arrays) {
        ++searches_;
        pointers_.clear();
        for (const Array& array : arrays) {
            pointers_.push_back({array.start, 0});
            if (!array.may_hold_pointers) continue;
            for (uintptr_t at = (array.start + 7) / 8 * 8; array.holds(at, 8); at += 8) {
                uint64_t word;
                std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof(word));
                if (word >= kLowestPointer && word < kHighestPointer) {
                    pointers_.push_back({word, at});
                }
            }
        }
        std::sort(pointers_.begin(), pointers_.end(), [](const Pointer& a, const Pointer& b) {
            return a.value < b.value;
        });
    }

    Reach known(const std::vector<Array>& arrays, uintptr_t address) const {
        const auto after = std::upper_bound(
            pointers_.begin(), pointers_.end(), address,
            [](uintptr_t value, const Pointer& pointer) { return value < pointer.value; }
        );
        if (after == pointers_.begin()) return {};
        const Pointer& before = *(after - 1);
        const bool is_of_array = std::any_of(arrays.begin(), arrays.end(), [&](const Array& array) {
            return array.start == before.value || array.holds(before.value, 1);
        });
        if (is_of_array || address - before.value > kFarBytes || !before.is_there()) return {};
        return {before.value, after == pointers_.end() ? ~uintptr_t{0} : after->value};
    }

    std::mutex mutex_;  // workers share a launch
    std::vector<Pointer> pointers_;
    uint64_t searches_ = 0;
};

}  // namespace tmaasync_emulate
