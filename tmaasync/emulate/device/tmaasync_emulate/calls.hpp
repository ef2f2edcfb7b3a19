// The calls of a kernel's code into the runtime, which is a separate library, and the state of a
// thread that the code reads. runtime/calls.cpp defines everything declared here.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <tmaasync_emulate/fault.hpp>

#define TMAASYNC_EMULATE_CALL __attribute__((visibility("default")))
// Marks our functions in the kernel's library, whose accesses are not the kernel's.
#define TMAASYNC_EMULATE_UNSEEN __attribute__((no_sanitize("thread")))
// Inlines a call, so that its return address leads the runtime to the kernel's own line.
#define TMAASYNC_EMULATE_INLINE inline __attribute__((always_inline))

namespace tmaasync_emulate {

// --- the running thread --------------------------------------------------------------------------

// A power of two, and the alignment of every stack: a thread finds itself by its stack pointer.
constexpr std::size_t kStackBytes = 128 * 1024;

// As on the chip, a shared address is the rank of a CTA of the cluster from bit 24 up, and an
// offset into the CTA's window below, which starts with its dynamic memory.
constexpr uint32_t kMaxDynamicBytes = 227 * 1024;
constexpr uint32_t kMaxStaticBytes = 48 * 1024;
constexpr uint32_t kWindowBytes = 228 * 1024 + kMaxStaticBytes;
constexpr int kRankShift = 24;
constexpr uint32_t kOffsetMask = (1u << kRankShift) - 1;
// Distance of the windows of a cluster's CTAs, and the alignment of the first, for the 16 CTAs that
// a cluster may have: the low bits of a generic pointer into shared memory are the shared address.
constexpr std::size_t kWindowStride = std::size_t{1} << kRankShift;
constexpr std::size_t kWindowsAlignment = 16 * kWindowStride;

// The shared address of a pointer to other memory. CUDA leaves it undefined, so that only a use of
// it is a fault. No CTA has that rank, and no shared memory these offset bits, of which a wgmma
// descriptor keeps 18.
constexpr uint32_t kNoSharedRank = 0xfe;
constexpr uint32_t kNoSharedAddress = kNoSharedRank << kRankShift | 228 * 1024;

constexpr bool is_no_shared_address(std::uintptr_t address) {
    return address >> kRankShift == kNoSharedRank;
}

// Addresses from `start` to before `end`.
struct Reach {
    std::uintptr_t start = 0;
    std::uintptr_t end = 0;
};

// Number of ranges (a few arrays, shared memory) that the cluster's threads were last allowed to
// access.
constexpr std::size_t kReaches = 4;

// A CUDA thread as its own code sees it.
struct Thread {
    // Address of the parameters on the thread's stack, above its other contents; 0 if unknown. This
    // is the first member, as entry.hpp expects.
    std::uintptr_t parameters = 0;
    uint3 thread{};
    uint3 block{};
    uint3 block_dim{};
    uint3 grid_dim{};
    uint32_t lane = 0;
    uint32_t rank = 0;  // rank of its CTA in the cluster
    uint32_t ctas = 0;  // number of CTAs of the cluster
    uint3 cluster_dim{1, 1, 1};
    uint32_t static_offset = 0;
    uint8_t* window = nullptr;
    const uint32_t* live_lanes = nullptr;
    bool* has_static_shared = nullptr;
    Reach stack{};                   // the thread's own stack; empty if every access is recorded
    const Reach* reaches = nullptr;  // array of kReaches ranges
    bool carries = false;            // the condition code of add.cc and similar instructions
};

// False until the first launch of a kernel's library: no thread of a kernel runs its initialisers.
__attribute__((visibility("hidden"))) inline bool has_launched = false;

TMAASYNC_EMULATE_INLINE std::uintptr_t stack_pointer() {
    return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
}

TMAASYNC_EMULATE_INLINE TMAASYNC_EMULATE_UNSEEN bool is_on_own_stack(std::uintptr_t address) {
    return (address ^ stack_pointer()) < kStackBytes;
}

// The thread whose address is in the topmost word of the running stack.
TMAASYNC_EMULATE_INLINE Thread& current_thread() {
    const std::uintptr_t top = (stack_pointer() | (kStackBytes - 1)) + 1;
    const auto* owner = reinterpret_cast<Thread**>(top - sizeof(void*));
    Thread* thread;
    // An asm load, which the compiler does not report as one of the kernel's own.
#if defined(__x86_64__)
    asm("movq %1, %0" : "=r"(thread) : "m"(*owner));
#elif defined(__aarch64__)
    asm("ldr %0, %1" : "=r"(thread) : "m"(*owner));
#else
    thread = *owner;
#endif
    return *thread;
}

// Ends the launch with a fault of these facts. A text among them is an address.
[[noreturn]] TMAASYNC_EMULATE_CALL void fail(
    FaultKind kind, const Mention* facts = nullptr, uint32_t count = 0
);

// The same, at a call that returns to `site`.
[[noreturn]] TMAASYNC_EMULATE_CALL void fail_at(
    const void* site, FaultKind kind, const Mention* facts = nullptr, uint32_t count = 0
);

TMAASYNC_EMULATE_INLINE Mention text_at(const char* text) {
    return {reinterpret_cast<std::uintptr_t>(text), MentionKind::kText};
}

// The instruction exit.
[[noreturn]] TMAASYNC_EMULATE_CALL void end_thread();

struct LaunchShape {
    uint3 cluster;
    uint32_t dynamic_shared_bytes;
    uint32_t shared_bytes;  // includes static shared variables
    uint32_t sms;
};
TMAASYNC_EMULATE_CALL LaunchShape launch_shape();

// Lets others run, then goes on. Called by a thread that polls.
TMAASYNC_EMULATE_CALL void spin(const char* instruction);

// Names the role of the calling thread's warp. A number of UINT32_MAX means no number.
TMAASYNC_EMULATE_CALL void set_role(const char* name, uint32_t number);

// --- threads together ----------------------------------------------------------------------------

TMAASYNC_EMULATE_CALL void sync_warp(uint32_t mask);
TMAASYNC_EMULATE_CALL bool elect();
enum class ShuffleKind : uint8_t { kIndex, kUp, kDown, kXor };
TMAASYNC_EMULATE_CALL uint64_t
shuffle(uint32_t mask, uint64_t value, uint32_t source, ShuffleKind kind);
TMAASYNC_EMULATE_CALL uint32_t ballot(uint32_t mask, bool value);
// Gives all lanes of the mask the value of each one. Returns the live lanes.
TMAASYNC_EMULATE_CALL uint32_t
gather(const char* instruction, uint32_t mask, uint64_t value, uint64_t* values);
// The lanes that execute this call together, or could do so.
TMAASYNC_EMULATE_CALL uint32_t active_lanes();
TMAASYNC_EMULATE_CALL void store_matrix(
    uint32_t row, int matrices, bool is_transposed, const uint32_t* values
);
TMAASYNC_EMULATE_CALL void load_matrix(
    uint32_t row, int matrices, bool is_transposed, uint32_t* values
);

// Forms of ldmatrix and stmatrix for bytes: 16 rows of 16 bytes, or 8 for stmatrix, transposed; 8
// rows of 16 elements of 4 or 6 bits, which become bytes.
enum class ByteMatrix : uint8_t {
    kNone,
    kTransposed,
    kFrom4Bits,
    kFrom6Bits,
    kTransposedFrom4Bits,
    kTransposedFrom6Bits,
};

TMAASYNC_EMULATE_CALL void store_byte_matrix(uint32_t row, int matrices, const uint32_t* values);
TMAASYNC_EMULATE_CALL void load_byte_matrix(
    uint32_t row, int matrices, ByteMatrix form, uint32_t* values
);

// Gathers `count` words of every lane of the warp, lane after lane.
TMAASYNC_EMULATE_CALL void gather_words(
    const char* instruction, const uint32_t* words, int count, uint32_t* all
);

// `threads` 0 means all of the CTA.
TMAASYNC_EMULATE_CALL void named_barrier_sync(uint32_t number, uint32_t threads);
TMAASYNC_EMULATE_CALL void named_barrier_arrive(uint32_t number, uint32_t threads);
// Waits for all of the CTA, and returns the number of true values. `line` is the kernel's line of
// the call, 0 if unknown.
TMAASYNC_EMULATE_CALL void sync_block(uint32_t line);
TMAASYNC_EMULATE_CALL uint32_t count_in_block(bool value, uint32_t line);
TMAASYNC_EMULATE_CALL void cluster_barrier_arrive(bool releases);
TMAASYNC_EMULATE_CALL void cluster_barrier_wait();

// setmaxnreg. `registers` is the number of each thread of the warpgroup.
TMAASYNC_EMULATE_CALL void set_max_registers(bool claims, uint32_t registers);

// --- ordinary accesses ---------------------------------------------------------------------------

enum class AccessKind : uint8_t { kRead, kWrite, kVolatileRead, kVolatileWrite };

// Checks an access by the code at `site`. Ends the launch if the thread may not access the bytes.
TMAASYNC_EMULATE_CALL void touch(
    const void* site, const void* pointer, std::size_t bytes, AccessKind kind, bool is_aligned
);

// Called before a load that the chip may answer from a cache filled at the launch's start: ends the
// launch if the launch has written there.
TMAASYNC_EMULATE_CALL void check_only_read(const void* pointer, std::size_t bytes);

// memmove and memset, for the code at `site`.
TMAASYNC_EMULATE_CALL void* copy(const void* site, void* to, const void* from, std::size_t bytes);
TMAASYNC_EMULATE_CALL void* fill(const void* site, void* to, int value, std::size_t bytes);

// --- memory of the kernel's own ------------------------------------------------------------------

TMAASYNC_EMULATE_CALL void* allocate(std::size_t bytes);
TMAASYNC_EMULATE_CALL void release(const void* site, void* memory);

// --- memory order --------------------------------------------------------------------------------

enum class Scope : uint8_t { kCta, kCluster, kGpu, kSystem };

// Gives the thread's next volatile access, to this address, a scope other than the system's.
TMAASYNC_EMULATE_CALL void narrow_scope(const volatile void* address, Scope scope);

TMAASYNC_EMULATE_CALL void fence(Scope scope);
TMAASYNC_EMULATE_CALL void fence_mbarrier_init();
TMAASYNC_EMULATE_CALL void fence_proxy_async_shared();
TMAASYNC_EMULATE_CALL void fence_proxy_async_global();

// The use that an atomic operation makes of the old contents: none in an exchange.
enum class OldValue : uint8_t { kUnused, kUsed, kCompared, kNotReturned };

// An addition to a counter, of whose old value its thread learns min(old / divisor, limit).
struct Count {
    uint64_t addend = 0;  // 0: no counter
    uint64_t divisor = 1;
    uint64_t limit = UINT64_MAX;

