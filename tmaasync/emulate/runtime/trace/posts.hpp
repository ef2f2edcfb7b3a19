// The posts of signals in the trace.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace tmaasync_emulate {

// The posts of signals, in launches that run together. Each cluster has its own clock. A wait for a
// signal sets the clock to a time after the first post that reached the epoch (Lamport clocks).
class Posts {
public:
    struct Post {
        uint32_t epoch;
        uint64_t time;
        uint32_t sequence;
    };

    uint32_t add(uintptr_t word, uint32_t epoch, uint64_t time) {
        of_word_[word].push_back({epoch, time, count_});
        return count_++;
    }

    // Returns null if the host wrote the epoch.
    const Post* first_to_reach(uintptr_t word, uint32_t epoch) const {
        const auto found = of_word_.find(word);
        if (found == of_word_.end()) return nullptr;
        for (const Post& post : found->second) {
            if (static_cast<int32_t>(post.epoch - epoch) >= 0) return &post;
        }
        return nullptr;
    }

private:
    std::map<uintptr_t, std::vector<Post>> of_word_;
    uint32_t count_ = 0;
};

}  // namespace tmaasync_emulate
