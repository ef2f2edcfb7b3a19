// Threads, warps, CTAs and the cluster they form, and the scheduler that runs one cluster.
#pragma once

#include <vector_types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
#include "crash.hpp"
#include "fiber.hpp"
#include "interrupts.hpp"
#include "kept_memory.hpp"
#include "loops.hpp"
#include "mma_multiply.hpp"
#include "poison.hpp"
#include "policy.hpp"
#include "queue.hpp"
#include "races.hpp"
#include "stalls.hpp"
#include "tma_engine.hpp"
#include "trace.hpp"
#include "watchdog.hpp"
#include "words.hpp"

namespace tmaasync_emulate {

class Cluster;
struct Cta;

// --- a launch ------------------------------------------------------------------------------------

struct Launch {
    void (*kernel)(void* const* arguments);
    void* const* arguments;
    uint3 grid;
    uint3 block;
    uint3 cluster;
    uint32_t shared_bytes;
    Policy policy;
    uint64_t seed;
    double budget_seconds;
    std::vector<Array> arrays;  // arrays of the launch, and its arguments
    Array library{};            // code and data of the kernel
    Array code{};               // instructions of the kernel
    uint32_t static_bytes = 0;  // bytes of static shared variables
    uint32_t registers = 0;     // registers of each thread, if setmaxnreg may change them
    GridRaces* races = nullptr;
    GridTrace* trace = nullptr;
    uint8_t* written = nullptr;  // for each array, whether this launch writes to it
    // Null, or for each array whether the launch before wrote to it, so that this one must wait.
    const uint8_t* fresh = nullptr;
    uint32_t* grid_barrier = nullptr;  // null unless the launch is cooperative
    const Stop* stop = nullptr;
    // Members of a launch that runs together with launches of other devices.
    uint32_t number = 0;
    uint32_t first_cluster = 0;
    LaunchHistory* history = nullptr;
    Posts* posts = nullptr;     // null without a trace; with one, events take time
    uint64_t begins_after = 0;  // trace time at which the device's launch before ended

    // An address farther from a pointer than this is not part of the pointer's array.
    static constexpr uint64_t kFarBytes = uint64_t{1} << 32;
    // Linux links executables from here on, and their heap follows. Lower numbers are not pointers.
    static constexpr uint64_t kLowestPointer = uint64_t{1} << 22;

    static uint32_t count(uint3 extents) { return extents.x * extents.y * extents.z; }
    uint32_t threads() const { return count(block); }
    uint32_t cluster_ctas() const { return count(cluster); }
    // Static variables lie after the dynamic memory.
    uint32_t dynamic_bytes() const {
        return (shared_bytes + kStaticAlignment - 1) / kStaticAlignment * kStaticAlignment;
    }
    uint32_t window_bytes() const { return dynamic_bytes() + static_bytes; }
    uint3 block_of(uint64_t index, uint32_t rank) const {
        const uint3 size = cluster;
        const uint64_t across = grid.x / size.x, down = grid.y / size.y;
        return {
            static_cast<uint32_t>(index % across) * size.x + rank % size.x,
            static_cast<uint32_t>(index / across % down) * size.y + rank / size.x % size.y,
            static_cast<uint32_t>(index / across / down) * size.z + rank / size.x / size.y,
        };
    }
    bool may_hold(uintptr_t address, uint64_t bytes) const {
        for (const Array& array : arrays) {
            if (array.holds(address, bytes)) return true;
        }
        const Reach reach = reach_of_pointer_to(address);
        return reach.end > address && bytes <= reach.end - address;
    }
    // The array that holds the address, or else the memory that a pointer leads to; empty if none.
    Reach reach_at(uintptr_t address) const {
        for (const Array& array : arrays) {
            if (array.holds(address, 1)) return {array.start, array.start + array.bytes};
        }
        return reach_of_pointer_to(address);
    }
    // Arrays and arguments may hold pointers to other arrays, as a grouped GEMM's table does. The
    // size of a pointer's array is unknown, so an address belongs to the nearest pointer or array
    // before it.
    Reach reach_of_pointer_to(uintptr_t address) const {
        Reach reach{0, ~uintptr_t{0}};
        const auto see = [&](uintptr_t start) {
            if (start <= address) reach.start = std::max(reach.start, start);
            if (start > address) reach.end = std::min(reach.end, start);
        };
        for (const Array& array : arrays) {
            see(array.start);
            if (!array.may_hold_pointers) continue;
            for (uintptr_t at = (array.start + 7) / 8 * 8; array.holds(at, 8); at += 8) {
                uint64_t word;
                std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof(word));
                if (word >= kLowestPointer) see(word);
            }
        }
        const bool is_known = std::any_of(arrays.begin(), arrays.end(), [&](const Array& array) {
            return array.start == reach.start || array.holds(reach.start, 1);
        });
        const bool is_far = reach.start == 0 || address - reach.start > kFarBytes;
        return is_known || is_far ? Reach{} : reach;
    }
    void note_written(uintptr_t address) const {
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            if (arrays[i].holds(address, 1)) __atomic_store_n(&written[i], 1, __ATOMIC_RELAXED);
        }
    }
    bool is_fresh(uintptr_t address) const {
        if (!fresh) return false;
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            if (fresh[i] && arrays[i].holds(address, 1)) return true;
        }
        return false;
    }
    // The address as the library's debugging information counts it; 0 outside the library.
    uintptr_t address_in_library(uintptr_t site) const {
        // A site is a return address; the byte before it belongs to the call.
        return library.holds(site, 1) ? site - 1 - library.start : 0;
    }
    uint64_t clusters() const { return uint64_t{grid.x} * grid.y * grid.z / cluster_ctas(); }
};

