// The shared memory of the CTAs of a cluster.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "host/kept.hpp"
#include "shared_memory/poison.hpp"

namespace tmaasync_emulate {

class Windows {
public:
    explicit Windows(std::size_t ctas)
        : reserved_bytes_(ctas * kWindowStride), written_(ctas, kWindowBytes) {
        memory_ = reserve_aligned(reserved_bytes_);
        for (std::size_t rank = 0; rank < ctas; ++rank) {
            if (mprotect(at(rank), kWindowBytes, PROT_READ | PROT_WRITE) == 0) continue;
            munmap(memory_, reserved_bytes_);
            throw std::bad_alloc();
        }
    }
    ~Windows() { munmap(memory_, reserved_bytes_); }
    Windows(const Windows&) = delete;
    Windows& operator=(const Windows&) = delete;

    std::size_t size() const { return written_.size(); }
    uint8_t* at(std::size_t rank) const { return memory_ + rank * kWindowStride; }

    // Poisons a CTA's window for a launch that may write only its first `bytes`. All bytes beyond
    // the last launch's range still hold their poison.
    void poison(std::size_t rank, uint32_t bytes) {
        std::memcpy(at(rank), poisoned_window().data(), std::max(bytes, written_[rank]));
        written_[rank] = bytes;
    }

private:
    // Address space without memory, of which all but an aligned part is given back.
    static uint8_t* reserve_aligned(std::size_t bytes) {
        constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* const mapped = mmap(nullptr, bytes + kWindowsAlignment, PROT_NONE, kFlags, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        const auto start = reinterpret_cast<std::uintptr_t>(mapped);
        const std::size_t before = -start % kWindowsAlignment;
        auto* const first = static_cast<uint8_t*>(mapped) + before;
        if (before) munmap(mapped, before);
        if (before < kWindowsAlignment) munmap(first + bytes, kWindowsAlignment - before);
        return first;
    }

    std::size_t reserved_bytes_;
    std::vector<uint32_t> written_;  // bytes of each window that may have lost their poison
    uint8_t* memory_;
};

using KeptWindows = Kept<Windows, 64>;

}  // namespace tmaasync_emulate
