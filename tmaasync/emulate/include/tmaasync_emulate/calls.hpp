// What a kernel's code reads of its thread, and what it asks of the runtime, which is a library of
// its own: everything declared here is defined in runtime/calls.cpp.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#define TMAASYNC_EMULATE_CALL __attribute__((visibility("default")))
// A function of ours in the kernel's library, the accesses of which are not the kernel's.
#define TMAASYNC_EMULATE_UNSEEN __attribute__((no_sanitize("thread")))
// So that the runtime finds the kernel's own line where the call returns to.
#define TMAASYNC_EMULATE_INLINE inline __attribute__((always_inline))

namespace tmaasync_emulate {

// --- the thread that runs ------------------------------------------------------------------------

// A power of two, and the alignment of every stack: that is how a thread finds itself.
constexpr std::size_t kStackBytes = 128 * 1024;

// A shared address is an offset into the CTA's window, which starts with its dynamic memory; of
// another CTA of the cluster, its rank plus one above bit 24.
constexpr uint32_t kMaxDynamicBytes = 227 * 1024;
constexpr uint32_t kMaxStaticBytes = 48 * 1024;
constexpr uint32_t kWindowBytes = 228 * 1024 + kMaxStaticBytes;
constexpr int kRankShift = 24;
constexpr uint32_t kOffsetMask = (1u << kRankShift) - 1;

// Addresses from `start` to before `end`.
struct Reach {
    std::uintptr_t start = 0;
    std::uintptr_t end = 0;
};

// What the threads of a cluster were last found to be allowed to access: a few arrays, shared
// memory.
constexpr std::size_t kReaches = 4;

// A CUDA thread as its own code sees it.
struct Thread {
    // Where its parameters lie on its stack, above all that its code keeps there; 0 if unknown.
    // First, as entry.hpp finds it.
    std::uintptr_t parameters = 0;
    uint3 thread{};
    uint3 block{};
    uint3 block_dim{};
    uint3 grid_dim{};
    uint32_t lane = 0;
    uint32_t rank = 0;  // of its CTA in the cluster
    uint32_t ctas = 0;  // of the cluster
    uint3 cluster_dim{1, 1, 1};
    uint32_t static_offset = 0;
    uint8_t* window = nullptr;
    const uint32_t* live_lanes = nullptr;
    bool* has_static_shared = nullptr;
    Reach stack{};                   // its own; empty where every access is recorded
    const Reach* reaches = nullptr;  // kReaches of them
    bool carries = false;            // the condition code of add.cc and its kind
};

// Of a kernel's library, false until its first launch: what initialises it runs on no thread of a
// kernel.
__attribute__((visibility("hidden"))) inline bool has_launched = false;

TMAASYNC_EMULATE_INLINE std::uintptr_t stack_pointer() {
    return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
}

TMAASYNC_EMULATE_INLINE TMAASYNC_EMULATE_UNSEEN bool is_on_own_stack(std::uintptr_t address) {
    return (address ^ stack_pointer()) < kStackBytes;
}

// What the topmost word of the stack that runs now points to.
TMAASYNC_EMULATE_INLINE Thread& current_thread() {
    const std::uintptr_t top = (stack_pointer() | (kStackBytes - 1)) + 1;
    const auto* owner = reinterpret_cast<Thread**>(top - sizeof(void*));
    Thread* thread;
    // Not one of the kernel's own loads, which the compiler reports.
#if defined(__x86_64__)
    asm("movq %1, %0" : "=r"(thread) : "m"(*owner));
#elif defined(__aarch64__)
    asm("ldr %0, %1" : "=r"(thread) : "m"(*owner));
#else
    thread = *owner;
#endif
    return *thread;
}

// Ends the launch.
[[noreturn]] TMAASYNC_EMULATE_CALL void fail(const char* reason);

// The same, of a call that returns to `site`.
[[noreturn]] TMAASYNC_EMULATE_CALL void fail_at(const void* site, const char* reason);

// The instruction exit.
[[noreturn]] TMAASYNC_EMULATE_CALL void end_thread();

struct LaunchShape {
    uint3 cluster;
    uint32_t dynamic_shared_bytes;
    uint32_t shared_bytes;  // static ones too
};
TMAASYNC_EMULATE_CALL LaunchShape launch_shape();

// Lets others run, and goes on. For a thread that asks again and again.
TMAASYNC_EMULATE_CALL void spin(const char* instruction);

// Names the role of the calling thread's warp. A number of UINT32_MAX is none.
TMAASYNC_EMULATE_CALL void set_role(const char* name, uint32_t number);

// --- threads together ----------------------------------------------------------------------------

TMAASYNC_EMULATE_CALL void sync_warp(uint32_t mask);
TMAASYNC_EMULATE_CALL bool elect();
enum class ShuffleKind : uint8_t { kIndex, kUp, kDown, kXor };
TMAASYNC_EMULATE_CALL uint64_t
shuffle(uint32_t mask, uint64_t value, uint32_t source, ShuffleKind kind);
TMAASYNC_EMULATE_CALL uint32_t ballot(uint32_t mask, bool value);
// The value of each lane of the mask, for all of them; returns those that have not ended.
TMAASYNC_EMULATE_CALL uint32_t
gather(const char* instruction, uint32_t mask, uint64_t value, uint64_t* values);
// The lanes that call it from the same place, and could do so at once.
TMAASYNC_EMULATE_CALL uint32_t active_lanes();
TMAASYNC_EMULATE_CALL void store_matrix(
    uint32_t row, int matrices, bool is_transposed, const uint32_t* values
);
TMAASYNC_EMULATE_CALL void load_matrix(
    uint32_t row, int matrices, bool is_transposed, uint32_t* values
);

// Of every lane of the warp `count` words, lane after lane.
TMAASYNC_EMULATE_CALL void gather_words(
    const char* instruction, const uint32_t* words, int count, uint32_t* all
);

// threads 0 means all of the CTA.
TMAASYNC_EMULATE_CALL void named_barrier_sync(uint32_t number, uint32_t threads);
TMAASYNC_EMULATE_CALL void named_barrier_arrive(uint32_t number, uint32_t threads);
// Waits for all of the CTA; returns how many gave true.
// `line`: where the kernel calls it, 0 if unknown.
TMAASYNC_EMULATE_CALL void sync_block(uint32_t line);
TMAASYNC_EMULATE_CALL uint32_t count_in_block(bool value, uint32_t line);
TMAASYNC_EMULATE_CALL void cluster_barrier_arrive(bool releases);
TMAASYNC_EMULATE_CALL void cluster_barrier_wait();

// setmaxnreg: of each thread of the warpgroup.
TMAASYNC_EMULATE_CALL void set_max_registers(bool claims, uint32_t registers);

// --- ordinary accesses ---------------------------------------------------------------------------

enum class AccessKind : uint8_t { kRead, kWrite, kVolatileRead, kVolatileWrite };

// By the code at `site`. Ends the launch if the thread may not access these bytes.
TMAASYNC_EMULATE_CALL void touch(
    const void* site, const void* pointer, std::size_t bytes, AccessKind kind, bool is_aligned
);

// Before a load that the chip may answer from a cache filled when the launch began: ends the launch
// if it has written there.
TMAASYNC_EMULATE_CALL void check_only_read(const void* pointer, std::size_t bytes);

// memmove and memset, for the code at `site`.
TMAASYNC_EMULATE_CALL void* copy(const void* site, void* to, const void* from, std::size_t bytes);
TMAASYNC_EMULATE_CALL void* fill(const void* site, void* to, int value, std::size_t bytes);

// --- memory of the kernel's own ------------------------------------------------------------------

TMAASYNC_EMULATE_CALL void* allocate(std::size_t bytes);
TMAASYNC_EMULATE_CALL void release(const void* site, void* memory);

// --- memory order --------------------------------------------------------------------------------

enum class Scope : uint8_t { kCta, kCluster, kGpu, kSystem };

// The thread's next volatile access, to this address, has this scope instead of the system's.
TMAASYNC_EMULATE_CALL void narrow_scope(const volatile void* address, Scope scope);

TMAASYNC_EMULATE_CALL void fence(Scope scope);
TMAASYNC_EMULATE_CALL void fence_mbarrier_init();
TMAASYNC_EMULATE_CALL void fence_proxy_async_shared();
TMAASYNC_EMULATE_CALL void fence_proxy_async_global();

// An operation on memory that is atomic for the threads of a scope, that changes memory as it is
// now, or not, and whose result depends on what it holds, or not. Other clusters may run on other
// cores of the host.
TMAASYNC_EMULATE_CALL void begin_atomic(
    const void* address, uint32_t bytes, bool changes, bool depends, Scope scope
);
// If `address` holds `old` it now holds `changed`; else `old` is what it holds.
TMAASYNC_EMULATE_CALL bool replace_atomically(
    void* address, void* old, const void* changed, uint32_t bytes
);
TMAASYNC_EMULATE_CALL void end_atomic(bool has_changed);

// Of a word of global memory, with acquire or release at system scope.
TMAASYNC_EMULATE_CALL uint32_t load_acquire_system(const uint32_t* word);
TMAASYNC_EMULATE_CALL void store_release_system(uint32_t* word, uint32_t value);
TMAASYNC_EMULATE_CALL void add_release_system(uint32_t* word, uint32_t value);
// The same of a signal of a rank.
TMAASYNC_EMULATE_CALL void post_signal(
    uint32_t* word, uint32_t rank, uint32_t signal, uint32_t epoch
);
TMAASYNC_EMULATE_CALL void add_to_signal(
    uint32_t* word, uint32_t rank, uint32_t signal, uint32_t value
);
// Until a signal of this rank has reached the epoch, modulo 2^32.
TMAASYNC_EMULATE_CALL void wait_for_signal(
    const uint32_t* word, uint32_t rank, uint32_t signal, uint32_t epoch
);

// The word of the barrier of a cooperative launch's grid.
TMAASYNC_EMULATE_CALL uint32_t* grid_barrier();
TMAASYNC_EMULATE_CALL bool is_cooperative();

// griddepcontrol.wait
TMAASYNC_EMULATE_CALL void wait_for_grids();

// --- mbarriers -----------------------------------------------------------------------------------

// Whether an arrival releases, or a wait acquires.
enum class Order : uint8_t { kRelaxed, kOrdered };

TMAASYNC_EMULATE_CALL void mbarrier_init(uint32_t barrier, uint32_t count);
TMAASYNC_EMULATE_CALL void mbarrier_inval(uint32_t barrier);
// Expects bytes, then arrives; returns the state token.
TMAASYNC_EMULATE_CALL uint64_t
mbarrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes, Order order);
// Arrives, and lowers the arrivals that later phases wait for by as many.
TMAASYNC_EMULATE_CALL void mbarrier_check_no_complete(uint32_t barrier, uint32_t count);
TMAASYNC_EMULATE_CALL uint64_t mbarrier_arrive_drop(uint32_t barrier, uint32_t count, Order order);
TMAASYNC_EMULATE_CALL void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes);
TMAASYNC_EMULATE_CALL void mbarrier_complete_tx(uint32_t barrier, uint32_t bytes);
// Around the store of an st.async, whose bytes the mbarrier counts.
TMAASYNC_EMULATE_CALL void async_store_begin(uint32_t barrier);
TMAASYNC_EMULATE_CALL void async_store_end(uint32_t barrier, uint32_t bytes);
TMAASYNC_EMULATE_CALL bool mbarrier_try_wait(uint32_t barrier, uint32_t parity, Order order);
TMAASYNC_EMULATE_CALL bool mbarrier_test_wait(uint32_t barrier, uint32_t parity, Order order);
TMAASYNC_EMULATE_CALL bool mbarrier_test_state(uint32_t barrier, uint64_t state);