// --- barriers ------------------------------------------------------------------------------------

// Distinct warps of a cluster, by number.
class WarpSet {
public:
    void add(uint32_t warp) {
        if (!warps_.empty() && warps_.back() == warp) return;
        if (std::find(warps_.begin(), warps_.end(), warp) == warps_.end()) warps_.push_back(warp);
    }
    void clear() { warps_.clear(); }
    const std::vector<uint32_t>& warps() const { return warps_; }

private:
    std::vector<uint32_t> warps_;
};

// A load that a barrier counted: its first byte, its thread and its line.
struct Landing {
    uint32_t shared;
    const Fiber* issuer;
    uintptr_t site;
};

// An operation of a thread, and its line.
struct Deed {
    const Fiber* fiber = nullptr;
    uintptr_t site = 0;
};

struct Mbarrier {
    uint32_t offset = 0;
    uint32_t count = 0;
    uint32_t pending = 0;
    int64_t bytes = 0;  // transaction count: expected minus delivered, negative if delivered first
    int64_t expected = 0;
    uint64_t phase = 0;
    uint64_t word = 0;  // value in shared memory unless overwritten
    bool is_valid = false;
    uint32_t waiting = 0;   // threads inside a wait, woken or not
    uint64_t landed = 0;    // number of completed phases after which all loads so far have landed
    uint64_t observed = 0;  // number of phases that some thread knows to be complete
    std::vector<Fiber*> waiters;
    // Kept for reports.
    WarpSet arrived;                // warps that arrived in this phase
    WarpSet arrivers;               // warps that arrived in any phase
    WarpSet waited;                 // warps that waited in any phase
    Deed arrived_first;             // first arrival of this phase
    Deed expected_last;             // last instruction that expected bytes, in any phase
    Deed passed_at_first;           // a wait for parity 1 in phase 0
    Deed gave_up_last;              // a wait of this phase that returned false and was not repeated
    std::vector<Landing> landings;  // loads of this phase
    std::vector<Landing> landed_last;  // loads of the last completed phase that had any
    // Kept for the race detector.
    uint32_t initialiser = 0;
    Epoch initialised = 0;
    uintptr_t init_site = 0;
    bool is_init_fenced = false;
    Epoch fenced = 0;        // epoch of fence.mbarrier_init
    Agent agent = kNoAgent;  // agent of the loads that a phase counts
    View gathered;           // published in this phase
    View completed;          // published in the phase before
};

constexpr uint32_t kMaxWarps = 32;

struct NamedBarrier {
    uint32_t threads = 0;
    uint32_t arrived = 0;
    std::vector<Fiber*> waiters;
    View gathered;
    std::array<uint32_t, kMaxWarps> lines{};  // line where each warp's lanes wait; 0 if unknown
};

// Lanes of a warp that execute one instruction together.
struct Meeting {
    const char* instruction = nullptr;
    uint32_t mask = 0;
    uint32_t arrived = 0;
    void (*act)(Meeting&) = nullptr;
    std::array<void*, 32> operands{};
    std::array<Fiber*, 32> fibers{};
};

// --- asynchronous work ---------------------------------------------------------------------------

// The operation of a bulk reduction without a tensor map.
struct BulkReduction {
    ReduceOp op;
    ElementType type;
};

// A copy in flight into shared memory, or an arrival that waits for a thread's cp.async copies.
struct Flight {
    enum class Kind : uint8_t { kTiled, kIm2col, kBulk, kPush, kArrival } kind;
    TensorMapView map;
    std::array<int32_t, kMaxRank> at;
    std::array<uint16_t, kMaxSpatial> offsets;
    const void* global;
    uint32_t bytes;  // size in shared memory
    Cta* target;
    uint32_t shared;
    uint32_t barrier;
    Fiber* issuer;
    uintptr_t map_address;  // 0 for a parameter, which is never written
    uintptr_t site = 0;
    Issued issued;
    uint32_t sequence = kNothing;
    Epoch epoch = 0;  // arrivals only: epoch of the thread's last copies that it counts
    // The source of a push.
    Cta* source = nullptr;
    uint32_t source_offset = 0;
    std::optional<BulkReduction> reduction;
};

// A cp.async in flight.
struct ThreadCopy {
    uint32_t shared;
    const void* global;
    uint32_t bytes;
    uint32_t source_bytes;  // the rest is filled with zeros
    uintptr_t site = 0;
    Epoch epoch = 0;
    Issued issued;
};

// A copy out of shared memory, in a bulk group.
struct Store {
    enum class Kind : uint8_t { kTiled, kReduce, kBulk, kBulkReduce } kind;
    TensorMapView map;
    std::array<int32_t, kMaxRank> at;
    ReduceOp op;
    ElementType type;  // reductions without a map only
    void* global;
    uint32_t bytes;  // size in shared memory
    uint32_t shared;
    uintptr_t site = 0;
    uintptr_t map_address;  // 0 for a parameter, which is never written
    bool is_awaited = false;
    bool is_read = false;
    bool is_written = false;
    std::vector<uint8_t> snapshot;
    Epoch epoch;
    Issued issued;
    uint32_t sequence = kNothing;
};

// A wgmma.mma_async that was issued and has not been executed.
struct IssuedMma : Mma {
    uintptr_t site;
    Epoch epoch;
    Issued issued;
    Epoch issued_at = 0;  // the thread's epoch, if A is in registers
};

