// One launch: its clusters run on the host's cores, and a failure is reported as JSON.
#pragma once

#include <link.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include "grid.hpp"

namespace tmaasync_emulate {

// --- the report ----------------------------------------------------------------------------------

class Report {
public:
    // `resident` clusters wait while others have not started; 0 if all have.
    explicit Report(
        const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others
    )
        : cluster_(cluster), others_(others) {
        const Failure& failure = cluster.failure();
        if (failure.kind == Failure::Kind::kRace) {
            race(cluster.detector()->race());
            return;
        }
        static constexpr const char* kKinds[] = {"", "fault", "deadlock", "race", "timeout"};
        out_ << "{\"kind\": \"" << kKinds[static_cast<int>(failure.kind)] << "\", \"reason\": \"";
        escape(failure.reason.text());
        out_ << "\"";
        if (failure.is_endless) out_ << ", \"is_endless\": true";
        if (failure.fiber) {
            callers();
            out_ << ", \"address\": " << address_in_library(failure.site)
                 << ", \"thread\": " << failure.fiber->index << ", \"role\": ";
            role(*failure.fiber->warp);
            out_ << ", \"block\": ";
            block(*failure.fiber->cta);
        }
        out_ << ", \"launch\": " << cluster.launch().number << ", \"waits\": [";
        if (failure.kind != Failure::Kind::kFault) waits();
        out_ << "]";
        if (failure.kind != Failure::Kind::kFault) {
            warps();
            barriers();
        }
        if (resident) {
            const Launch& launch = cluster.launch();
            out_ << ", \"resident\": " << resident * launch.cluster_ctas()
                 << ", \"grid\": " << launch.clusters() * launch.cluster_ctas();
        }
        out_ << "}";
    }

    Words text() const { return out_; }

private:
    void escape(const char* words) {
        for (; *words; ++words) {
            if (*words == '"' || *words == '\\') out_ << '\\';
            out_ << (*words == '\n' ? ' ' : *words);
        }
    }

    void callers() {
        out_ << ", \"callers\": [";
        const char* separator = "";
        for (const uintptr_t site : cluster_.failure().callers) {
            out_ << separator << address_in_library(site);
            separator = ", ";
        }
        out_ << "]";
    }

    void role(const Warp& warp) {
        out_ << '"';
        escape(warp.role);
        out_ << '"';
    }

    // Every warp of the cluster, by its number.
    void warps() {
        out_ << ", \"warps\": [";
        const char* separator = "";
        for (const Cta& cta : cluster_.ctas()) {
            for (std::size_t i = 0; i < cta.warps.size(); ++i) {
                out_ << separator << "{\"block\": ";
                block(cta);
                out_ << ", \"warp\": " << i << ", \"role\": ";
                role(cta.warps[i]);
                out_ << ", \"has_ended\": " << (cta.warps[i].live_lanes ? "false" : "true") << "}";
                separator = ", ";
            }
        }
        out_ << "]";
    }

    // Every mbarrier of the cluster, and which warps arrived and waited on it.
    void barriers() {
        out_ << ", \"barriers\": [";
        const char* separator = "";
        for (const Cta& cta : cluster_.ctas()) {
            for (const Mbarrier& barrier : cta.barriers) {
                out_ << separator << "{\"block\": ";
                block(cta);
                out_ << ", \"offset\": " << barrier.offset;
                numbers("arrived", barrier.arrived.warps());
                numbers("arrivers", barrier.arrivers.warps());
                numbers("waited", barrier.waited.warps());
                out_ << "}";
                separator = ", ";
            }
        }
        out_ << "]";
    }

    void numbers(const char* name, const std::vector<uint32_t>& values) {
        out_ << ", \"" << name << "\": [";
        for (std::size_t i = 0; i < values.size(); ++i) out_ << (i ? ", " : "") << values[i];
        out_ << "]";
    }

    void block(const Cta& cta) {
        out_ << "[" << cta.block.x << ", " << cta.block.y << ", " << cta.block.z << "]";
    }

    // Waits of this cluster first; between launches of several devices, of all.
    void waits() {
        waits_of(cluster_, "");
        for (const Cluster* other : others_) {
            if (other != &cluster_) waits_of(*other, ", ");
        }
    }

