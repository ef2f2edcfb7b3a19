// Launches as Python calls them: one, or several devices together.

#include <link.h>

#include <span>

#include "crash/watchdog.hpp"
#include "host/interrupts.hpp"
#include "host/process_mutex.hpp"
#include "launch/grid.hpp"
#include "memory/kernel_heap.hpp"
#include "report/report.hpp"
#include "state/cluster.hpp"
#include "verify/sync_order.hpp"

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

static uint32_t static_bytes_of(uint64_t thread_local_bytes) {
    if (thread_local_bytes <= kLeadingBytes + kMaxDynamicBytes) return 0;
    return static_cast<uint32_t>(thread_local_bytes - kMaxDynamicBytes);
}

static Library found_library(const void* function) {
    struct Found {
        uintptr_t function;
        Library library;
    } found{reinterpret_cast<uintptr_t>(function), {}};
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* data) {
            auto& found = *static_cast<Found*>(data);
            uintptr_t end = info->dlpi_addr;
            uint32_t static_bytes = 0;
            Array code{};
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                const auto& header = info->dlpi_phdr[i];
                if (header.p_type == PT_TLS) static_bytes = static_bytes_of(header.p_memsz);
                if (header.p_type != PT_LOAD) continue;
                if (header.p_flags & PF_X) {
                    code = {info->dlpi_addr + header.p_vaddr, header.p_memsz};
                }
                end = std::max(end, info->dlpi_addr + header.p_vaddr + header.p_memsz);
            }
            if (found.function < info->dlpi_addr || found.function >= end) return 0;
            found.library = {{info->dlpi_addr, end - info->dlpi_addr}, code, static_bytes};
            return 1;
        },
        &found
    );
    return found.library;
}

// Returns the library that contains the function. It is never unloaded, and finding it took 2 us.
static Library library_of(const void* function) {
    static auto& mutex = *new ProcessMutex;
    static auto& known = *new std::map<const void*, Library>;
    const std::lock_guard lock(mutex);
    const auto [place, is_new] = known.try_emplace(function);
    if (is_new) place->second = found_library(function);
    return place->second;
}

static uint3 sides_of(const Extents& extents) {
    return {extents.x, extents.y, extents.z};
}

static Launch launch_from(
    void (*kernel)(void* const*),
    const LaunchNumbers& numbers,
    void* const* arguments,
    GridRaces& races,
    GridTrace& trace,
    const Stop& stop
) {
    const Library library = library_of(reinterpret_cast<const void*>(kernel));
    return {
        kernel,
        arguments,
        sides_of(numbers.grid),
        sides_of(numbers.block),
        sides_of(numbers.cluster),
        numbers.shared_bytes,
        numbers.policy,
        numbers.seed,
        numbers.budget_seconds,
        {{numbers.array, numbers.array + numbers.arrays},
         library.memory,
         library.code,
         numbers.written,
         numbers.fresh,
         {{numbers.subscript, numbers.subscripts}, numbers.array, library.memory.start},
         numbers.notes},
        library.static_bytes,
        numbers.registers,
        numbers.has_wide_maps != 0,
        numbers.sms,
        numbers.shares_columns != 0,
        numbers.searched_words ? &races : nullptr,
        numbers.log ? &trace : nullptr,
        numbers.grid_barrier,
        &stop,
        {numbers.tolerated, numbers.notes, library.memory},
    };
}

// Run the grid. Returns null if all went well.
static std::unique_ptr<OwnedReport> report_of_run(Grid& grid) {
    const CrashHandler crashes;
    const Watchdog::Handler timeouts;
    const uint32_t before = Interrupts::count();
    std::unique_ptr<OwnedReport> report = grid.run();
    if (Interrupts::count() == before) return report;
    return std::make_unique<OwnedReport>(ReportKind::kInterrupted);
}

// The records of launches that are verified or repeated.
class Records {
public:
    Records(const LaunchNumbers& numbers, GridRaces& races, std::span<Launch> launches)
        : numbers_(numbers) {
        if (numbers.interleaving) {
            uint64_t threads = 0;
            for (const Launch& one : launches) threads += one.all_threads();
            order_.emplace(*numbers.interleaving, threads);
            races.lost.emplace();
        }
        // Runs that repeat each other are one launch for tensor maps that it edits.
        if (numbers.undo) {
            if (numbers.undo->launch) races.launch = numbers.undo->launch;
            numbers.undo->launch = races.launch;
        }
        for (Launch& one : launches) {
            if (order_) one.order = &*order_;
            if (numbers.undo) one.memory.undo = &undo_;
        }
    }