// The registers of a thread's wgmmas: accumulators, or A, which the thread may read meanwhile.
struct Accumulators {
    uintptr_t start;
    uintptr_t end;
    bool is_a = false;
    Epoch epoch = 0;  // the last group that uses them
    uintptr_t site = 0;
    bool is_touched = false;
    uintptr_t touched_at = 0;
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

struct Warpgroup {
    uint64_t target = 0;
    uint64_t done = 0;
    const void* held = nullptr;  // accumulators that the buffers hold
    std::vector<Fiber*> waiters;
    Agent agent = kNoAgent;
    Clock issued;  // epochs of the threads' finished wgmmas that had A in registers
    std::vector<uint32_t> sequences;  // sequence numbers of its wgmmas, for the trace
    uint32_t registers = 0;           // registers of each thread
    std::vector<RegisterChange> changes;
};

// --- threads -------------------------------------------------------------------------------------

struct Wait {
    using Kind = WaitKind;
    Kind kind = Kind::kNone;
    const char* instruction = "";
    const Cta* cta = nullptr;  // CTA of the barrier
    uint32_t number = 0;  // shared offset of an mbarrier, or number of a named barrier or signal
    uint32_t parity = 0;
    bool acquires = true;
    // The signal's owner, and its awaited and last seen epochs.
    uint32_t rank = 0;
    uint32_t epoch = 0;
    uint32_t seen = 0;
    uintptr_t polled = 0;  // address that the thread polls
};

// Number of executions of a wgmma instruction by a thread, and its last site.
struct MmaCall {
    uint32_t count = 0;
    uintptr_t site = 0;
};
enum class MmaInstruction : uint8_t { kFence, kMma, kCommit, kWait };

struct Warp {
    uint32_t live_lanes = 0;
    char role[kRoleBytes]{};  // empty if the kernel names none
    std::vector<Meeting> meetings;
};

// Previous bytes of a store, to tell whether two lanes stored different values.
struct Repeat {
    const uint8_t* at;
    uint32_t bytes;
    std::array<uint8_t, 16> held;
    Race race;
};

// A volatile access with a scope narrower than the system.
struct NarrowAccess {
    uintptr_t address = 0;
    Scope scope = Scope::kSystem;
};

struct Fiber : Thread {
    Context context{};
    Cluster* cluster = nullptr;
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    Warpgroup* warpgroup = nullptr;
    uint32_t index = 0;
    uint32_t number = 0;  // index in the cluster
    uintptr_t site = 0;   // site of its last call of the runtime
    bool is_done = false;
    bool has_arrived_at_cluster = false;
    uint32_t votes = 0;  // number of votes that it has taken part in
    Wait wait;
    Priority priority = Priority::kUsual;
    uint64_t asked_in_vain = UINT64_MAX;  // the cluster's progress at its last poll
    std::vector<Store> open_group;
    Queue<std::vector<Store>> groups;
    Epoch bulk_commits = 0;
    Agent bulk_reads = kNoAgent;
    Agent bulk_writes = kNoAgent;
    std::vector<ThreadCopy> copies;
    std::vector<Epoch> copy_groups;  // the last epoch of each group
    Epoch copies_epoch = 1;
    Agent copies_agent = kNoAgent;
    // For st.async: the mbarrier's agent, and the phase that counts the bytes.
    Agent store_agent = kNoAgent;
    Epoch store_epoch = 0;
    Queue<IssuedMma> mmas;
    uint64_t mmas_issued = 0;
    Epoch mma_commits = 0;
    std::vector<uint64_t> mma_groups;  // mmas_issued at each commit
    std::vector<Accumulators> accumulators;
    bool has_mma_fence = false;
    NarrowAccess narrow_access;
    uintptr_t met_at = 0;  // site of its last instruction with a mask, and the mask
    uint32_t met_mask = 0;
    uintptr_t active_site = 0;           // site of the __activemask() that it executes
    uint32_t active_lanes = 0;           // result of __activemask(), once it is known
    std::array<MmaCall, 4> mma_calls{};  // by instruction: wgmma.fence, .mma_async, .commit, .wait
    std::size_t register_changes = 0;
    bool is_noted_at_cluster = false;
    std::unique_ptr<Repeat> repeat;
    AwaitedPhase noted_wait;  // wait that began in the trace and has not ended
};

// A griddepcontrol.wait that a thread has executed.
struct GridWait {
    uint32_t thread;
    Epoch epoch;
};

struct Cta {
    uint3 block{};
    uint32_t rank = 0;
    uint32_t live = 0;
    bool has_static_shared = false;
    uint8_t* window = nullptr;
    std::vector<Warp> warps;
    std::vector<Warpgroup> warpgroups;
    std::array<NamedBarrier, 16> named{};
    std::array<uint32_t, 3> votes{};
    std::vector<Fiber*> register_waiters;
    std::vector<GridWait> grid_waits;
    std::vector<int32_t> barrier_at;  // indexed by shared offset / 8; -1 without a barrier
    std::deque<Mbarrier> barriers;
    // Accesses of other CTAs' threads to this CTA's memory, for the race detector.
    std::vector<Access> remote;
    std::vector<Access> remote_arrivals;  // relaxed arrivals
};

// A store that was not yet written when its thread ended.
struct LateStore {
    Fiber* issuer;
    Store store;
};

struct Failure {
    using Kind = ReportKind;
    Kind kind = Kind::kNone;
    Words reason;
    const Fiber* fiber = nullptr;
    uintptr_t site = 0;              // location in the kernel
    bool is_endless = false;         // a timeout that no budget would avoid
    std::vector<uintptr_t> callers;  // return addresses above the site, innermost first
};

inline Fiber& current_fiber() {
    return static_cast<Fiber&>(current_thread());
}

// --- the scheduler -------------------------------------------------------------------------------

// State shared by the clusters of one host thread.
struct Worker {
    Stalls& stalls;
    ClusterChoices choices;
    Stalls::Mine stall{};
    // Number of completed phases, landed copies, executed wgmmas and ended threads.
    uint64_t progress = 0;
    Array code{};  // code of the cluster that runs
    LoopWatch watch{};

