// Memory of clusters that later launches reuse. Mapping it, protecting its pages and touching it
// for the first time took most of a small launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>
#include "fiber.hpp"
#include "poison.hpp"
#include "process_mutex.hpp"

namespace tmaasync_emulate {

// Values that are slow to make. The `size()` of all kept values is at most kMostKept in total.
template <typename Value, std::size_t kMostKept>
class Kept {
public:
    // Returns a value of at least this size, and of at most twice as much.
    static std::unique_ptr<Value> take(std::size_t size) {
        {
            const std::lock_guard guard(lock());
            auto& all = values();
            const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) {
                return one->size() >= size && one->size() <= 2 * size;
            });
            if (found != all.end()) {
                std::unique_ptr<Value> value = std::move(*found);
                all.erase(found);
                kept() -= value->size();
                return value;
            }
        }
        return std::make_unique<Value>(size);
    }

    // Keeps the value, and drops the oldest ones to make room.
    static void give(std::unique_ptr<Value> value) {
        if (value->size() > kMostKept) return;
        const std::lock_guard guard(lock());
        auto& all = values();
        kept() += value->size();
        while (kept() > kMostKept) {
            kept() -= all.front()->size();
            all.erase(all.begin());
        }
        all.push_back(std::move(value));
    }

private:
    // Never destroyed: host threads may launch until the process ends.
    static std::vector<std::unique_ptr<Value>>& values() {
        static auto* const all = new std::vector<std::unique_ptr<Value>>;
        return *all;
    }
    static std::size_t& kept() {
        static std::size_t size = 0;
        return size;
    }
    static ProcessMutex& lock() {
        static auto* const mutex = new ProcessMutex;
        return *mutex;
    }
};

// The shared memory of the CTAs of a cluster.
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

// 1024 stacks take 128 MiB if each has been used to its full depth, and mostly 8 MiB.
using KeptStacks = Kept<Stacks, 1024>;
using KeptWindows = Kept<Windows, 64>;

}  // namespace tmaasync_emulate
