// The functions that Python calls.

#include "host/interrupts.hpp"
#include "launch/launch.hpp"
#include "state/cluster.hpp"

namespace tmaasync_emulate {

extern "C" TMAASYNC_EMULATE_CALL Report* tmaasync_emulate_launch(
    void (*kernel)(void* const*),
    const LaunchNumbers* numbers,
    void* const* arguments,
    const Interpreter* python
) {
    auto report = HeedingCall(*python)([&](const Stop& stop) {
        return launch(kernel, *numbers, arguments, stop);
    });
    return report.release();
}

// Launches of several devices; a device runs its own in this order.
extern "C" TMAASYNC_EMULATE_CALL Report* tmaasync_emulate_launch_together(
    uint32_t count, const DeviceLaunch* launches, const Interpreter* python
) {
    auto report = HeedingCall(*python)([&](const Stop& stop) {
        return launch_together(count, launches, stop);
    });
    return report.release();
}

extern "C" TMAASYNC_EMULATE_CALL void tmaasync_emulate_free_report(Report* report) {
    delete static_cast<OwnedReport*>(report);
}

// Returns the most bytes that one cluster of a launch takes.
extern "C" TMAASYNC_EMULATE_CALL uint64_t
tmaasync_emulate_cluster_bytes(uint64_t ctas, uint64_t threads_per_cta) {
    return most_cluster_bytes(ctas, threads_per_cta);
}

// Returns the load address of the function's library.
extern "C" TMAASYNC_EMULATE_CALL uint64_t
tmaasync_emulate_library_address(void (*kernel)(void* const*)) {
    return library_of(reinterpret_cast<const void*>(kernel)).memory.start;
}

// Returns the bytes of the static shared variables in a kernel's library.
extern "C" TMAASYNC_EMULATE_CALL uint32_t
tmaasync_emulate_static_bytes(void (*kernel)(void* const*)) {
    const auto library = library_of(reinterpret_cast<const void*>(kernel));
    return library.static_bytes - std::min(library.static_bytes, kLeadingBytes);
}

}  // namespace tmaasync_emulate