    // Threads of one CTA that wait for the same thing are one entry.
    void waits_of(const Cluster& cluster, const char* separator) {
        using Key = std::tuple<
            const Cta*, Wait::Kind, const char*, const Cta*, uint32_t, uint32_t, uint32_t,
            uintptr_t, std::string_view>;
        std::map<Key, std::vector<const Fiber*>> entries;
        std::vector<Key> order;
        for (const Fiber& fiber : cluster.fibers()) {
            if (fiber.is_done) continue;
            const Wait& wait = fiber.wait;
            const Key key{fiber.cta,   wait.kind,  wait.instruction, wait.cta,        wait.number,
                          wait.parity, wait.epoch, wait.polled,      fiber.warp->role};
            if (entries[key].empty()) order.push_back(key);
            entries[key].push_back(&fiber);
        }
        for (std::size_t i = 0; i < order.size(); ++i) {
            out_ << (i ? ", " : separator);
            entry(entries[order[i]]);
        }
    }

    void entry(const std::vector<const Fiber*>& fibers) {
        Wait wait = fibers[0]->wait;
        if (*wait.instruction == 0) wait.instruction = "is ready to run";
        const Launch& launch = fibers[0]->cluster->launch();
        out_ << "{\"launch\": " << launch.number << ", \"block\": ";
        block(*fibers[0]->cta);
        out_ << ", \"instruction\": \"" << wait.instruction
             << "\", \"address\": " << launch.address_in_library(fibers[0]->site)
             << ", \"threads\": [";
        for (std::size_t i = 0; i < fibers.size(); ++i) out_ << (i ? ", " : "") << fibers[i]->index;
        out_ << "], \"role\": ";
        role(*fibers[0]->warp);
        if (wait.polled) polled(*fibers[0]->cluster, wait.polled);
        if (wait.kind == Wait::Kind::kMbarrier) mbarrier(wait);
        if (wait.kind == Wait::Kind::kNamedBarrier) named(wait);
        if (wait.kind == Wait::Kind::kSignal) signal(wait);
        out_ << "}";
    }

    void polled(const Cluster& cluster, uintptr_t address) {
        const uintptr_t offset = address - cluster.windows();
        const bool is_shared = offset < cluster.windows_bytes();
        out_ << ", \"polled\": {\"memory\": \"" << (is_shared ? "shared" : "global")
             << "\", \"start\": " << (is_shared ? offset % kWindowBytes : address) << "}";
    }

    void race(const Race& race) {
        static constexpr const char* kSpaces[] = {"shared", "global", "registers"};
        out_ << "{\"kind\": \"race\", \"memory\": \"" << kSpaces[static_cast<int>(race.place.space)]
             << "\", \"rank\": " << race.place.rank << ", \"start\": " << race.place.start
             << ", \"facts\": [";
        const bool is_one_copy = race.first.cluster == race.second.cluster &&
                                 race.first.order == race.second.order && race.first.is_async;
        const std::pair<const char*, bool> facts[] = {
            {"lacks_fence", race.lacks_proxy_fence},
            {"was_unwritten", race.was_unwritten},
            {"is_stored", race.is_stored},
            {"is_one_copy", is_one_copy},
            {"has_relaxed_arrival", race.has_relaxed_arrival},
            {"is_between_devices", race.is_between_devices},
            {"is_known", race.is_known},
            {"lacks_acquire", race.lacks_acquire},
            {"lacks_reader_fence", race.lacks_reader_fence},
        };
        const char* separator = "";
        for (const auto& [name, holds] : facts) {
            if (!holds) continue;
            out_ << separator << '"' << name << '"';
            separator = ", ";
        }
        out_ << "], \"first\": ";
        access(race.first);
        out_ << ", \"second\": ";
        access(race.second);
        out_ << "}";
    }

    void access(const Access& access) {
        const Launch& launch = launch_of(access);
        const uint64_t index = access.cluster - launch.first_cluster;
        const uint3 at = launch.block_of(index, access.thread / launch.threads());
        out_ << "{\"launch\": " << launch.number << ", \"block\": [" << at.x << ", " << at.y << ", "
             << at.z << "], \"thread\": " << access.thread % launch.threads();
        access_names(access);
        out_ << ", \"operation\": " << static_cast<int>(access.operation)
             << ", \"writes\": " << (access.is_write ? "true" : "false")
             << ", \"bytes\": " << static_cast<int>(access.bytes)
             << ", \"address\": " << launch.address_in_library(access.site) << "}";
    }

