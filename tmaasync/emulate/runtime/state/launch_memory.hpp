// The global memory of a launch: its arrays, its arguments and the kernel's library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "abi.hpp"

namespace tmaasync_emulate {

struct LaunchMemory {
    std::vector<Array> arrays;   // arrays of the launch, and its arguments
    Array library{};             // code and data of the kernel
    Array code{};                // instructions of the kernel
    uint8_t* written = nullptr;  // for each array, whether this launch writes to it
    // Null, or for each array whether the launch before wrote to it, so that this one must wait.
    const uint8_t* fresh = nullptr;

    // An address farther from a pointer than this is not part of the pointer's array.
    static constexpr uint64_t kFarBytes = uint64_t{1} << 32;
    // Linux links executables from here on, and their heap follows. Lower numbers are not pointers.
    static constexpr uint64_t kLowestPointer = uint64_t{1} << 22;

    bool may_hold(uintptr_t address, uint64_t bytes) const {
        for (const Array& array : arrays) {
            if (array.holds(address, bytes)) return true;
        }
        const Reach reach = reach_of_pointer_to(address);
        return reach.end > address && bytes <= reach.end - address;
    }
    // The array that holds the address, or else the memory that a pointer leads to; empty if none.
    Reach reach_at(uintptr_t address) const {
        for (const Array& array : arrays) {
            if (array.holds(address, 1)) return {array.start, array.start + array.bytes};
        }
        return reach_of_pointer_to(address);
    }
    // Arrays and arguments may hold pointers to other arrays, as a grouped GEMM's table does. The
    // size of a pointer's array is unknown, so an address belongs to the nearest pointer or array
    // before it.
    Reach reach_of_pointer_to(uintptr_t address) const {
        Reach reach{0, ~uintptr_t{0}};
        const auto see = [&](uintptr_t start) {
            if (start <= address) reach.start = std::max(reach.start, start);
            if (start > address) reach.end = std::min(reach.end, start);
        };
        for (const Array& array : arrays) {
            see(array.start);
            if (!array.may_hold_pointers) continue;
            for (uintptr_t at = (array.start + 7) / 8 * 8; array.holds(at, 8); at += 8) {
                uint64_t word;
                std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof(word));
                if (word >= kLowestPointer) see(word);
            }
        }
        const bool is_known = std::any_of(arrays.begin(), arrays.end(), [&](const Array& array) {
            return array.start == reach.start || array.holds(reach.start, 1);
        });
        const bool is_far = reach.start == 0 || address - reach.start > kFarBytes;
        return is_known || is_far ? Reach{} : reach;
    }
    void note_written(uintptr_t address) const {
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            if (arrays[i].holds(address, 1)) __atomic_store_n(&written[i], 1, __ATOMIC_RELAXED);
        }
    }
    bool is_fresh(uintptr_t address) const {
        if (!fresh) return false;
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            if (fresh[i] && arrays[i].holds(address, 1)) return true;
        }
        return false;
    }
    // The address as the library's debugging information counts it; 0 outside the library.
    uintptr_t address_in_library(uintptr_t site) const {
        // A site is a return address; the byte before it belongs to the call.
        return library.holds(site, 1) ? site - 1 - library.start : 0;
    }
};

}  // namespace tmaasync_emulate
