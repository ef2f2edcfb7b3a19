// The order in which a launch's clusters start.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "policy/cluster_choices.hpp"

namespace tmaasync_emulate {

// The clusters of one window start in any order. They are resident together, so that a cluster may
// wait for an earlier one, which the chip would have started before it.
constexpr uint64_t kWindow = 8;

class StartOrder {
public:
    StartOrder(uint64_t clusters, uint64_t window, ClusterChoices choices)
        : clusters_(clusters), window_(window), choices_(choices) {}

    // Takes the grid index of the next cluster; false if all have started.
    bool take(uint64_t& index) {
        const std::lock_guard guard(lock_);
        if (taken_ == clusters_) return false;
        if (taken_ % window_ == 0) draw();
        index = taken_ / window_ * window_ + places_[taken_ % window_];
        ++taken_;
        return true;
    }

    // Takes the next cluster for a thread that asks for its work: it does not start.
    bool cancel(uint64_t& index) {
        if (!take(index)) return false;
        ++cancelled_;
        return true;
    }
    uint64_t cancelled() const { return cancelled_.load(); }

    bool is_empty() {
        const std::lock_guard guard(lock_);
        return taken_ == clusters_;
    }

private:
    void draw() {
        places_.resize(std::min(window_, clusters_ - taken_));
        std::iota(places_.begin(), places_.end(), 0);
        if (!choices_.is_shuffled()) return;
        for (std::size_t i = places_.size(); i > 1; --i) {
            std::swap(places_[i - 1], places_[choices_.below(i)]);
        }
    }

    const uint64_t clusters_;
    const uint64_t window_;
    ClusterChoices choices_;
    std::mutex lock_;
    std::atomic<uint64_t> cancelled_{0};
    uint64_t taken_ = 0;
    std::vector<uint64_t> places_;
};

}  // namespace tmaasync_emulate
