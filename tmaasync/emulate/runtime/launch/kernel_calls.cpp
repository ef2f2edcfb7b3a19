// The functions that kernels call for their own thread and its launch.

#include "launch/thread_end.hpp"
#include "schedule/caller.hpp"

namespace tmaasync_emulate {

void fail(const char* reason) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    fail(fiber, reason);
}

void fail_at(const void* site, const char* reason) {
    Fiber& fiber = caller(reinterpret_cast<uintptr_t>(site));
    fail(fiber, reason);
}

void end_thread() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    exit_thread(fiber);
}

LaunchShape launch_shape() {
    const Launch& launch = current_fiber().cluster->launch;
    return {launch.cluster, launch.shared_bytes, launch.shared_bytes + launch.static_bytes};
}

void spin(const char* instruction) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    spin(fiber, {.instruction = instruction});
}

bool is_cooperative() {
    return TMAASYNC_EMULATE_CALLER().cluster->launch.grid_barrier != nullptr;
}

}  // namespace tmaasync_emulate