// --- asynchronous copies -------------------------------------------------------------------------

// The box of a tensor instruction: of `rank` coordinates, innermost first; of an im2col copy with
// its offsets.
struct Box {
    const void* map;
    int rank;
    const int32_t* at;
    const uint16_t* offsets = nullptr;
};

TMAASYNC_EMULATE_CALL void bulk_load(
    uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier
);
TMAASYNC_EMULATE_CALL void bulk_load_multicast(
    uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier, uint32_t cta_mask
);
TMAASYNC_EMULATE_CALL void bulk_prefetch(const void* global, uint32_t bytes);
TMAASYNC_EMULATE_CALL void bulk_store(void* global, uint32_t shared, uint32_t bytes);

// In the orders of tmaasync::ptx::ReduceOp and tmaasync::ptx::ElementType.
struct Reduction {
    int op;
    int type;
};

TMAASYNC_EMULATE_CALL void bulk_reduce(
    Reduction reduction, void* global, uint32_t shared, uint32_t bytes
);
// Out of this CTA's shared memory into another's; a null reduction overwrites.
TMAASYNC_EMULATE_CALL void bulk_push(
    uint32_t remote_shared,
    uint32_t shared,
    uint32_t bytes,
    uint32_t remote_barrier,
    const Reduction* reduction
);
TMAASYNC_EMULATE_CALL void tensor_load(uint32_t shared, const Box& box, uint32_t barrier);
TMAASYNC_EMULATE_CALL void tensor_load_multicast(
    uint32_t shared, const Box& box, uint32_t barrier, uint32_t cta_mask
);
TMAASYNC_EMULATE_CALL void tensor_store(const Box& box, uint32_t shared);
// `op` in the order of tmaasync::ptx::ReduceOp.
TMAASYNC_EMULATE_CALL void tensor_reduce(int op, const Box& box, uint32_t shared);
TMAASYNC_EMULATE_CALL void tensor_prefetch(const Box& box);
TMAASYNC_EMULATE_CALL void check_map(const void* map);
TMAASYNC_EMULATE_CALL void bulk_commit();
TMAASYNC_EMULATE_CALL void bulk_wait(uint32_t pending);
TMAASYNC_EMULATE_CALL void bulk_wait_read(uint32_t pending);