    uint64_t seen(uint64_t old) const { return old / divisor < limit ? old / divisor : limit; }
};

struct AtomicForm {
    OldValue old = OldValue::kUsed;
    Scope scope = Scope::kGpu;
    uint64_t operation = 0;  // a number for it and its type if it commutes with itself, else 0
    Count count = {};
    bool changes = false;            // the present contents
    const void* expected = nullptr;  // the contents that a compare and swap replaces
};

// Begins an atomic operation for the threads of a scope. Other clusters may run on other cores of
// the host.
TMAASYNC_EMULATE_CALL void begin_atomic(
    const void* address, uint32_t bytes, const AtomicForm& form
);
// Stores `changed` if `address` holds `old`; else puts the contents into `old`.
TMAASYNC_EMULATE_CALL bool replace_atomically(
    void* address, void* old, const void* changed, uint32_t bytes
);
TMAASYNC_EMULATE_CALL void end_atomic(const void* address, bool has_changed);

// Access a word of global memory, with acquire or release at system scope.
TMAASYNC_EMULATE_CALL uint32_t load_acquire_system(const uint32_t* word);
TMAASYNC_EMULATE_CALL void store_release_system(uint32_t* word, uint32_t value);
TMAASYNC_EMULATE_CALL void add_release_system(uint32_t* word, uint32_t value);
// Change a signal of a rank, with release at system scope.
TMAASYNC_EMULATE_CALL void post_signal(
    uint32_t* word, uint32_t rank, uint32_t signal, uint32_t epoch
);
TMAASYNC_EMULATE_CALL void add_to_signal(
    uint32_t* word, uint32_t rank, uint32_t signal, uint32_t value
);
// Waits until a signal of this rank has reached the epoch, modulo 2^32.
TMAASYNC_EMULATE_CALL void wait_for_signal(
    const uint32_t* word, uint32_t rank, uint32_t signal, uint32_t epoch
);

// The barrier of the grid in a cooperative launch: its word, an arrival for a block, which returns
// the phase, and a wait for the phase.
TMAASYNC_EMULATE_CALL uint32_t* grid_barrier();
TMAASYNC_EMULATE_CALL uint32_t grid_barrier_arrive();
TMAASYNC_EMULATE_CALL void grid_barrier_wait(uint32_t phase);
TMAASYNC_EMULATE_CALL bool is_cooperative();

// griddepcontrol.wait
TMAASYNC_EMULATE_CALL void wait_for_grids();

// --- mbarriers -----------------------------------------------------------------------------------

// kOrdered: an arrival releases, or a wait acquires.
enum class Order : uint8_t { kRelaxed, kOrdered };

TMAASYNC_EMULATE_CALL void mbarrier_init(uint32_t barrier, uint32_t count);
TMAASYNC_EMULATE_CALL void mbarrier_inval(uint32_t barrier);
// Expects bytes, then arrives. Returns the state token.
TMAASYNC_EMULATE_CALL uint64_t
mbarrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes, Order order);
// Arrives, and lowers the arrival count of later phases by as many.
TMAASYNC_EMULATE_CALL void mbarrier_check_no_complete(uint32_t barrier, uint32_t count);
TMAASYNC_EMULATE_CALL uint64_t mbarrier_arrive_drop(uint32_t barrier, uint32_t count, Order order);
TMAASYNC_EMULATE_CALL void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes);
TMAASYNC_EMULATE_CALL void mbarrier_complete_tx(uint32_t barrier, uint32_t bytes);
// Called before and after the store of an st.async, whose bytes the mbarrier counts.
TMAASYNC_EMULATE_CALL void async_store_begin(uint32_t barrier);
TMAASYNC_EMULATE_CALL void async_store_end(uint32_t barrier, uint32_t bytes);
TMAASYNC_EMULATE_CALL bool mbarrier_try_wait(uint32_t barrier, uint32_t parity, Order order);
TMAASYNC_EMULATE_CALL bool mbarrier_test_wait(uint32_t barrier, uint32_t parity, Order order);
TMAASYNC_EMULATE_CALL bool mbarrier_test_state(uint32_t barrier, uint64_t state);

