// The functions that kernels call for their own thread and its launch.

#include "launch/thread_end.hpp"
#include "schedule/caller.hpp"

namespace tmaasync_emulate {

static Reason reason_of(FaultKind kind, const Mention* facts, uint32_t count) {
    Reason reason(kind);
    for (const Mention* fact = facts; fact != facts + count; ++fact) {
        const bool is_text = fact->kind == MentionKind::kText;
        is_text ? reason.add(reinterpret_cast<const char*>(fact->value)) : reason.add(*fact);
    }
    return reason;
}

void fail(FaultKind kind, const Mention* facts, uint32_t count) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    fail(fiber, reason_of(kind, facts, count));
}

void fail_at(const void* site, FaultKind kind, const Mention* facts, uint32_t count) {
    Fiber& fiber = caller(reinterpret_cast<uintptr_t>(site));
    fail(fiber, reason_of(kind, facts, count));
}

void end_thread() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    exit_thread(fiber);
}

LaunchShape launch_shape() {
    const Launch& launch = current_fiber().cluster->launch;
    const uint32_t bytes = launch.shared_bytes + launch.static_bytes;
    return {launch.cluster, launch.shared_bytes, bytes, launch.sms};
}

void spin(const char* instruction) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    spin(fiber, {.instruction = instruction});
}

bool is_cooperative() {
    return TMAASYNC_EMULATE_CALLER().cluster->launch.grid_barrier != nullptr;
}

}  // namespace tmaasync_emulate
