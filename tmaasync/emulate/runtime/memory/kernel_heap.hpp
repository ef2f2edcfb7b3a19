// Memory that kernels allocate with malloc and new. As on the chip, it lives until this launch or a
// later one frees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>

#include "host/process_mutex.hpp"

namespace tmaasync_emulate {

class KernelHeap {
public:
    static void* allocate(std::size_t bytes) {
        void* const memory = std::malloc(bytes);
        const std::lock_guard guard(lock());
        if (memory) blocks()[reinterpret_cast<uintptr_t>(memory)] = bytes;
        return memory;
    }

    // Returns false if no block begins there.
    static bool release(void* memory) {
        const std::lock_guard guard(lock());
        if (blocks().erase(reinterpret_cast<uintptr_t>(memory)) == 0) return false;
        std::free(memory);
        return true;
    }

    static bool holds(uintptr_t address, uint64_t bytes) {
        const std::lock_guard guard(lock());
        auto found = blocks().upper_bound(address);
        if (found == blocks().begin()) return false;
        --found;
        return address + bytes <= found->first + found->second;
    }

private:
    static std::map<uintptr_t, std::size_t>& blocks() {
        static std::map<uintptr_t, std::size_t> all;
        return all;
    }
    static ProcessMutex& lock() {
        static auto* const mutex = new ProcessMutex;
        return *mutex;
    }
};

}  // namespace tmaasync_emulate