    // Called when a cluster does anything other than poll.
    void note_event() {
        if (stall.is_stalled) stalls.go_on(stall);
    }
};

// The reason why a cluster stops running for now.
enum class Halt : uint8_t {
    kNone,
    kEnded,   // or failed
    kPaused,  // before it signals another cluster
    kPolls    // all its threads that can run poll
};

// Runs one cluster at a time on one host thread. Made once, and reused for many clusters.
class Cluster {
public:
    Cluster(const Launch& launch, Worker& worker)
        : launch_(launch),
          worker_(worker),
          stacks_(KeptStacks::take(launch.threads() * launch.cluster_ctas())),
          windows_(KeptWindows::take(launch.cluster_ctas())),
          fibers_(launch.threads() * launch.cluster_ctas()),
          ctas_(launch.cluster_ctas()),
          mma_buffers_(std::make_unique_for_overwrite<MmaBuffers>()) {
        for (Cta& cta : ctas_) cta.barrier_at.assign((launch.window_bytes() + 7) / 8, -1);
        if (launch.trace) recorder_ = std::make_unique<Recorder>();
        if (!launch.races) return;
        detector_ = std::make_unique<Detector>(
            *launch.races, static_cast<uint32_t>(fibers_.size()), launch.cluster_ctas(),
            kWindowBytes
        );
    }
    ~Cluster() {
        if (stacks_->are_guarded()) KeptStacks::give(std::move(stacks_));
        KeptWindows::give(std::move(windows_));
    }
    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;

    void start(uint64_t index) { reset(index); }

    // Runs until every thread has ended, something failed, or another cluster has to run first.
    Halt go_on(CrashSite& site, const Watchdog& watchdog) {
        halt_ = Halt::kNone;
        polls_ = 0;
        worker_.code = launch_.code;
        // Ranges of another cluster's shared memory are not this cluster's.
        worker_.watch.forget_reaches();
        const int jumped = sigsetjmp(site.resume, 0);
        switch (jumped) {
            case 0:
                site.is_armed = true;
                while (live_ > 0 && !has_failed() && halt_ == Halt::kNone) step(watchdog);
                if (live_ == 0 && !has_failed()) write_late_stores();
                if (live_ == 0 && detector_) detector_->end_cluster();
                break;
            case Watchdog::kJump:
            case Watchdog::kEndless:
                running_->wait.instruction = "runs, and never waits";
                running_->site = site.crash.code + 1;
                failure_ = {Failure::Kind::kTimeout, "", running_, running_->site};
                failure_.is_endless = jumped == Watchdog::kEndless;
                failure_.callers = callers_of(site.crash);
                break;
            default:
                report_crash(site.crash);
        }
        site.is_armed = false;
        on_fiber = false;
        if (live_ == 0 || has_failed()) halt_ = Halt::kEnded;
        if (halt_ == Halt::kEnded) worker_.note_event();
        return halt_;
    }

    // True if each thread that can run has polled this often and nothing else has happened.
    bool has_asked(std::size_t times) const { return vain_ > times * ready_.size(); }
    void ask_again() { vain_ = 0; }

    void give_up();  // thread_end.hpp

    // The most bytes that a cluster of this launch takes, with stacks of full depth.
    static uint64_t most_bytes(uint64_t ctas, uint64_t threads_per_cta) {
        constexpr uint64_t kThreadBytes = kStackBytes + sizeof(Fiber);
        constexpr uint64_t kCtaBytes = kWindowBytes + kWindowBytes / 8 * sizeof(int32_t);
        return sizeof(MmaBuffers) + ctas * (kCtaBytes + threads_per_cta * kThreadBytes);
    }

    const Launch& launch() const { return launch_; }
    const Failure& failure() const { return failure_; }
    bool has_failed() const { return failure_.kind != Failure::Kind::kNone; }
    const std::vector<Fiber>& fibers() const { return fibers_; }
    std::vector<Cta>& ctas() { return ctas_; }
    const std::vector<Cta>& ctas() const { return ctas_; }
    // number in the grid, or in all grids that run together
    uint64_t index() const { return index_; }
    uint32_t live() const { return live_; }
    Choices& choices() { return choices_; }
    uintptr_t windows() const { return reinterpret_cast<uintptr_t>(windows_->at(0)); }
    uint64_t windows_bytes() const { return uint64_t{kWindowBytes} * ctas_.size(); }
    // Null unless the launch is searched for races.
    Detector* detector() { return detector_.get(); }
    const Detector* detector() const { return detector_.get(); }
    // Null without a trace.
    Recorder* recorder() { return recorder_.get(); }
    std::deque<Flight>& flights() { return flights_; }
    MmaBuffers& mma_buffers() { return *mma_buffers_; }
    LoopWatch& watch() { return worker_.watch; }

    // Allows a thread's next accesses to the range, unless every access is recorded.
    void let_reach(Reach reach) {
        if (!detector_) worker_.watch.let_reach(reach);
    }