// --- asynchronous copies -------------------------------------------------------------------------

// The elements that a tensor instruction moves: a box; pixels of a convolution, also along its
// width alone (im2col::w, im2col::w::128); or four rows of a matrix (tile::gather4,
// tile::scatter4).
enum class BoxMode : uint8_t { kTile, kIm2col, kIm2colW, kIm2colW128, kRows };

// The box of a tensor instruction: `rank` coordinates, innermost first, and the offsets of an
// im2col copy. For kRows, rank is 2, and the coordinates are a column and four rows.
struct Box {
    const void* map;
    int rank;
    const int32_t* at;
    const uint16_t* offsets = nullptr;
    BoxMode mode = BoxMode::kTile;
};

TMAASYNC_EMULATE_CALL void bulk_load(
    uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier
);
TMAASYNC_EMULATE_CALL void bulk_load_multicast(
    uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier, uint32_t cta_mask
);
TMAASYNC_EMULATE_CALL void bulk_prefetch(const void* global, uint32_t bytes);
// Bit i of `byte_mask` chooses byte i of every 16.
TMAASYNC_EMULATE_CALL void bulk_store(
    void* global, uint32_t shared, uint32_t bytes, uint32_t byte_mask = 0xffff
);

// The numbers of tmaasync::ptx::ReduceOp and tmaasync::ptx::ElementType.
struct Reduction {
    int op;
    int type;
};