// cp.async: of `bytes` the first `source_bytes` are read, the rest become zeros.
TMAASYNC_EMULATE_CALL void thread_copy(
    uint32_t shared, const void* global, uint32_t bytes, uint32_t source_bytes
);
TMAASYNC_EMULATE_CALL void thread_copies_commit();
TMAASYNC_EMULATE_CALL void thread_copies_wait(uint32_t pending);
// Arrives when they have landed; first it may raise the pending count.
TMAASYNC_EMULATE_CALL void thread_copies_arrive(uint32_t barrier, bool raises);

// --- edits of tensor maps ------------------------------------------------------------------------

// The fields that tensormap.replace sets.
enum class MapField : uint8_t {
    kGlobalAddress,
    kRank,
    kGlobalDim,
    kGlobalStride,
    kBoxDim,
    kElementStride,
    kElementType,
    kInterleave,
    kSwizzle,
    kFill,
};

TMAASYNC_EMULATE_CALL void* map_in_shared(uint32_t shared_map);
// `ordinal` counts dimensions innermost first.
TMAASYNC_EMULATE_CALL void replace_in_map(void* map, MapField field, int ordinal, uint64_t value);
TMAASYNC_EMULATE_CALL void copy_map_and_release(void* map, uint32_t shared_map);
TMAASYNC_EMULATE_CALL void fence_maps_release();
TMAASYNC_EMULATE_CALL void fence_map_acquire(const void* map);