    // --- for the thread that runs ---

    // Lets others run until another thread wakes this one.
    void block(Fiber& fiber, const Wait& wait) {
        note_event();
        fiber.wait = wait;
        leave(fiber);
        fiber.wait = Wait{};
    }

    // Lets others run, then goes on. Called by a thread that polls.
    void spin(Fiber& fiber, const Wait& wait) {
        ++spins_;
        ++vain_;
        ++polls_;
        fiber.asked_in_vain = progress_;
        fiber.wait = wait;
        make_ready(fiber);
        leave(fiber);
        fiber.wait = Wait{};
    }

    // Lets others run now and then, if the policy tries many orders.
    void maybe_yield(Fiber& fiber) {
        if (choices_.yields()) yield(fiber);
    }

    void yield(Fiber& fiber) {
        make_ready(fiber);
        leave(fiber);
    }

    // Called before a thread accesses global memory through which clusters may signal one another.
    // Lets other clusters run first, now and then.
    void pause(Fiber& fiber, bool writes) {
        const bool is_alone = launch_.clusters() == 1 && !launch_.history;
        if (is_alone || pauses_ == 0 || !worker_.choices.pauses(writes)) return;
        --pauses_;
        halt_ = Halt::kPaused;
        yield(fiber);
    }

    // True if no other thread can run and no copy can land.
    bool is_alone() const { return ready_.empty() && flights_.empty(); }

    // Called when a copy was issued: it may land before the thread goes on.
    void let_land(Fiber& fiber) {
        if (choices_.yields_to_copy()) yield(fiber);
    }

    // Called at an event that cannot recur for ever while all threads poll.
    void note_progress() {
        note_event();
        ++progress_;
        ++worker_.progress;
        polls_ = 0;
        spins_ = 0;
        turns_ = 0;
        if (choices_.is_adversarial()) {
            ready_.reconsider([](const Fiber* fiber) { return fiber->priority; });
        }
    }

    // Called at any event other than a poll.
    void note_event() {
        vain_ = 0;
        worker_.note_event();
    }

    // Called when the thread changed memory that others may poll.
    void note_change() {
        note_event();
        polls_ = 0;
    }

    void wake(Fiber* fiber) {
        note_event();
        fiber->wait.kind = Wait::Kind::kNone;
        make_ready(*fiber);
    }

    void wake_all(std::vector<Fiber*>& fibers) {
        for (Fiber* fiber : fibers) wake(fiber);
        fibers.clear();
    }

    [[noreturn]] void fail(Fiber& fiber, const Words& reason) {
        report_fault(fiber, reason);
        leave(fiber);
        __builtin_unreachable();
    }

    // Called after a store that repeats another lane's. It is a race only if it changed the bytes.
    void check_repeat(Fiber& fiber) {
        const Repeat repeat = *fiber.repeat;
        fiber.repeat.reset();
        if (std::memcmp(repeat.at, repeat.held.data(), repeat.bytes) == 0) return;
        detector_->report(repeat.race);
        stop_if_race(fiber);
    }

    // Ends the launch if the last access was part of a race.
    void stop_if_race(Fiber& fiber) {
        if (!detector_->has_race()) return;
        note_race();
        leave(fiber);
        __builtin_unreachable();
    }

    void note_race() {
        if (detector_ && detector_->has_race() && !has_failed())
            failure_.kind = Failure::Kind::kRace;
    }

    // Reports a fault at the thread's present site. Only the first fault counts.
    void report_fault(const Fiber& fiber, const Words& reason) {
        report_fault(fiber, reason, fiber.site);
    }

    // Reports a fault of an operation that the thread issued at `site`.
    void report_fault(const Fiber& fiber, const Words& reason, uintptr_t site) {
        if (!has_failed()) failure_ = {Failure::Kind::kFault, reason, &fiber, site};
    }

    // --- the cluster barrier ---

    void arrive_at_cluster(Fiber& fiber, bool releases) {
        if (fiber.has_arrived_at_cluster) {
            fail(fiber, "barrier.cluster.arrive twice without barrier.cluster.wait between them");
        }
        if (detector_ && releases) detector_->release(fiber.number, cluster_gathered_);
        if (detector_ && !releases) detector_->release_relaxed(fiber.number, cluster_gathered_);
        fiber.is_noted_at_cluster = stands_for_warp(fiber);
        if (fiber.is_noted_at_cluster) record(fiber, {.kind = EventKind::kClusterArrive});
        fiber.has_arrived_at_cluster = true;
        ++cluster_arrived_;
        complete_cluster_barrier();
    }

    void wait_for_cluster(Fiber& fiber) {
        // Completing the barrier clears the flag.
        if (fiber.has_arrived_at_cluster) {
            cluster_waiters_.push_back(&fiber);
            block(fiber, {.kind = Wait::Kind::kCluster, .instruction = "barrier.cluster.wait"});
        }
        if (detector_) detector_->acquire(fiber.number, cluster_completed_);
        if (fiber.is_noted_at_cluster) record(fiber, {.kind = EventKind::kClusterWaitEnd});
    }

    // --- the trace ---

    // Record an event of a thread.
    void record(const Fiber& fiber, Event event) {
        if (!recorder_) return;
        event.thread = static_cast<uint16_t>(fiber.index);
        event.address = launch_.address_in_library(fiber.site);
        if (launch_.posts) recorder_->tick();
        record(*fiber.cta, event);
    }

