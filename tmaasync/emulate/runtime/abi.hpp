// The declarations that the runtime shares with Python: structs, enums and numbers.
//
// tmaasync/emulate/abi.py reads the structs from here, one field a line, and the names of rules,
// one a line. Other enums and numbers stand there again, and events and roles in tmaasync/trace.
// tests/emulate/test_abi.py compares both sides, name by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tmaasync_emulate/fault.hpp>

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

// Code that accesses memory by a subscript of a pointer parameter, as in `scale[row]`.
struct Subscript {
    uint64_t start;  // in the kernel's library
    uint64_t end;
    uint32_t array;  // of the launch, that the parameter was given
    uint32_t is_store;
};

struct EventLog;

// The rules that a user may relax (docs/emulator_rules.md).
enum class Rule : uint8_t {
    kNone,
    kCpAsyncAtExit,
    kStoreAtExit,
    kLoadAtExit,
    kBytesAtExit,
    kWgmmaAtExit,
    kExitBeforePeer,
    kInitWithoutFence,
    kWriteWithoutProxyFence,
    kMapWithoutAcquire,
    kPollWithoutAcquire,
    kPlainAccessToAtomic,
    kBlockScopeAtomic,
    kSameValueStores,
    kReadOnlyLoad,
    kUnwrittenShared,
    kUnwrittenAccumulators,
    kWgmmaRegisters,
    kWgmmaSwizzle,
    kPdlWait,
    kSyncthreadsApart,
    kElectOfPart,
    kShuffleSource,
    kReplicatedLoad,
    kOtherArray,
    kTcgen05Fence,
    kTcgen05ByLanes,
    kTcgen05AtExit,
    kTensorMemoryLanes,
    kTensorMemoryGrowth,
    kUnwrittenTensorMemory,
    kResponseWithoutProxyFence,
    kCtaidOfFailure,
    kTcgen05PairStart,
    kTcgen05ProxyFence,
    kMbarrierRead,
    kWaitParity,
};
constexpr std::size_t kRules = 37;

// The violations of a rule in a launch that goes on.
struct RuleNote {
    uint64_t count;
    uint64_t address;  // of the first one, in the kernel's library
};

struct RuleNotes {
    uint64_t broken;         // one bit for each rule; bit 0: TMA used maps in global memory
    uint64_t is_unsearched;  // 1 if some accesses came after the search for races
    uint64_t has_forgotten;  // 1 if the search had no room for an access
    uint64_t has_pointed;    // 1 if some accesses were to memory that only a pointer leads to
    RuleNote note[kRules];
};

// --- a verified launch -------------------------------------------------------------------------

enum class SyncKind : uint32_t {
    kOperation,  // an operation of a thread
    kLanding,    // the landing of a copy, or the arrival, that a thread's operation issued
    kPhase,      // the completion of a barrier's phase
};

struct SyncEvent {
    SyncKind kind;
    uint32_t barrier;  // shared offset or kNamed; of a phase only
    uint64_t owner;    // number of the thread in the grid; of a phase the CTA's
    uint64_t number;   // of the thread's operation, or of the phase
    uint64_t address;  // in the kernel's code
};

// The unordered pairs that a run lists.
constexpr uint32_t kMostPairs = 4096;

// A named barrier's number lies below this bit.
constexpr uint32_t kNamed = 1u << 31;

// The change if the second of two unordered events comes first.
enum class Unordered : uint32_t {
    kArrival,      // the second arrives in the phase before
    kWait,         // the second passes its barrier two phases early
    kMissedPhase,  // the first, a wait, misses its phase
    kExpectation,  // the first expects bytes of the next phase
    kAccess,       // an atomic operation or a volatile access finds another value
    kRefusal,      // a request for a cluster, which is both events, fails
    kContext,      // nothing: the first comes before both events of the last pair
};

struct UnorderedPair {
    Unordered kind;
    uint32_t barrier;  // shared offset or kNamed; nothing of accesses
    uint64_t cta;      // of the barrier
    uint64_t word;     // address of an access
    SyncEvent first;
    SyncEvent second;
    uint64_t swap;  // change of the signature if they change places in the run, if not 0
};

// An event that waits until another one has happened.
struct Hold {
    SyncEvent event;
    SyncEvent until;
};

// The order of one run. Python takes the pairs over, and gives them back to free().
struct Interleaving {
    uint64_t holds;
    const Hold* hold;
    uint64_t refusals;  // requests for a cluster that fail
    const SyncEvent* refusal;
    uint64_t reductions;
    const uint64_t* reduction;  // addresses of calls whose results the source leaves unused
    UnorderedPair* pair;
    uint64_t pairs;
    uint64_t operations;
    uint64_t phases;
    uint64_t signature;  // equal for runs that differ only in the order of independent events
};

// A word of global memory.
struct HeldWord {
    uint64_t address;
    uint64_t word;
};

// A block of the kernels' heap.
struct HeldBlock {
    uint64_t address;
    uint64_t is_held;  // 1 if kernels may use it
};

// The words and blocks that a run changes, as they were before it. Python gives both arrays back to
// free().
struct UndoLog {
    uint64_t launch;  // number of the launch that the run repeats; 0: it repeats none
    HeldWord* word;
    uint64_t words;
    HeldBlock* block;
    uint64_t blocks;
};

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
    uint32_t registers;       // of each thread; 0: setmaxnreg is not checked
    uint32_t has_wide_maps;   // 1 if the chip has the tensor maps that came with sm_100a
    uint32_t sms;             // of the chip
    uint32_t shares_columns;  // 1 if the CTAs of an SM share tensor memory
    uint64_t searched_words;  // of memory accesses whose races are looked for
    EventLog* log;            // null: no trace
    uint8_t* written;         // of each array: set if this launch writes to it
    uint32_t* grid_barrier;   // of a cooperative launch; null in others
    const uint8_t* fresh;  // of each array: whether the launch before wrote to it; null: no matter
    uint64_t tolerated;    // one bit for each rule
    RuleNotes* notes;
    uint64_t subscripts;
    const Subscript* subscript;  // by increasing address
    Interleaving* interleaving;  // of a verified launch; null in others
    UndoLog* undo;               // of a launch that is repeated, and searched; null in others
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
    uint32_t runs_handlers;         // whether this thread runs handlers of the program
    uint32_t stops_at_interrupt;    // whether SIGINT stops the launch
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

