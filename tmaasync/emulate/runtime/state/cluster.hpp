// The state of a cluster: its CTAs and threads, its copies in flight, and the scheduler's counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <tmaasync_emulate/calls.hpp>
#include <vector>

#include "host/stacks.hpp"
#include "policy/ready_threads.hpp"
#include "races/detector.hpp"
#include "shared_memory/windows.hpp"
#include "state/cta.hpp"
#include "state/launch.hpp"
#include "tensor_cores/multiply.hpp"

namespace tmaasync_emulate {

struct Worker;

struct Failure {
    using Kind = ReportKind;
    Kind kind = Kind::kNone;
    Reason reason;
    const Fiber* fiber = nullptr;
    uintptr_t site = 0;              // location in the kernel
    bool is_endless = false;         // a timeout that no budget would avoid
    std::vector<uintptr_t> callers;  // return addresses above the site, innermost first
};

// The reason why a cluster stops running for now.
enum class Halt : uint8_t {
    kNone,
    kEnded,   // or failed
    kPaused,  // before it signals another cluster
    kPolls    // all its threads that can run poll
};

// The barrier of a cluster.
struct ClusterBarrier {
    uint32_t arrived = 0;
    std::vector<Fiber*> waiters;
    View gathered;   // published in this phase
    View completed;  // published in the phase before
};

// A thread has seen that a request for another cluster failed.
struct FailedRequest {
    uint32_t thread;
    Epoch epoch;  // of the thread, with a detector
    uintptr_t site;
};

// Polls and turns of a cluster's threads.
struct Turns {
    uint64_t progress = 0;  // the cluster's part of the worker's progress
    std::size_t spins = 0;  // polls since progress was made
    std::size_t vain = 0;   // polls since anything but polls happened
    // Polls since the cluster went on, made progress or wrote to polled memory.
    std::size_t polls = 0;
    uint64_t turns = 0;   // turns since progress was made
    uint32_t pauses = 0;  // pauses left
};

// A cluster that one host thread runs. Made once, and reused for many clusters of a launch.
struct Cluster {
    Cluster(const Launch& its_launch, Worker& its_worker);
    ~Cluster();
    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;

    bool has_failed() const { return failure.kind != ReportKind::kNone; }
    uintptr_t windows() const { return reinterpret_cast<uintptr_t>(shared->at(0)); }
    uint64_t windows_bytes() const { return uint64_t{kWindowStride} * ctas.size(); }

    Launch launch;
    Worker* worker;
    std::unique_ptr<Stacks> stacks;
    std::unique_ptr<Windows> shared;
    std::vector<Fiber> fibers;
    std::vector<Cta> ctas;
    std::unique_ptr<MmaBuffers> mma_buffers;
    std::unique_ptr<Detector> detector;         // null unless the launch is searched for races
    std::unique_ptr<TensorRaces> tensor_races;  // null without a detector
    std::unique_ptr<Recorder> recorder;         // null without a trace
    uint64_t index = 0;     // number in the grid, or in all grids that run together
    uint32_t first_sm = 0;  // of CTA 0, where launch.sm_columns counts them
    uint32_t live = 0;      // threads that have not ended
    Choices choices;
    Context scheduler{};
    Fiber* running = nullptr;  // the running thread, or the issuer of the copy that lands
    ReadyThreads ready;
    Turns turns;
    std::deque<Flight> flights;
    std::vector<LateStore> late_stores;
    ClusterBarrier barrier;
    std::vector<FailedRequest> failed_requests;
    Halt halt = Halt::kNone;
    Failure failure;
};

// The most bytes that a cluster of a launch takes, with stacks of full depth.
inline uint64_t most_cluster_bytes(
    uint64_t ctas, uint64_t threads_per_cta, bool has_tensor_memory
) {
    constexpr uint64_t kThreadBytes = kStackBytes + sizeof(Fiber);
    constexpr uint64_t kCtaBytes = kWindowBytes + kWindowBytes / 8 * sizeof(int32_t);
    const uint64_t tensor_bytes = has_tensor_memory ? sizeof(TensorMemory) : 0;
    const uint64_t cta_bytes = kCtaBytes + tensor_bytes + threads_per_cta * kThreadBytes;
    return sizeof(MmaBuffers) + ctas * cta_bytes;
}

}  // namespace tmaasync_emulate
