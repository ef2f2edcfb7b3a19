// The writes that the posts of signals publish.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "races/atomics.hpp"

namespace tmaasync_emulate {

// The kind of operation that changed a signal.
enum class PostedBy : uint8_t {
    kOther,  // an ordinary write, the host or inline PTX
    kPost,
    kPostReduce,
};

// The writes that a signal's posts publish, to the poster's device and to others. A wait for an
// epoch ends, in some run, with the first post that reaches it. So the waiter may rely on that post
// and earlier ones, and not on later ones that this run happens to see. Epochs only grow: a post of
// a lower epoch resets nothing.
class PostedEpochs {
public:
    struct Post {
        uint32_t epoch;
        ClusterClocks seen;  // writes before the post, and the post itself
        ClusterClocks published;
        uint32_t device;  // device of the poster
        AtomicPlace on_device;
        PostedBy by;
    };

    static bool is_reached(uint32_t seen, uint32_t epoch) {
        return static_cast<int32_t>(seen - epoch) >= 0;
    }

    // Notes the word's value before a post: an earlier post set it, or other writes of kernels or
    // the host. Returns the kind of that operation.
    PostedBy note_before(
        uint32_t value, const AtomicPlace& for_all, uint32_t device, const AtomicPlace& on_device
    ) {
        if (explains(value)) return posts_.back().by;
        posts_.clear();
        add(value, for_all, device, on_device, PostedBy::kOther);
        return PostedBy::kOther;
    }

    void add(
        uint32_t epoch,
        const AtomicPlace& for_all,
        uint32_t device,
        const AtomicPlace& on_device,
        PostedBy by
    ) {
        posts_.push_back({epoch, for_all.seen, for_all.published, device, on_device, by});
        if (posts_.size() > kKept) posts_.pop_front();
    }

    // Returns null unless posts alone have set the word.
    const Post* first_to_reach(uint32_t epoch, uint32_t value) const {
        if (!explains(value)) return nullptr;
        return &*std::find_if(posts_.begin(), posts_.end(), [&](const Post& post) {
            return is_reached(post.epoch, epoch);
        });
    }

    // The writes that posts up to this one published within a device; null if none came from there.
    const AtomicPlace* within(uint32_t device, const Post& last) const {
        const AtomicPlace* found = nullptr;
        for (const Post& post : posts_) {
            if (post.device == device) found = &post.on_device;
            if (&post == &last) break;
        }
        return found;
    }

private:
    bool explains(uint32_t value) const { return !posts_.empty() && posts_.back().epoch == value; }

    static constexpr std::size_t kKept = 64;
    std::deque<Post> posts_;
};

}  // namespace tmaasync_emulate
