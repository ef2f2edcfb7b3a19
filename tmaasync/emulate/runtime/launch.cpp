// The runtime's functions that Python calls. calls.cpp has the functions that kernels call.
#include "launch.hpp"

extern "C" TMAASYNC_EMULATE_CALL tmaasync_emulate::Report* tmaasync_emulate_launch(
    void (*kernel)(void* const*),
    const tmaasync_emulate::LaunchNumbers* numbers,
    void* const* arguments,
    const tmaasync_emulate::Interpreter* python
) {
    auto report = tmaasync_emulate::HeedingCall(*python)([&](const tmaasync_emulate::Stop& stop) {
        return tmaasync_emulate::launch(kernel, *numbers, arguments, stop);
    });
    return report.release();
}

// Launches of several devices; a device runs its own in this order.
extern "C" TMAASYNC_EMULATE_CALL tmaasync_emulate::Report* tmaasync_emulate_launch_together(
    uint32_t count,
    const tmaasync_emulate::DeviceLaunch* launches,
    const tmaasync_emulate::Interpreter* python
) {
    auto report = tmaasync_emulate::HeedingCall(*python)([&](const tmaasync_emulate::Stop& stop) {
        return tmaasync_emulate::launch_together(count, launches, stop);
    });
    return report.release();
}

extern "C" TMAASYNC_EMULATE_CALL void tmaasync_emulate_free_report(
    tmaasync_emulate::Report* report
) {
    delete static_cast<tmaasync_emulate::OwnedReport*>(report);
}

// Returns the most bytes that one cluster of a launch takes.
extern "C" TMAASYNC_EMULATE_CALL uint64_t
tmaasync_emulate_cluster_bytes(uint64_t ctas, uint64_t threads_per_cta) {
    return tmaasync_emulate::Cluster::most_bytes(ctas, threads_per_cta);
}

// Returns the load address of the function's library.
extern "C" TMAASYNC_EMULATE_CALL uint64_t
tmaasync_emulate_library_address(void (*kernel)(void* const*)) {
    return tmaasync_emulate::library_of(reinterpret_cast<const void*>(kernel)).memory.start;
}

// Returns the bytes of the static shared variables in a kernel's library.
extern "C" TMAASYNC_EMULATE_CALL uint32_t
tmaasync_emulate_static_bytes(void (*kernel)(void* const*)) {
    const auto library = tmaasync_emulate::library_of(reinterpret_cast<const void*>(kernel));
    return library.static_bytes - std::min(library.static_bytes, tmaasync_emulate::kLeadingBytes);
}
