// The shared memory of the CTAs of a cluster.
#pragma once

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
        : memory_(new (kAlignment) uint8_t[ctas * kWindowBytes]), written_(ctas, kWindowBytes) {}
    ~Windows() { ::operator delete[](memory_, kAlignment); }
    Windows(const Windows&) = delete;
    Windows& operator=(const Windows&) = delete;

    std::size_t size() const { return written_.size(); }
    uint8_t* at(std::size_t rank) const { return memory_ + rank * kWindowBytes; }

    // Poisons a CTA's window for a launch that may write only its first `bytes`. All bytes beyond
    // the last launch's range still hold their poison.
    void poison(std::size_t rank, uint32_t bytes) {
        std::memcpy(at(rank), poisoned_window().data(), std::max(bytes, written_[rank]));
        written_[rank] = bytes;
    }

private:
    static constexpr std::align_val_t kAlignment{4096};

    uint8_t* memory_;
    std::vector<uint32_t> written_;  // bytes of each window that may have lost their poison
};

using KeptWindows = Kept<Windows, 64>;

}  // namespace tmaasync_emulate