    // Record an event that no thread caused.
    void record(const Cta& cta, Event event) {
        if (!recorder_) return;
        event.rank = static_cast<uint16_t>(cta.rank);
        recorder_->add(event);
    }

    // All lanes of a warp do the same, so the first live lane stands for all. A lane may end before
    // the others go on, so callers ask before a wait.
    bool stands_for_warp(const Fiber& fiber) const {
        return recorder_ &&
               fiber.lane == static_cast<uint32_t>(__builtin_ctz(fiber.warp->live_lanes));
    }

    void record_role(const Fiber& fiber) {
        if (recorder_) recorder_->add_role(fiber.rank, fiber.index / 32, fiber.warp->role);
    }

    uint32_t new_sequence() { return recorder_ ? recorder_->new_sequence() : kNothing; }

    // --- defined in other headers ---

    void land(const Flight& flight);         // copies.hpp
    void leave_stores(Fiber& fiber);         // copies.hpp
    void write_late_stores();                // copies.hpp
    void end(Fiber& fiber);                  // thread_end.hpp
    Words vain_wait_of(const Fiber& fiber);  // thread_end.hpp

    // Ends the thread and never returns.
    void exit(Fiber& fiber) {
        end(fiber);
        leave(fiber);
    }

    void forget_thread(Fiber& fiber) {
        note_progress();
        fiber.is_done = true;
        --live_;
        --fiber.cta->live;
        fiber.warp->live_lanes &= ~(1u << fiber.lane);
        if (fiber.has_arrived_at_cluster) --cluster_arrived_;
        complete_cluster_barrier();
    }

private:
    static void enter() {
        Fiber& fiber = current_fiber();
        const Launch& launch = fiber.cluster->launch_;
        try {
            launch.kernel(launch.arguments);
        } catch (...) {
            fiber.cluster->fail(
                fiber,
                "the C++ library threw an exception, which device code cannot. Check "
                "indices and sizes instead"
            );
        }
        fiber.cluster->end(fiber);
        fiber.cluster->leave(fiber);
    }

    void report_crash(const Crash& crash) {
        auto callers = callers_of(crash);
        const uintptr_t elsewhere = callers.empty() ? running_->site : 0;
        const bool is_kernel = launch_.code.holds(crash.code, 1);
        report_fault(*running_, reason_of(crash), is_kernel ? crash.code + 1 : elsewhere);
        failure_.callers = std::move(callers);
    }

    Words reason_of(const Crash& crash) const {
        switch (crash.number) {
            case SIGFPE:
                return "an integer division by zero, or of the smallest integer by -1. Check the "
                       "divisor first";
            case SIGILL:
            case SIGTRAP:
                return "an illegal instruction: what the compiler took for unreachable was "
                       "reached. Return a value at the end of every function that has one";
            case SIGABRT:
                return "the C library called abort(). Check what the kernel passes to it";
        }
        if (stacks_->is_guard(crash.address)) {
            return "address " + hexadecimal(crash.address) +
                   " is below the thread's stack of 128 KiB. Keep large arrays in shared or "
                   "global memory, and recursion shallow";
        }
        return "address " + hexadecimal(crash.address) +
               " is no memory. Check indices and pointers, and that every array of a tile lives "
               "on";
    }

    // Return addresses in the kernel's code. Without debugging information to unwind by, any word
    // on the stack that points into the code may be one.
    std::vector<uintptr_t> callers_of(const Crash& crash) const {
        constexpr std::size_t kCallers = 8;
        std::vector<uintptr_t> callers;
        for (const uintptr_t caller : crash.callers) {
            if (caller != crash.code && launch_.code.holds(caller, 1)) callers.push_back(caller);
        }
        if (!callers.empty()) return callers;
        const Reach stack = stacks_->reach_of(running_->number);
        if (crash.stack + kStackBytes < stack.start || crash.stack >= stack.end) return callers;
        uintptr_t at = std::max(crash.stack, stack.start) / sizeof(at) * sizeof(at);
        for (; at < stack.end && callers.size() < kCallers; at += sizeof(at)) {
            uintptr_t word;
            std::memcpy(&word, reinterpret_cast<const void*>(at), sizeof(word));
            if (launch_.code.holds(word, 1)) callers.push_back(word);
        }
        return callers;
    }

    void leave(Fiber& fiber) { switch_context(fiber.context, scheduler_); }

    void step(const Watchdog& watchdog) {
        if (watchdog.is_spent()) return time_out();
        // In launches that run together, polls take no time: their number means nothing.
        if (recorder_ && (vain_ == 0 || !launch_.posts)) recorder_->tick();
        while (!flights_.empty() && choices_.lands()) land_one();
        if (ready_.empty() || spins_ > ready_.size() || is_patience_over()) {
            if (!flights_.empty()) {
                land_one();
            } else if (ready_.empty()) {
                give_up();
            } else if (polls_ > kPolls + 2 * live_) {
                halt_ = Halt::kPolls;
                return;
            }
        }
        if (!ready_.empty() && !has_failed()) {
            running_ = next();
            on_fiber = true;
            switch_context(scheduler_, running_->context);
            on_fiber = false;
        }
    }

    // Called when the scheduler makes no progress.
    void time_out() { failure_.kind = Failure::Kind::kTimeout; }

    void make_ready(Fiber& fiber) {
        if (choices_.is_adversarial() && fiber.asked_in_vain == progress_) {
            return ready_.add_in_vain(&fiber);
        }
        ready_.add(&fiber, fiber.priority);
    }

