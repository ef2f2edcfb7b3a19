// Happens-before sets, kinds of accesses apart.
#pragma once

#include "races/clocks.hpp"

namespace tmaasync_emulate {

// The order of tcgen05's asynchronous operations, as far as a thread or a barrier knows it:
// operations that are complete, and operations that were issued, which suffices for pairs that the
// tensor core executes in order (PTX ISA, "Memory Consistency Model for tcgen05 operations").
struct TensorClocks {
    Clock completed;
    Clock issued;

    void join(const TensorClocks& other) {
        completed.join(other.completed);
        issued.join(other.issued);
    }
};

// The happens-before set of a thread, or the set that a barrier publishes.
struct View {
    // Out of line: inlined, they took a fifth of the time to compile the runtime.
    View();
    View(const View&);
    View(View&&) noexcept;
    View& operator=(const View&);
    View& operator=(View&&) noexcept;
    ~View();

    void join(const View& other);

    // Joins the parts that a wait without acquire gains.
    void join_relaxed(const View& other);

    // Joins the parts that an arrival without release publishes: only accesses of asynchronous
    // agents.
    void join_async_agents(const View& other, Agent first);

    // Joins what other clusters did, and of it what their writers made visible to TMA.
    void join_others(const ClusterClocks& done, const ClusterClocks& published);

    Clock seen;  // accesses that happen before the thread's next access
    // Accesses that happen before its next copy or wgmma: more than `seen` after a relaxed wait.
    Clock issued_after;
    Clock published[2];  // ordinary writes visible to the async proxy, by space
    // Ordinary writes, tensor map edits among them, that a tensormap fence released.
    Clock maps_released;
    // Released edits of each map that a second fence acquired: TMA sees them.
    MapClocks maps_acquired;
    Clock arrivals;        // relaxed arrivals whose phase was waited for; they order nothing else
    Clock fenced;          // ordinary writes that any thread's fence ordered for all clusters
    ClusterClocks others;  // accesses of other clusters that happen before
    ClusterClocks others_acquired;   // accesses of `others` that a fence followed
    ClusterClocks others_published;  // accesses of `others` that a proxy fence made visible to TMA
    // For several devices: accesses covered by a fence at system scope, and ordinary writes of
    // peers that their writers made visible to TMA.
    Clock fenced_for_all;
    ClusterClocks others_fenced_for_all;
    ClusterClocks offered;
    // Operations of tcgen05 that a tcgen05.fence::before_thread_sync, or a commit, published.
    TensorClocks tensor;
};

}  // namespace tmaasync_emulate
