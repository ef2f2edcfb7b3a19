// Memory of clusters that later launches reuse. Mapping it, protecting its pages and touching it
// for the first time took most of a small launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "host/process_mutex.hpp"

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

}  // namespace tmaasync_emulate