    // On the chip, all threads run in the end and all copies land: a policy's patience is limited.
    bool is_patience_over() const { return turns_ > kPatience * fibers_.size(); }

    Fiber* next() {
        ++turns_;
        const bool is_fair = choices_.is_adversarial() && is_patience_over();
        return ready_.take(choices_, is_fair, [this](const Fiber* fiber) {
            return choices_.passes_over(number_of(*fiber));
        });
    }

    uint32_t number_of(const Fiber& fiber) const {
        return static_cast<uint32_t>(&fiber - fibers_.data());
    }

    void land_one() {
        const std::size_t index = choices_.copy(flights_.size());
        const Flight flight = std::move(flights_[index]);
        flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(index));
        note_progress();
        running_ = flight.issuer;
        land(flight);
        note_race();
    }

    void complete_cluster_barrier() {
        if (cluster_arrived_ == 0 || cluster_arrived_ < live_) return;
        cluster_arrived_ = 0;
        for (Fiber& fiber : fibers_) fiber.has_arrived_at_cluster = false;
        cluster_completed_ = std::exchange(cluster_gathered_, {});
        wake_all(cluster_waiters_);
    }

    void reset(uint64_t index) {
        index_ = index;
        const uint64_t seed = launch_.seed * 0x2545f4914f6cdd1d + index;
        choices_ = Choices(launch_.policy, seed, launch_.cluster_ctas(), launch_.threads());
        failure_ = {};
        ready_.clear();
        flights_.clear();
        late_stores_.clear();
        cluster_waiters_.clear();
        cluster_arrived_ = 0;
        pauses_ = kPauses;
        note_progress();
        cluster_gathered_ = {};
        cluster_completed_ = {};
        if (detector_) detector_->reset(static_cast<uint32_t>(index), launch_.history);
        if (recorder_) recorder_->reset(index - launch_.first_cluster);
        if (recorder_ && launch_.begins_after) recorder_->come_after(launch_.begins_after);
        live_ = static_cast<uint32_t>(fibers_.size());
        for (uint32_t rank = 0; rank < ctas_.size(); ++rank) reset_cta(index, rank);
    }

    void reset_cta(uint64_t index, uint32_t rank) {
        const uint32_t threads = launch_.threads();
        Cta& cta = ctas_[rank];
        for (const Mbarrier& barrier : cta.barriers) cta.barrier_at[barrier.offset / 8] = -1;
        cta.barriers.clear();
        cta.remote.clear();
        cta.remote_arrivals.clear();
        cta.named = {};
        cta.votes = {};
        cta.block = launch_.block_of(index - launch_.first_cluster, rank);
        cta.rank = rank;
        cta.live = threads;
        cta.has_static_shared = false;
        cta.window = windows_->at(rank);
        cta.warps.assign((threads + 31) / 32, {});
        cta.warpgroups.assign((threads + 127) / 128, {});
        for (Warpgroup& group : cta.warpgroups) group.registers = launch_.registers;
        cta.register_waiters.clear();
        cta.grid_waits.clear();
        windows_->poison(rank, launch_.window_bytes());
        for (uint32_t thread = 0; thread < threads; ++thread) reset_thread(cta, thread);
    }

    void reset_thread(Cta& cta, uint32_t index) {
        const std::size_t slot = std::size_t{cta.rank} * launch_.threads() + index;
        Fiber& fiber = fibers_[slot];
        fiber = Fiber{};
        fiber.cluster = this;
        fiber.cta = &cta;
        fiber.warp = &cta.warps[index / 32];
        fiber.warpgroup = &cta.warpgroups[index / 128];
        fiber.index = index;
        fiber.number = static_cast<uint32_t>(slot);
        fiber.lane = index % 32;
        fiber.warp->live_lanes |= 1u << fiber.lane;
        const uint3 block = launch_.block;
        fiber.thread = {index % block.x, index / block.x % block.y, index / block.x / block.y};
        fiber.block = cta.block;
        fiber.block_dim = block;
        fiber.grid_dim = launch_.grid;
        fiber.rank = cta.rank;
        fiber.ctas = launch_.cluster_ctas();
        fiber.cluster_dim = launch_.cluster;
        fiber.static_offset = launch_.dynamic_bytes();
        fiber.window = cta.window;
        fiber.live_lanes = &fiber.warp->live_lanes;
        fiber.has_static_shared = &cta.has_static_shared;
        fiber.reaches = worker_.watch.reaches();
        if (!detector_) fiber.stack = stacks_->reach_of(slot);
        stacks_->set_owner(slot, &fiber);
        fiber.priority = choices_.priority(number_of(fiber));
        start_context(fiber.context, stacks_->at(slot), &enter);
        make_ready(fiber);
    }

    // Polls before another cluster runs, in addition to two of each live thread.
    static constexpr std::size_t kPolls = 64;
    // The most pauses of a cluster. A histogram of atomic operations would do nothing but pause.
    static constexpr uint32_t kPauses = 256;
    // Turns per thread without progress, after which threads run fairly and copies land.
    static constexpr uint64_t kPatience = 1024;

