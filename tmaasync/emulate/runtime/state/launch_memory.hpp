// The global memory of a launch: its arrays, its arguments and the kernel's library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "abi.hpp"
#include "state/own_arrays.hpp"
#include "state/pointer_index.hpp"
#include "state/undo.hpp"

namespace tmaasync_emulate {

struct LaunchMemory {
    std::vector<Array> arrays;   // arrays of the launch, and its arguments
    Array library{};             // code and data of the kernel
    Array code{};                // instructions of the kernel
    uint8_t* written = nullptr;  // for each array, whether this launch writes to it
    // Null, or for each array whether the launch before wrote to it, so that this one must wait.
    const uint8_t* fresh = nullptr;

    OwnArrays own_arrays{};

    RuleNotes* notes = nullptr;
    Undo* undo = nullptr;  // null unless the launch is repeated

    std::shared_ptr<PointerIndex> pointers = std::make_shared<PointerIndex>();

    bool may_hold(uintptr_t address, uint64_t bytes) const {
        return reach_of(address, bytes).end != 0;
    }
    // The array that holds the bytes, or else the memory that a pointer leads to; empty if none.
    Reach reach_of(uintptr_t address, uint64_t bytes) const {
        if (const Reach reach = array_of(address, bytes); reach.end) return reach;
        const Reach reach = pointers->around(arrays, address, bytes);
        if (reach.end) __atomic_store_n(&notes->has_pointed, 1, __ATOMIC_RELAXED);
        return reach;
    }
    Reach array_of(uintptr_t address, uint64_t bytes) const {
        for (const Array& array : arrays) {
            if (array.holds(address, bytes)) return {array.start, array.start + array.bytes};
        }
        return {};
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
