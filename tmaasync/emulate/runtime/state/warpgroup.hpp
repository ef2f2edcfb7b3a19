// The state of warpgroups: their wgmmas and their registers.
#pragma once

#include <array>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "races/race.hpp"
#include "state/queue.hpp"

namespace tmaasync_emulate {

struct Fiber;

// A wgmma.mma_async that was issued and has not been executed.
struct IssuedMma : Mma {
    uintptr_t site;
    Epoch epoch;
    Issued issued;
    Epoch issued_at = 0;  // the thread's epoch, if A is in registers
};

// Number of executions of a wgmma instruction by a thread, and its last site.
struct MmaCall {
    uint32_t count = 0;
    uintptr_t site = 0;
};
enum class MmaInstruction : uint8_t { kFence, kMma, kCommit, kWait };

// The wgmmas of a thread.
struct ThreadMmas {
    Queue<IssuedMma> queue;
    uint64_t issued = 0;
    Epoch commits = 0;
    std::vector<uint64_t> groups;  // `issued` at each commit
    bool has_fence = false;
    std::array<MmaCall, 4> calls{};  // by instruction: wgmma.fence, .mma_async, .commit, .wait
};

constexpr uint32_t kGroupWarps = 4;

// A setmaxnreg of a warpgroup.
struct RegisterChange {
    bool claims = false;
    uint32_t registers = 0;  // registers of each thread afterwards
    uint32_t warps = 0;      // mask of the warps that have executed it
    bool is_done = false;
    const Fiber* first = nullptr;
    uintptr_t site = 0;
};

// The facts about a warpgroup that the race detector needs.
struct WarpgroupRaces {
    Agent agent = kNoAgent;
    Clock issued;  // epochs of the threads' finished wgmmas that had A in registers
};

struct Warpgroup {
    uint64_t target = 0;
    uint64_t done = 0;
    const void* held = nullptr;  // accumulators that the buffers hold
    std::vector<Fiber*> waiters;
    uint32_t registers = 0;  // registers of each thread
    std::vector<RegisterChange> changes;
    WarpgroupRaces races;
    std::vector<uint32_t> sequences;  // sequence numbers of its wgmmas, for the trace
};

}  // namespace tmaasync_emulate