    void hand_over() {
        if (order_) order_->hand_over();
        if (numbers_.undo) undo_.hand_over(*numbers_.undo);
    }

private:
    const LaunchNumbers& numbers_;
    std::optional<SyncOrder> order_;
    Undo undo_;
};

static void note_search(RuleNotes& notes, const GridRaces& races) {
    notes.is_unsearched = races.is_over();
    notes.has_forgotten = races.lacked_room && !races.lost;
}

static std::unique_ptr<OwnedReport> launch(
    void (*kernel)(void* const*),
    const LaunchNumbers& numbers,
    void* const* arguments,
    const Stop& stop
) {
    GridRaces races{numbers.searched_words};
    GridTrace trace;
    Launch whole = launch_from(kernel, numbers, arguments, races, trace, stop);
    Records records(numbers, races, {&whole, 1});
    Grid grid(whole, numbers.workers, numbers.resident);
    std::unique_ptr<OwnedReport> report = report_of_run(grid);
    if (numbers.log) *numbers.log = trace.copied();
    records.hand_over();
    note_search(*numbers.notes, races);
    if (numbers.searched_words) {
        races.shadow.for_each_written([&](uintptr_t address) {
            whole.memory.note_written(address);
        });
    }
    return report;
}

// The launches of a queue run one after the other, different queues together.
static std::unique_ptr<OwnedReport> launch_together(
    uint32_t count, const DeviceLaunch* given, const Stop& stop
) {
    GridRaces races{given[0].numbers->searched_words};
    std::vector<GridTrace> traces(count);
    std::vector<LaunchHistory> histories(count);
    Posts posts;
    std::vector<Launch> launches;
    launches.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
        const DeviceLaunch& one = given[i];
        Launch launch =
            launch_from(one.kernel, *one.numbers, one.arguments, races, traces[i], stop);
        if (i > 0) launch.number_after(launches.back());
        launch.history = &histories[i];
        if (launch.trace) launch.posts = &posts;
        launches.push_back(std::move(launch));
    }
    Records records(*given[0].numbers, races, launches);
    Grid grid;
    std::map<uint32_t, const Lane*> last;
    for (uint32_t i = 0; i < count; ++i) {
        const Lane*& previous = last[given[i].queue];
        races.spans.push_back({launches[i].first_cluster, given[i].device, &launches[i]});
        previous = grid.add(launches[i], given[i].numbers->resident, previous);
    }
    std::unique_ptr<OwnedReport> report = report_of_run(grid);
    records.hand_over();
    for (uint32_t i = 0; i < count; ++i) {
        if (given[i].numbers->log) *given[i].numbers->log = traces[i].copied();
        note_search(*given[i].numbers->notes, races);
    }
    return report;
}

// --- the functions that Python calls
// --------------------------------------------------------------

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

// Exchanges the words and blocks of a log with those in memory: it undoes the run, and again redoes
// it.
extern "C" TMAASYNC_EMULATE_CALL void tmaasync_emulate_exchange(UndoLog* log) {
    for (HeldWord& one : std::span(log->word, log->words)) {
        std::swap(one.word, *reinterpret_cast<uint64_t*>(one.address));
    }
    for (HeldBlock& one : std::span(log->block, log->blocks)) {
        one.is_held = KernelHeap::set_held(one.address, one.is_held != 0);
    }
}

// Gives back the blocks of a log that are free.
extern "C" TMAASYNC_EMULATE_CALL void tmaasync_emulate_drop_blocks(const UndoLog* log) {
    for (const HeldBlock& one : std::span(log->block, log->blocks)) KernelHeap::drop(one.address);
}

extern "C" TMAASYNC_EMULATE_CALL void tmaasync_emulate_free_report(Report* report) {
    delete static_cast<OwnedReport*>(report);
}

// Returns the most bytes that one cluster of a launch takes.
extern "C" TMAASYNC_EMULATE_CALL uint64_t tmaasync_emulate_cluster_bytes(
    uint64_t ctas, uint64_t threads_per_cta, uint64_t has_tensor_memory
) {
    return most_cluster_bytes(ctas, threads_per_cta, has_tensor_memory);
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
