// One launch, or launches of several devices: its clusters run on the host's cores.
#pragma once

#include <cstdint>
#include <memory>

#include "host/stop.hpp"
#include "report/owned_report.hpp"

namespace tmaasync_emulate {

// Where a kernel's library lies in memory, and the bytes of its static shared variables.
struct Library {
    Array memory{};
    Array code{};
    uint32_t static_bytes = 0;
};

// Bytes before the first static shared variable. They, the static shared variables and the array of
// dynamic shared memory are the thread_local variables (tmaasync_emulate/cuda.hpp).
constexpr uint32_t kLeadingBytes = 1024;

// Finds the library that contains the function.
Library library_of(const void* function);

// The same of one launch.
std::unique_ptr<OwnedReport> launch(
    void (*kernel)(void* const*),
    const LaunchNumbers& numbers,
    void* const* arguments,
    const Stop& stop
);

// The launches of a queue run one after the other, different queues together. Null if
// all went well.
std::unique_ptr<OwnedReport> launch_together(
    uint32_t count, const DeviceLaunch* given, const Stop& stop
);

}  // namespace tmaasync_emulate