TMAASYNC_EMULATE_CALL void bulk_reduce(
    Reduction reduction, void* global, uint32_t shared, uint32_t bytes
);
// Copies from this CTA's shared memory to another's. A null reduction overwrites.
TMAASYNC_EMULATE_CALL void bulk_push(
    uint32_t remote_shared,
    uint32_t shared,
    uint32_t bytes,
    uint32_t remote_barrier,
    const Reduction* reduction
);
// With a `cta_group` of 2, the barrier may lie in the other CTA of the target's pair.
TMAASYNC_EMULATE_CALL void tensor_load(
    uint32_t shared, const Box& box, uint32_t barrier, uint32_t cta_group = 1
);
TMAASYNC_EMULATE_CALL void tensor_load_multicast(
    uint32_t shared, const Box& box, uint32_t barrier, uint32_t cta_mask, uint32_t cta_group = 1
);
TMAASYNC_EMULATE_CALL void tensor_store(const Box& box, uint32_t shared);
// `op` is a number of tmaasync::ptx::ReduceOp.
TMAASYNC_EMULATE_CALL void tensor_reduce(int op, const Box& box, uint32_t shared);
TMAASYNC_EMULATE_CALL void tensor_prefetch(const Box& box);
TMAASYNC_EMULATE_CALL void check_map(const void* map);
TMAASYNC_EMULATE_CALL void bulk_commit();
TMAASYNC_EMULATE_CALL void bulk_wait(uint32_t pending);
TMAASYNC_EMULATE_CALL void bulk_wait_read(uint32_t pending);

// cp.async: reads the first `source_bytes` of `bytes`, and fills the rest with zeros.
TMAASYNC_EMULATE_CALL void thread_copy(
    uint32_t shared, const void* global, uint32_t bytes, uint32_t source_bytes
);
TMAASYNC_EMULATE_CALL void thread_copies_commit();
TMAASYNC_EMULATE_CALL void thread_copies_wait(uint32_t pending);
// Arrives when the copies have landed. If `raises`, it first raises the pending count.
TMAASYNC_EMULATE_CALL void thread_copies_arrive(uint32_t barrier, bool raises);

