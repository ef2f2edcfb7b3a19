#include "crash/diagnosis.hpp"

#include "crash/watchdog.hpp"
#include "schedule/caller.hpp"

namespace tmaasync_emulate {

static Reason reason_of(const Cluster& cluster, const Crash& crash) {
    switch (crash.number) {
        case SIGFPE:
            return FaultKind::kDivision;
        case SIGILL:
        case SIGTRAP:
            return FaultKind::kUnreachable;
        case SIGABRT:
            return FaultKind::kAborted;
    }
    if (is_no_shared_address(crash.address)) return FaultKind::kPointerOutsideShared;
    const bool is_guard = cluster.stacks->is_guard(crash.address);
    return {is_guard ? FaultKind::kBelowStack : FaultKind::kNoMemory, hexadecimal(crash.address)};
}

// Return addresses in the kernel's code. Without debugging information to unwind by, any word
// on the stack that points into the code may be one.
static std::vector<uintptr_t> callers_of(const Cluster& cluster, const Crash& crash) {
    constexpr std::size_t kCallers = 8;
    const Array& code = cluster.launch.memory.code;
    std::vector<uintptr_t> callers;
    for (const uintptr_t caller : crash.callers) {
        if (caller != crash.code && code.holds(caller, 1)) callers.push_back(caller);
    }
    if (!callers.empty()) return callers;
    const Reach stack = cluster.stacks->reach_of(cluster.running->number);
    if (crash.stack + kStackBytes < stack.start || crash.stack >= stack.end) return callers;
    uintptr_t at = std::max(crash.stack, stack.start) / sizeof(at) * sizeof(at);
    for (; at < stack.end && callers.size() < kCallers; at += sizeof(at)) {
        uintptr_t word;
        std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof(word));
        if (code.holds(word, 1)) callers.push_back(word);
    }
    return callers;
}

static void report_crash(Cluster& cluster, const Crash& crash) {
    auto callers = callers_of(cluster, crash);
    const uintptr_t elsewhere = callers.empty() ? cluster.running->site : 0;
    const bool is_kernel = cluster.launch.memory.code.holds(crash.code, 1);
    const uintptr_t site = is_kernel ? crash.code + 1 : elsewhere;
    report_fault(*cluster.running, reason_of(cluster, crash), site);
    cluster.failure.callers = std::move(callers);
}

void report_jump(Cluster& cluster, const Crash& crash, int jumped) {
    if (jumped != Watchdog::kJump && jumped != Watchdog::kEndless) {
        return report_crash(cluster, crash);
    }
    Fiber& running = *cluster.running;
    running.wait.instruction = "";
    running.wait.activity = Activity::kRunning;
    running.site = crash.code + 1;
    cluster.failure = {Failure::Kind::kTimeout, {}, &running, running.site};
    cluster.failure.is_endless = jumped == Watchdog::kEndless;
    cluster.failure.callers = callers_of(cluster, crash);
}

}  // namespace tmaasync_emulate