// Shared or global memory: a proxy fence may cover one of them only. Registers have no fence, and
// tensor memory has the fences of tcgen05.
enum class Space : uint8_t { kShared, kGlobal, kRegisters, kTensor };

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
    kBlockAtomic,   // of the threads of one CTA
    kEarlierWrite,  // before the launch
    kTcgen05Load,
    kTcgen05Store,
    kTcgen05Mma,
    kTcgen05Copy,
    kTcgen05Shift,
    kTcgen05Dealloc,
    kClusterResponse,  // of clusterlaunchcontrol.try_cancel
};

enum class ReportKind : uint8_t {
    kNone,
    kFault,
    kDeadlock,
    kRace,
    kTimeout,
    kInterrupted,  // by Ctrl-C
    kMemory,       // the machine has none left
};

enum class WaitKind : uint8_t {
    kNone,
    kMbarrier,
    kNamedBarrier,
    kCluster,
    kWarp,
    kWarpgroup,
    kRegisters,
    kSignal,
    kTensorMemory
};

// The activities of threads that wait at no instruction with a name.
enum class Activity : uint8_t {
    kReady,
    kRunning,  // for ever
    kUnwrittenRead,
    kVolatileRead,
    kRepeatedRead,
};

struct Numbers {
    const uint32_t* first;
    uint64_t count;
};

struct WarpReport {
    Extents block;
    uint32_t warp;
    uint32_t has_ended;
    char role[kRoleBytes];  // empty: the kernel names none
};

// An mbarrier, and the warps that arrived in its phase, in any phase, and waited in any phase.
struct BarrierReport {
    Extents block;
    uint32_t offset;
    uint32_t count;             // arrivals of a phase
    uint32_t arriving_threads;  // in any phase
    uint64_t phase;
    Numbers arrived;
    Numbers arrivers;
    Numbers waited;
};

struct MbarrierWait {
    Extents block;
    uint32_t offset;
    uint64_t phase;
    int64_t missing_bytes;  // below zero if delivered first
    int64_t expected_bytes;
    uint32_t missing_arrivals;
    Numbers landings;         // shared offsets of the loads of this phase
    uint64_t initialised_at;  // mbarrier.init in the kernel's library
    uint64_t observed;        // phases that some wait has seen complete
};

struct NamedBarrierWait {
    uint32_t number;
    uint32_t missing_arrivals;
};

struct SignalWait {
    uint32_t rank;
    uint32_t number;
    uint32_t epoch;
    uint32_t seen;
};

// Threads of one CTA that wait for the same thing.
struct WaitReport {
    uint32_t launch;
    Extents block;
    const char* instruction;  // empty: the activity says more
    uint64_t address;         // in the kernel's library
    Numbers threads;
    uint64_t polled;  // an offset in shared memory, or an address in global memory
    uint8_t is_polling;
    Space polled_space;
    WaitKind kind;
    Activity activity;
    char role[kRoleBytes];
    MbarrierWait mbarrier;
    NamedBarrierWait named;
    SignalWait signal;
};

// Bits: the race detector's knowledge of two accesses.
enum class RaceFact : uint32_t {
    kLacksFence = 1,
    kWasUnwritten = 2,
    kIsStored = 4,
    kIsOneCopy = 8,
    kHasRelaxedArrival = 16,
    kIsBetweenDevices = 32,
    kIsKnown = 64,
    kLacksAcquire = 128,
    kLacksReaderFence = 256,
    kLacksTensorBefore = 512,
    kLacksTensorAfter = 1024,
    kIsIssuedBefore = 2048,
};

struct AccessReport {
    uint32_t launch;
    Extents block;
    uint32_t thread;
    uint32_t barrier;  // shared offset of the mbarrier that counts a load; kNothing: none is known
    uint64_t address;  // in the kernel's library
    Operation operation;
    uint8_t is_write;
    uint8_t bytes;  // one bit for each of the eight from the race's start on
    char role[kRoleBytes];
};

struct RaceReport {
    uint64_t start;
    uint32_t facts;
    Space space;
    AccessReport first;
    AccessReport second;
};

// Given back to tmaasync_emulate_free_report().
struct Report {
    ReportKind kind;
    Rule rule;           // that a user may relax, of a fault or a race
    uint8_t is_endless;  // a timeout: no budget would be enough
    uint8_t has_thread;  // whether block, thread, role and address are set
    uint32_t launch;
    Extents block;
    uint32_t thread;
    char role[kRoleBytes];
    uint64_t address;  // in the kernel's library
    uint64_t callers;
    const uint64_t* caller;  // of the code at the address, innermost first
    FaultKind fault;
    uint64_t mentions;
    const Mention* mention;  // the facts of the fault, in the order of its sentence
    const void* texts;       // each ends with a null character
    uint64_t waits;
    const WaitReport* wait;
    uint64_t warps;
    const WarpReport* warp;  // by number in the cluster
    uint64_t barriers;
    const BarrierReport* barrier;
    uint64_t resident;  // CTAs that wait while others have not started; 0 if all have
    uint64_t grid;      // CTAs
    RaceReport race;
};

}  // namespace tmaasync_emulate