// --- cluster launch control ----------------------------------------------------------------------

#if defined(TMAASYNC_EMULATE_WITHOUT_CLUSTER_LAUNCH_CONTROL)
#define TMAASYNC_EMULATE_CLUSTERS \
    [[gnu::error("clusterlaunchcontrol " TMAASYNC_EMULATE_WHY_NOT_CLUSTER_LAUNCH_CONTROL)]]
#else
#define TMAASYNC_EMULATE_CLUSTERS
#endif
// Asks for the work of a cluster that has not started. The response of 16 bytes lands in this CTA,
// or with `is_for_all` at the same offset in every CTA of the cluster, and counts on the mbarrier
// there.
TMAASYNC_EMULATE_CLUSTERS TMAASYNC_EMULATE_CALL void try_cancel(
    uint32_t response, uint32_t barrier, bool is_for_all
);
// True if the response of four words has a cluster.
TMAASYNC_EMULATE_CLUSTERS TMAASYNC_EMULATE_CALL bool is_canceled(const uint32_t* response);
// The position in the grid of that cluster's first CTA.
TMAASYNC_EMULATE_CLUSTERS TMAASYNC_EMULATE_CALL uint3 first_ctaid(const uint32_t* response);
#undef TMAASYNC_EMULATE_CLUSTERS

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
    kSwizzleAtom,
    kFill,
};

TMAASYNC_EMULATE_CALL void* map_in_shared(uint32_t shared_map);
// `ordinal` counts dimensions innermost first.
TMAASYNC_EMULATE_CALL void replace_in_map(void* map, MapField field, int ordinal, uint64_t value);
TMAASYNC_EMULATE_CALL void copy_map_and_release(void* map, uint32_t shared_map);
TMAASYNC_EMULATE_CALL void fence_maps_release();
TMAASYNC_EMULATE_CALL void fence_map_acquire(const void* map);

// --- wgmma ---------------------------------------------------------------------------------------

// The numbers of tmaasync::ptx::MmaType.
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
    const void* a_held;  // address of A's registers in the thread
    MmaElement a_element;
    MmaElement b_element;
    MmaSum sum;
    bool a_in_registers;
    bool accumulates;
    bool a_transposed;
    bool b_transposed;
    bool is_negated;
};

// Defined for a chip without wgmma: the reason, as a string.
#if defined(TMAASYNC_EMULATE_WITHOUT_WGMMA)
#define TMAASYNC_EMULATE_MMA [[gnu::error("wgmma " TMAASYNC_EMULATE_WHY_NOT_WGMMA)]]
#else
#define TMAASYNC_EMULATE_MMA
#endif
TMAASYNC_EMULATE_MMA TMAASYNC_EMULATE_CALL void mma_fence();
TMAASYNC_EMULATE_MMA TMAASYNC_EMULATE_CALL void mma_issue(const Mma& mma);
TMAASYNC_EMULATE_MMA TMAASYNC_EMULATE_CALL void mma_commit();
TMAASYNC_EMULATE_MMA TMAASYNC_EMULATE_CALL void mma_wait(uint32_t pending);
#undef TMAASYNC_EMULATE_MMA

// --- tcgen05 -------------------------------------------------------------------------------------

// The kind of a tcgen05.mma.
enum class Tcgen05Kind : uint8_t { kF16, kTF32, kF8F6F4, kI8, kMXF8F6F4, kMXF4, kMXF4NVF4 };

// One mma.sync of m16n8 with a kind, as one lane executes it.
struct WarpMma {
    Tcgen05Kind kind;
    uint32_t instruction;  // types as in tcgen05's instruction descriptor
    uint32_t scale_vector;
    uint32_t a[4];
    uint32_t b[4];      // of dense A two
    uint32_t metadata;  // of sparse A: four bits for each group along K, the first in the lowest
    uint32_t sums[4];   // of D; two halves in one
    uint32_t a_scales;
    uint32_t b_scales;
    // The byte of the scale factors, and the lane of a quad that has them.
    uint16_t a_byte;
    uint16_t a_thread;
    uint16_t b_byte;
    uint16_t b_thread;
};

TMAASYNC_EMULATE_CALL void multiply_with_warp(WarpMma& mma);

// --- the kernel itself ---------------------------------------------------------------------------

struct ParameterFacts {
    char kind;  // as in tmaasync._source.compile.Parameter; 'S' for a struct
    uint32_t size_bytes;
};

}  // namespace tmaasync_emulate
