// The declarations that the runtime shares with Python: structs, enums and numbers.
//
// Their twins are in tmaasync/emulate/abi.py, but for events and roles, which tmaasync/trace
// declares. tests/emulate/test_abi.py compares both sides, name by name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tmaasync_emulate {

// --- a launch ------------------------------------------------------------------------------------

// Static shared variables lie after the dynamic shared memory, at a multiple of these bytes.
constexpr uint32_t kStaticAlignment = 1024;

enum class Policy : uint32_t { kRoundRobin, kRandom, kAdversarial };

struct Extents {
    uint32_t x;
    uint32_t y;
    uint32_t z;
};

// An array of the launch.
struct Array {
    uintptr_t start;
    uint64_t bytes;
    uint64_t may_hold_pointers = 0;

    bool holds(uintptr_t address, uint64_t size) const {
        return address >= start && address - start <= bytes && size <= bytes - (address - start);
    }
};

struct EventLog;

struct LaunchNumbers {
    Extents grid;
    Extents block;
    Extents cluster;
    uint32_t shared_bytes;
    Policy policy;
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

// One of the launches that run together.
struct DeviceLaunch {
    void (*kernel)(void* const*);
    const LaunchNumbers* numbers;
    void* const* arguments;
    uint32_t device;
    uint32_t queue;  // of a stream of the device
};

// Functions of Python's C API, for a caller that holds the interpreter's lock (the GIL).
struct Interpreter {
    void* (*release)();             // PyEval_SaveThread
    void (*acquire)(void* thread);  // PyEval_RestoreThread
    int (*run_handlers)();          // PyErr_CheckSignals: -1 if one raised an exception
    uint32_t is_main_thread;        // the only one where handlers run
};

// --- a trace -------------------------------------------------------------------------------------

constexpr uint32_t kNothing = UINT32_MAX;
constexpr uint16_t kNobody = UINT16_MAX;

// EventKind of tmaasync/trace/events.py.
enum class EventKind : uint16_t {
    kLoadIssued = 1,
    kLoadLanded,
    kStoreIssued,
    kStoreCommitted,
    kStoreRead,
    kStoreWritten,
    kExpect,
    kArrive,
    kPhaseCompleted,
    kWaitBegin,
    kWaitEnd,
    kMmaIssued,
    kMmaExecuted,
    kNamedArrive,
    kNamedWaitEnd,
    kClusterArrive,
    kClusterWaitEnd,
    kThreadEnd,
    kSignalPosted,
    kSignalWaitEnd,
};

// EVENT_DTYPE of tmaasync/trace/events.py.
struct Event {
    uint64_t time = 0;
    uint64_t address = 0;
    uint32_t cluster = 0;
    uint32_t shared = kNothing;
    uint32_t barrier = kNothing;
    uint32_t phase = 0;
    uint32_t bytes = 0;
    uint16_t rank = kNobody;
    uint16_t thread = kNobody;  // kNobody: the hardware
    EventKind kind{};
    uint16_t other = kNobody;  // kNobody: the same as rank; of a signal the rank whose it is
    uint32_t sequence = kNothing;
};

// The role that a warp was given; ROLE_DTYPE of tmaasync/trace/roles.py.
constexpr std::size_t kRoleBytes = 40;
struct RoleRecord {
    uint32_t cluster = 0;
    uint16_t rank = 0;
    uint16_t warp = 0;
    char role[kRoleBytes]{};
};

// Python takes both arrays over, and gives them back to free().
struct EventLog {
    Event* events;
    uint64_t count;
    RoleRecord* roles;
    uint64_t role_count;
};

// --- the report of a failed launch ---------------------------------------------------------------

// Shared or global memory: a proxy fence may cover one of them only. Registers have no fence.
enum class Space : uint8_t { kShared, kGlobal, kRegisters };

// The operations of accesses that a report names.
enum class Operation : uint8_t {
    kRead,
    kWrite,
    kAtomic,
    kStmatrix,
    kTmaLoad,
    kTmaStore,
    kTmaReduce,
    kWgmma,
    kBarrierInit,
    kBarrierUse,
    kRegisters,
    kMapRead,
    kThreadCopy,
    kTmaPush,
    kTmaPushReduce,
    kLdmatrix,
    kBlockAtomic,  // of the threads of one CTA
};

}  // namespace tmaasync_emulate