    const Launch& launch_of(const Access& access) const {
        const Launch* found = &cluster_.launch();
        if (!found->races) return *found;
        for (const LaunchSpan& span : found->races->spans) {
            if (span.first <= access.cluster) found = span.launch;
        }
        return *found;
    }

    // The role of its warp, and the mbarrier that counts a load. Of other clusters nothing is
    // known.
    void access_names(const Access& access) {
        if (access.cluster != cluster_.index()) return;
        out_ << ", \"role\": ";
        role(*cluster_.fibers()[access.thread].warp);
        for (const Cta& cta : cluster_.ctas()) {
            for (const Mbarrier& barrier : cta.barriers) {
                if (barrier.agent == kNoAgent || barrier.agent != access.agent) continue;
                out_ << ", \"barrier\": " << barrier.offset;
            }
        }
    }

    uintptr_t address_in_library(uintptr_t site) const {
        return cluster_.launch().address_in_library(site);
    }

    void mbarrier(const Wait& wait) {
        for (const Mbarrier& barrier : wait.cta->barriers) {
            if (barrier.offset != wait.number) continue;
            out_ << ", \"barrier\": {\"kind\": \"mbarrier\", \"offset\": " << barrier.offset
                 << ", \"block\": ";
            block(*wait.cta);
            out_ << ", \"parity\": " << wait.parity << ", \"phase\": " << barrier.phase
                 << ", \"arrivals\": " << barrier.count
                 << ", \"missing_arrivals\": " << barrier.pending
                 << ", \"missing_bytes\": " << barrier.bytes
                 << ", \"expected_bytes\": " << barrier.expected
                 << ", \"delivered_bytes\": " << barrier.expected - barrier.bytes
                 << ", \"landings\": [";
            for (std::size_t i = 0; i < barrier.landings.size(); ++i) {
                out_ << (i ? ", " : "") << barrier.landings[i].shared;
            }
            out_ << "]}";
        }
    }

    void signal(const Wait& wait) {
        out_ << ", \"signal\": {\"number\": " << wait.number << ", \"rank\": " << wait.rank
             << ", \"epoch\": " << wait.epoch << ", \"seen\": " << wait.seen << "}";
    }

    void named(const Wait& wait) {
        const NamedBarrier& barrier = wait.cta->named[wait.number];
        const uint32_t needed = barrier.threads ? barrier.threads : wait.cta->live;
        out_ << ", \"barrier\": {\"kind\": \"named\", \"number\": " << wait.number
             << ", \"arrivals\": " << needed
             << ", \"missing_arrivals\": " << needed - barrier.arrived << "}";
    }

