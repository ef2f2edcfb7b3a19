// The order of tcgen05's asynchronous operations, as far as a thread or a barrier knows it.
#pragma once

#include "races/clocks.hpp"

namespace tmaasync_emulate {

// Operations that are complete, and operations that were issued, which suffices for pairs that the
// tensor core executes in order (PTX ISA, "Memory Consistency Model for tcgen05 operations").
struct TensorClocks {
    Clock completed;
    Clock issued;

    void join(const TensorClocks& other) {
        completed.join(other.completed);
        issued.join(other.issued);
    }
};

}  // namespace tmaasync_emulate
