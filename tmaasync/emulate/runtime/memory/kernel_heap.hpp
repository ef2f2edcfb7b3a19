// Memory that kernels allocate with malloc and new. As on the chip, it lives until this launch or a
// later one frees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>

#include "host/process_mutex.hpp"

namespace tmaasync_emulate {

class KernelHeap {
    using Blocks = std::map<uintptr_t, std::size_t>;  // their bytes, by address

public:
    static void* allocate(std::size_t bytes) {
        void* const memory = std::malloc(bytes);
        const std::lock_guard guard(lock());
        if (memory) held()[reinterpret_cast<uintptr_t>(memory)] = bytes;
        return memory;
    }

    // The bytes of the block that begins there, if one does.
    static std::optional<std::size_t> bytes_of(uintptr_t block) {
        const std::lock_guard guard(lock());
        const auto found = held().find(block);
        return found == held().end() ? std::nullopt : std::optional(found->second);
    }

    static bool holds(uintptr_t address, uint64_t bytes) {
        const std::lock_guard guard(lock());
        return is_in(held(), address, bytes);
    }

    // True for memory of a block that a repeated launch has freed.
    static bool was_freed(uintptr_t address) {
        const std::lock_guard guard(lock());
        return is_in(freed(), address, 1);
    }

    // Frees or revives a block, whose memory stays until it is dropped. Returns whether kernels
    // could use it before.
    static bool set_held(uintptr_t block, bool is_held) {
        const std::lock_guard guard(lock());
        Blocks& from = is_held ? freed() : held();
        Blocks& to = is_held ? held() : freed();
        const bool is_new = to.insert(from.extract(block)).inserted;
        return is_held != is_new;
    }

    // Gives the memory of a freed block back.
    static void drop(uintptr_t block) {
        const std::lock_guard guard(lock());
        if (freed().erase(block)) std::free(reinterpret_cast<void*>(block));
    }

private:
    static bool is_in(const Blocks& blocks, uintptr_t address, uint64_t bytes) {
        auto found = blocks.upper_bound(address);
        if (found == blocks.begin()) return false;
        --found;
        return address + bytes <= found->first + found->second;
    }
    static Blocks& held() {
        static Blocks all;
        return all;
    }
    static Blocks& freed() {
        static Blocks all;
        return all;
    }
    static ProcessMutex& lock() {
        static auto* const mutex = new ProcessMutex;
        return *mutex;
    }
};

}  // namespace tmaasync_emulate