    const Cluster& cluster_;
    const std::vector<const Cluster*>& others_;
    Words out_;
};

inline Words report_of(
    const Cluster& cluster, uint64_t resident, const std::vector<const Cluster*>& others
) {
    return Report(cluster, resident, others).text();
}

// --- a launch ------------------------------------------------------------------------------------

struct LaunchNumbers {
    uint3 grid;
    uint3 block;
    uint3 cluster;
    uint32_t shared_bytes;
    uint32_t policy;
    uint32_t workers;
    uint32_t resident;  // clusters at once at most
    uint64_t seed;
    double budget_seconds;
    uint64_t arrays;
    const Array* array;
    uint32_t registers;           // of each thread; 0: setmaxnreg is not checked
    uint32_t stops_at_interrupt;  // whether SIGINT stops the launch
    uint64_t searched_words;      // of memory accesses whose races are looked for
    EventLog* log;                // null: no trace
    uint8_t* written;             // of each array: set if this launch writes to it
    uint32_t* grid_barrier;       // of a cooperative launch; null in others
    const uint8_t* fresh;  // of each array: whether the launch before wrote to it; null: no matter
};

// A kernel's library: its memory, its code, and the bytes of its static shared variables.
struct Library {
    Array memory{};
    Array code{};
    uint32_t static_bytes = 0;
};

// Bytes before the first static shared variable. They, the static shared variables and the array of
// dynamic shared memory are the thread_local variables (tmaasync_emulate/cuda.hpp).
constexpr uint32_t kLeadingBytes = 1024;

inline uint32_t static_bytes_of(uint64_t thread_local_bytes) {
    if (thread_local_bytes <= kLeadingBytes + kMaxDynamicBytes) return 0;
    return static_cast<uint32_t>(thread_local_bytes - kMaxDynamicBytes);
}

// Finds the library that contains the function.
inline Library library_of(const void* function) {
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

inline Launch launch_from(
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
        numbers.grid,
        numbers.block,
        numbers.cluster,
        numbers.shared_bytes,
        static_cast<Policy>(numbers.policy),
        numbers.seed,
        numbers.budget_seconds,
        {numbers.array, numbers.array + numbers.arrays},
        library.memory,
        library.code,
        library.static_bytes,
        numbers.registers,
        numbers.searched_words ? &races : nullptr,
        numbers.log ? &trace : nullptr,
        numbers.written,
        numbers.fresh,
        numbers.grid_barrier,
        &stop,
    };
}

// Runs the grid. Returns null if all went well, else a report to be released with free().
inline char* report_of_run(Grid& grid, const LaunchNumbers& numbers) {
    const CrashHandler crashes;
    const Watchdog::Handler timeouts;
    std::optional<Interrupts::Handler> interrupts;
    if (numbers.stops_at_interrupt) interrupts.emplace();
    const uint32_t before = Interrupts::count();
    const Words report = grid.run();
    if (Interrupts::count() != before) return strdup("{\"kind\": \"interrupted\"}");
    return report.is_empty() ? nullptr : strdup(report.text());
}

// Runs one launch. Returns null if all went well, else a report to be released with free().
inline char* launch(
    void (*kernel)(void* const*),
    const LaunchNumbers& numbers,
    void* const* arguments,
    const Stop& stop
) {
    GridRaces races{numbers.searched_words};
    GridTrace trace;
    const Launch whole = launch_from(kernel, numbers, arguments, races, trace, stop);
    Grid grid(whole, numbers.workers, numbers.resident);
    char* const report = report_of_run(grid, numbers);
    if (numbers.log) *numbers.log = trace.copied();
    if (numbers.searched_words) {
        races.shadow.for_each_written([&](uintptr_t address) { whole.note_written(address); });
    }
    return report;
}

// --- launches of several devices -----------------------------------------------------------------

// One of several launches that run together.
struct DeviceLaunch {
    void (*kernel)(void* const*);
    const LaunchNumbers* numbers;
    void* const* arguments;
    uint32_t device;
    uint32_t queue;  // a stream of the device
};

// Runs several launches: the launches of a queue one after the other, different queues together.
// Returns null if all went well, else a report to be released with free().
inline char* launch_together(uint32_t count, const DeviceLaunch* given, const Stop& stop) {
    GridRaces races{given[0].numbers->searched_words};
    std::vector<GridTrace> traces(count);
    std::vector<LaunchHistory> histories(count);
    Posts posts;
    std::vector<Launch> launches;
    launches.reserve(count);
    uint32_t clusters = 0;
    for (uint32_t i = 0; i < count; ++i) {
        const DeviceLaunch& one = given[i];
        Launch launch =
            launch_from(one.kernel, *one.numbers, one.arguments, races, traces[i], stop);
        launch.number = i;
        launch.first_cluster = clusters;
        launch.history = &histories[i];
        if (launch.trace) launch.posts = &posts;
        clusters += static_cast<uint32_t>(launch.clusters());
        launches.push_back(std::move(launch));
    }
    Grid grid;
    std::map<uint32_t, const Lane*> last;
    for (uint32_t i = 0; i < count; ++i) {
        const Lane*& previous = last[given[i].queue];
        races.spans.push_back({launches[i].first_cluster, given[i].device, &launches[i]});
        previous = grid.add(launches[i], given[i].numbers->resident, previous);
    }
    char* const report = report_of_run(grid, *given[0].numbers);
    for (uint32_t i = 0; i < count; ++i) {
        if (given[i].numbers->log) *given[i].numbers->log = traces[i].copied();
    }
    return report;
}

}  // namespace tmaasync_emulate