// --- wgmma ---------------------------------------------------------------------------------------

// In the order of tmaasync::ptx::MmaType.
enum class MmaElement : uint8_t { kF16, kBF16, kTF32, kE4M3, kE5M2, kS8, kU8 };

// The type in which a thread holds its accumulators.
enum class MmaSum : uint8_t { kFloat, kHalf, kInt };

// One wgmma.mma_async as one thread issues it.
struct Mma {
    void* accumulators;
    uint32_t columns;
    uint64_t a;
    uint64_t b;
    uint32_t a_registers[4];
    const void* a_held;  // where the thread holds them
    MmaElement a_element;
    MmaElement b_element;
    MmaSum sum;
    bool a_in_registers;
    bool accumulates;
    bool a_transposed;
    bool b_transposed;
    bool is_negated;
};

TMAASYNC_EMULATE_CALL void mma_fence();
TMAASYNC_EMULATE_CALL void mma_issue(const Mma& mma);
TMAASYNC_EMULATE_CALL void mma_commit();
TMAASYNC_EMULATE_CALL void mma_wait(uint32_t pending);

// --- the kernel itself ---------------------------------------------------------------------------

struct ParameterFacts {
    char kind;  // as in tmaasync._compile.Parameter; 'S' for a struct
    uint32_t size_bytes;
};

}  // namespace tmaasync_emulate