    Launch launch_;
    Worker& worker_;
    std::unique_ptr<Stacks> stacks_;
    std::unique_ptr<Windows> windows_;
    std::vector<Fiber> fibers_;
    std::vector<Cta> ctas_;
    std::unique_ptr<MmaBuffers> mma_buffers_;
    Choices choices_;
    Context scheduler_{};
    Fiber* running_ = nullptr;  // the running thread, or the issuer of the copy that lands
    ReadyThreads ready_;
    std::deque<Flight> flights_;
    std::vector<LateStore> late_stores_;
    std::vector<Fiber*> cluster_waiters_;
    View cluster_gathered_;
    View cluster_completed_;
    std::unique_ptr<Detector> detector_;
    std::unique_ptr<Recorder> recorder_;
    uint64_t index_ = 0;
    uint32_t cluster_arrived_ = 0;
    uint32_t live_ = 0;
    uint64_t progress_ = 0;  // the cluster's part of the worker's progress
    std::size_t spins_ = 0;  // polls since progress was made
    std::size_t vain_ = 0;   // polls since anything but polls happened
    // Polls since the cluster went on, made progress or wrote to polled memory.
    std::size_t polls_ = 0;
    uint64_t turns_ = 0;   // turns since progress was made
    uint32_t pauses_ = 0;  // pauses left
    Halt halt_ = Halt::kNone;
    Failure failure_;
};

// --- addresses -----------------------------------------------------------------------------------

// Names a CTA other than the thread's own: " of CTA 1 of the cluster".
inline Words of_cta(const Fiber& fiber, const Cta& cta) {
    if (fiber.cta == &cta) return "";
    return " of CTA " + decimal(cta.rank) + " of the cluster";
}

// Names an issuer: "producer (thread 0) at kernel.cu:30".
inline Words name_of_issuer(const Fiber& issuer, uintptr_t site) {
    const Words role = issuer.warp->role, thread = "thread " + decimal(issuer.index);
    return (role.is_empty() ? thread : role + " (" + thread + ")") +
           at_line(issuer.cluster->launch().address_in_library(site));
}

// Names an issuer, and its CTA if that differs from `other`'s.
inline Words name_of_issuer(const Fiber& issuer, uintptr_t site, const Fiber& other) {
    return name_of_issuer(issuer, site) + of_cta(other, *issuer.cta);
}

inline Words name_of(const Deed& deed) {
    return name_of_issuer(*deed.fiber, deed.site);
}

inline Words name_of(const Flight& flight) {
    if (flight.kind != Flight::Kind::kPush) return "a TMA load";
    return flight.reduction ? "a TMA reduction between CTAs" : "a TMA copy between CTAs";
}

// Number of the thread's warp in the cluster.
inline uint32_t warp_number(const Fiber& fiber) {
    return fiber.rank * static_cast<uint32_t>(fiber.cta->warps.size()) + fiber.index / 32;
}

struct Place {
    Cta* cta;
    uint32_t offset;
};

// Notes a remote access, which must be over before the CTA ends.
inline void note_remote(std::vector<Access>& noted, const Access& remote) {
    for (Access& access : noted) {
        if (access.agent != remote.agent) continue;
        access.epoch = std::max(access.epoch, remote.epoch);
        access.site = remote.site;
        return;
    }
    noted.push_back(remote);
}

// The access that the thread, or its st.async, makes to a CTA's memory now.
inline Access remote_access(const Fiber& fiber) {
    const bool is_async = fiber.store_agent != kNoAgent;
    return {
        .agent = is_async ? fiber.store_agent : fiber.number,
        .epoch = is_async ? fiber.store_epoch : fiber.cluster->detector()->epoch_of(fiber.number),
        .thread = fiber.number,
        .site = fiber.site
    };
}

// Resolves a shared address of this thread to a CTA and an offset.
inline Place locate(Fiber& fiber, uint32_t address) {
    const uint32_t rank = address >> kRankShift;
    auto& ctas = fiber.cluster->ctas();
    if (rank == 0) return {fiber.cta, address};
    if (rank > ctas.size()) {
        fiber.cluster->fail(
            fiber, "a shared address names CTA " + decimal(rank - 1) + " of a cluster of " +
                       decimal(ctas.size())
        );
    }
    Cta& cta = ctas[rank - 1];
    if (cta.live == 0) {
        fiber.cluster->fail(
            fiber, "CTA " + decimal(cta.rank) +
                       " of the cluster has ended, and this thread still reaches into its shared "
                       "memory. Let no CTA leave before its peers are done: cluster_sync() at the "
                       "end of the kernel"
        );
    }
    return {&cta, address & kOffsetMask};
}

// Resolves an address that the thread accesses, and notes an access to another CTA.
inline Place resolve(Fiber& fiber, uint32_t address) {
    const Place place = locate(fiber, address);
    if (place.cta != fiber.cta && fiber.cluster->detector()) {
        note_remote(place.cta->remote, remote_access(fiber));
    }
    return place;
}

inline uint32_t shared_end(const Fiber& fiber) {
    const Launch& launch = fiber.cluster->launch();
    if (fiber.cta->has_static_shared) return launch.dynamic_bytes() + launch.static_bytes;
    return launch.shared_bytes;
}

// Empty if the bytes are the CTA's.
template <typename Name>
Words beyond_shared(const Fiber& fiber, uint32_t offset, uint64_t bytes, const Name& what) {
    const uint32_t end = shared_end(fiber);
    if (offset + bytes <= end) return {};
    return Words(what) + " reaches " + shared_bytes_from(offset) + " to " +
           decimal(offset + bytes) + "; the CTA has " + decimal(end) + ". Ask for more with " +
           size_constant() + " or shared_mem, or mend the address";
}

template <typename Name>
void check_inside_shared(Fiber& fiber, uint32_t offset, uint64_t bytes, const Name& what) {
    Words reason = beyond_shared(fiber, offset, bytes, what);
    if (!reason.is_empty()) fiber.cluster->fail(fiber, reason);
}

}  // namespace tmaasync_emulate
