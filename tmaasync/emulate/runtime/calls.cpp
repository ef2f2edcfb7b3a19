// The runtime's functions that kernels call (tmaasync_emulate/calls.hpp). They are compiled once,
// and never with the instrumentation that a kernel may have.
#include <cstdio>
#include <cstring>
#include <mutex>
#include <tmaasync_emulate/calls.hpp>

#include "copies.hpp"
#include "mma.hpp"
#include "process_mutex.hpp"
#include "register_budget.hpp"
#include "sanitizer.hpp"
#include "signals.hpp"
#include "tensor_map_edit.hpp"
#include "thread_end.hpp"
#include "warp.hpp"

// The calling thread, with its call site recorded. Every function here begins with it.
#define TMAASYNC_EMULATE_CALLER() caller(reinterpret_cast<uintptr_t>(__builtin_return_address(0)))

namespace tmaasync_emulate {

namespace {

Fiber& caller(uintptr_t site) {
    Fiber& fiber = current_fiber();
    fiber.site = site;
    fiber.cluster->watch().note_call();
    if (fiber.cluster->watch().is_on()) fiber.cluster->watch().end();
    if (fiber.repeat) fiber.cluster->check_repeat(fiber);
    return fiber;
}

// Hash of a reading thread's state: its stack, where its registers are saved during calls.
__attribute__((noinline)) uint64_t state_at_read(const void* pointer) {
    __builtin_unwind_init();
    const auto low = reinterpret_cast<uintptr_t>(__builtin_alloca(sizeof(void*)));
    return hash_of(low, low | (kStackBytes - 1), reinterpret_cast<uintptr_t>(pointer));
}

// Lets others run if a thread repeats a read in the same state, as a polling thread does.
void watch_access(Fiber& fiber, const void* pointer, AccessKind kind) {
    LoopWatch& watch = fiber.cluster->watch();
    if (kind != AccessKind::kRead) return watch.end();
    if (!watch.repeats_read(state_at_read(pointer))) return;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    fiber.cluster->spin(fiber, {.instruction = "a read, again and again", .polled = address});
}

// Truncates a name that is too long.
void name_role(Fiber& fiber, const char* name, uint32_t number) {
    char role[kRoleBytes]{};
    const bool is_numbered = *name && number != UINT32_MAX;
    std::snprintf(role, kRoleBytes, is_numbered ? "%s %u" : "%s", name, number);
    Warp& warp = *fiber.warp;
    if (std::strcmp(role, warp.role) == 0) return;
    std::memcpy(warp.role, role, kRoleBytes);
    fiber.cluster->record_role(fiber);
}

BulkReduction decoded(const Reduction& given) {
    const auto code = static_cast<uint64_t>(given.type);
    return {static_cast<ReduceOp>(given.op), detail::type_of_code(code)};
}

}  // namespace

// --- the thread that runs ------------------------------------------------------------------------

void fail(const char* reason) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    fiber.cluster->fail(fiber, reason);
}

void fail_at(const void* site, const char* reason) {
    Fiber& fiber = caller(reinterpret_cast<uintptr_t>(site));
    fiber.cluster->fail(fiber, reason);
}

void end_thread() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    fiber.cluster->exit(fiber);
    __builtin_unreachable();
}

LaunchShape launch_shape() {
    const Launch& launch = current_fiber().cluster->launch();
    return {launch.cluster, launch.shared_bytes, launch.shared_bytes + launch.static_bytes};
}

void spin(const char* instruction) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    fiber.cluster->spin(fiber, {.instruction = instruction});
}

void set_role(const char* name, uint32_t number) {
    name_role(TMAASYNC_EMULATE_CALLER(), name, number);
}

// --- threads together ----------------------------------------------------------------------------

void sync_warp(uint32_t mask) {
    TMAASYNC_EMULATE_CALLER();
    meet("__syncwarp", mask, &join_lanes, nullptr);
}

bool elect() {
    TMAASYNC_EMULATE_CALLER();
    return elect_lane();
}

uint64_t shuffle(uint32_t mask, uint64_t value, uint32_t source, ShuffleKind kind) {
    TMAASYNC_EMULATE_CALLER();
    return shuffle_lanes(mask, value, source, kind);
}

uint32_t ballot(uint32_t mask, bool value) {
    TMAASYNC_EMULATE_CALLER();
    return ballot_lanes(mask, value);
}

uint32_t gather(const char* instruction, uint32_t mask, uint64_t value, uint64_t* values) {
    TMAASYNC_EMULATE_CALLER();
    return gather_lanes(instruction, mask, value, values);
}

uint32_t active_lanes() {
    return find_active_lanes(TMAASYNC_EMULATE_CALLER());
}

void store_matrix(uint32_t row, int matrices, bool is_transposed, const uint32_t* values) {
    TMAASYNC_EMULATE_CALLER();
    StoreMatrix mine{.row = row, .matrices = matrices, .is_transposed = is_transposed};
    for (int matrix = 0; matrix < matrices; ++matrix) mine.values[matrix] = values[matrix];
    store_matrices_of_lane(mine);
}

void load_matrix(uint32_t row, int matrices, bool is_transposed, uint32_t* values) {
    TMAASYNC_EMULATE_CALLER();
    LoadMatrix mine{.row = row, .matrices = matrices, .is_transposed = is_transposed};
    load_matrices_of_lane(mine);
    for (int matrix = 0; matrix < matrices; ++matrix) values[matrix] = mine.values[matrix];
}

void gather_words(const char* instruction, const uint32_t* words, int count, uint32_t* all) {
    TMAASYNC_EMULATE_CALLER();
    GatheredWords mine{words, count, all};
    meet(instruction, kAllLanes, &gather_words_of_lanes, &mine);
}

void named_barrier_sync(uint32_t number, uint32_t threads) {
    arrive_at_named(TMAASYNC_EMULATE_CALLER(), number, threads, true);
}

void sync_block(uint32_t line) {
    arrive_at_named(TMAASYNC_EMULATE_CALLER(), 0, 0, true, line);
}

uint32_t count_in_block(bool value, uint32_t line) {
    return count_at_barrier(TMAASYNC_EMULATE_CALLER(), value, line);
}

void named_barrier_arrive(uint32_t number, uint32_t threads) {
    arrive_at_named(TMAASYNC_EMULATE_CALLER(), number, threads, false);
}

void cluster_barrier_arrive(bool releases) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    fiber.cluster->arrive_at_cluster(fiber, releases);
}

void cluster_barrier_wait() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    fiber.cluster->wait_for_cluster(fiber);
}

void set_max_registers(bool claims, uint32_t registers) {
    set_registers(TMAASYNC_EMULATE_CALLER(), claims, registers);
}

// --- ordinary accesses ---------------------------------------------------------------------------

void touch(
    const void* site, const void* pointer, std::size_t bytes, AccessKind kind, bool is_aligned
) {
    Fiber& fiber = current_fiber();
    fiber.site = reinterpret_cast<uintptr_t>(site);
    fiber.cluster->watch().note_call();
    touch_as(fiber, pointer, bytes, kind, is_aligned);
    if (fiber.cluster->watch().is_on()) watch_access(fiber, pointer, kind);
}

void check_only_read(const void* pointer, std::size_t bytes) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (!fiber.cluster->detector()) return;
    check_not_written(fiber, reinterpret_cast<uintptr_t>(pointer), static_cast<uint32_t>(bytes));
}

void* copy(const void* site, void* to, const void* from, std::size_t bytes) {
    if (is_on_fiber()) {
        Fiber& fiber = caller(reinterpret_cast<uintptr_t>(site));
        touch(fiber, from, bytes, false);
        touch(fiber, to, bytes, true);
    }
    return std::memmove(to, from, bytes);
}

void* fill(const void* site, void* to, int value, std::size_t bytes) {
    if (is_on_fiber()) touch(caller(reinterpret_cast<uintptr_t>(site)), to, bytes, true);
    return std::memset(to, value, bytes);
}

// --- memory of the kernel's own ------------------------------------------------------------------

void* allocate(std::size_t bytes) {
    void* const memory = KernelHeap::allocate(bytes);
    if (memory && is_on_fiber()) {
        if (Detector* detector = TMAASYNC_EMULATE_CALLER().cluster->detector()) {
            detector->forget_global(reinterpret_cast<uintptr_t>(memory), bytes);
        }
    }
    return memory;
}

void release(const void* site, void* memory) {
    if (!memory || KernelHeap::release(memory)) return;
    if (!is_on_fiber()) return;
    Fiber& fiber = caller(reinterpret_cast<uintptr_t>(site));
    fiber.cluster->fail(
        fiber, "free() or delete of " + hexadecimal(reinterpret_cast<uintptr_t>(memory)) +
                   ", which malloc() and new did not return, or which is free already. Free each "
                   "block once"
    );
}

// --- memory order --------------------------------------------------------------------------------

// The emulator executes accesses in program order. The detector models the orders that the chip
// guarantees.
void fence(Scope scope) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector()) {
        detector->fence(fiber.number, scope >= Scope::kGpu, scope == Scope::kSystem);
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void fence_mbarrier_init() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (fiber.cluster->detector()) fence_inits(fiber);
}

void fence_proxy_async_shared() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector()) {
        detector->publish(fiber.number, Space::kShared);
    }
}

void fence_proxy_async_global() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector()) {
        detector->publish(fiber.number, Space::kGlobal);
    }
}

uint32_t* grid_barrier() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    uint32_t* const barrier = fiber.cluster->launch().grid_barrier;
    if (!barrier) {
        fiber.cluster->fail(
            fiber,
            "a barrier of the grid in a launch that is not cooperative: its blocks need not be "
            "resident at once. Launch the kernel with cooperative=True"
        );
    }
    return barrier;
}

bool is_cooperative() {
    return TMAASYNC_EMULATE_CALLER().cluster->launch().grid_barrier != nullptr;
}

void wait_for_grids() {
    note_grid_wait(TMAASYNC_EMULATE_CALLER());
}

void narrow_scope(const volatile void* address, Scope scope) {
    TMAASYNC_EMULATE_CALLER().narrow_access = {reinterpret_cast<uintptr_t>(address), scope};
}

void begin_atomic(const void* address, uint32_t bytes, bool changes, bool depends, Scope scope) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (depends) check_old_value(fiber, reinterpret_cast<uintptr_t>(address), bytes);
    let_other_clusters_run(fiber, reinterpret_cast<uintptr_t>(address), changes);
    touch_atomically(fiber, reinterpret_cast<uintptr_t>(address), bytes, true, scope);
}

namespace {

template <typename Word>
bool replace_word(void* address, void* old, const void* changed) {
    return __atomic_compare_exchange(
        static_cast<Word*>(address), static_cast<Word*>(old),
        const_cast<Word*>(static_cast<const Word*>(changed)), false, __ATOMIC_SEQ_CST,
        __ATOMIC_SEQ_CST
    );
}

// Not every CPU has a 16-byte compare-and-swap. No thread yields while it holds the mutex.
bool replace_16_bytes(void* address, void* old, const void* changed) {
    static auto& mutex = *new ProcessMutex;
    const std::lock_guard lock(mutex);
    const bool is_same = std::memcmp(address, old, 16) == 0;
    is_same ? std::memcpy(address, changed, 16) : std::memcpy(old, address, 16);
    return is_same;
}

}  // namespace

bool replace_atomically(void* address, void* old, const void* changed, uint32_t bytes) {
    switch (bytes) {
        case 1:
            return replace_word<uint8_t>(address, old, changed);
        case 2:
            return replace_word<uint16_t>(address, old, changed);
        case 4:
            return replace_word<uint32_t>(address, old, changed);
        case 8:
            return replace_word<uint64_t>(address, old, changed);
        default:
            return replace_16_bytes(address, old, changed);
    }
}

// An atomic operation that changes nothing is a poll of a lock or of a flag.
void end_atomic(bool has_changed) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (!has_changed) return fiber.cluster->spin(fiber, {.instruction = "atomic"});
    fiber.cluster->note_change();
    if (fiber.cluster->choices().yields_to_atomics()) fiber.cluster->yield(fiber);
}

// --- signals ------------------------------------------------------------------------------------

uint32_t load_acquire_system(const uint32_t* word) {
    return acquire_word(TMAASYNC_EMULATE_CALLER(), word);
}

void store_release_system(uint32_t* word, uint32_t value) {
    release_word(TMAASYNC_EMULATE_CALLER(), word, [=](uint32_t) { return value; });
}

void add_release_system(uint32_t* word, uint32_t value) {
    release_word(TMAASYNC_EMULATE_CALLER(), word, [=](uint32_t old) { return old + value; });
}

void post_signal(uint32_t* word, uint32_t rank, uint32_t signal, uint32_t epoch) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    const auto change = [&](uint32_t old) {
        check_epoch_increases(fiber, {rank, signal, epoch}, old);
        return epoch;
    };
    release_word(fiber, word, change, {rank, signal, PostedBy::kPost});
}

void add_to_signal(uint32_t* word, uint32_t rank, uint32_t signal, uint32_t value) {
    const auto change = [=](uint32_t old) { return old + value; };
    release_word(TMAASYNC_EMULATE_CALLER(), word, change, {rank, signal, PostedBy::kPostReduce});
}

void wait_for_signal(const uint32_t* word, uint32_t rank, uint32_t signal, uint32_t epoch) {
    wait_for_epoch(TMAASYNC_EMULATE_CALLER(), word, {rank, signal, epoch});
}

// --- mbarriers -----------------------------------------------------------------------------------

void mbarrier_init(uint32_t barrier, uint32_t count) {
    init_barrier(TMAASYNC_EMULATE_CALLER(), barrier, count);
}

void mbarrier_inval(uint32_t barrier) {
    invalidate_barrier(TMAASYNC_EMULATE_CALLER(), barrier);
}

void mbarrier_check_no_complete(uint32_t barrier, uint32_t count) {
    check_completes_nothing(TMAASYNC_EMULATE_CALLER(), barrier, count);
}

uint64_t mbarrier_arrive(uint32_t barrier, uint32_t count, uint32_t bytes, Order order) {
    return arrive(TMAASYNC_EMULATE_CALLER(), barrier, count, bytes, order == Order::kOrdered);
}

uint64_t mbarrier_arrive_drop(uint32_t barrier, uint32_t count, Order order) {
    return arrive_and_drop(TMAASYNC_EMULATE_CALLER(), barrier, count, order == Order::kOrdered);
}

void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes) {
    expect_bytes(TMAASYNC_EMULATE_CALLER(), barrier, bytes);
}

void mbarrier_complete_tx(uint32_t barrier, uint32_t bytes) {
    deliver_bytes(TMAASYNC_EMULATE_CALLER(), barrier, bytes);
}

void async_store_begin(uint32_t barrier) {
    begin_async_store(TMAASYNC_EMULATE_CALLER(), barrier);
}

void async_store_end(uint32_t barrier, uint32_t bytes) {
    end_async_store(TMAASYNC_EMULATE_CALLER(), barrier, bytes);
}

bool mbarrier_try_wait(uint32_t barrier, uint32_t parity, Order order) {
    return wait_for_parity(
        TMAASYNC_EMULATE_CALLER(), barrier, parity, order == Order::kOrdered,
        "mbarrier.try_wait.parity"
    );
}

bool mbarrier_test_wait(uint32_t barrier, uint32_t parity, Order order) {
    return test_parity(TMAASYNC_EMULATE_CALLER(), barrier, parity, order == Order::kOrdered);
}

bool mbarrier_test_state(uint32_t barrier, uint64_t state) {
    return test_state(TMAASYNC_EMULATE_CALLER(), barrier, state);
}

// --- asynchronous copies -------------------------------------------------------------------------

void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
    Flight flight{.kind = Flight::Kind::kBulk};
    flight.global = global;
    flight.bytes = bytes;
    issue_load(TMAASYNC_EMULATE_CALLER(), flight, shared, barrier);
}

void bulk_load_multicast(
    uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier, uint32_t cta_mask
) {
    Flight flight{.kind = Flight::Kind::kBulk};
    flight.global = global;
    flight.bytes = bytes;
    issue_multicast(TMAASYNC_EMULATE_CALLER(), flight, shared, barrier, cta_mask);
}

void bulk_prefetch(const void* global, uint32_t bytes) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    CopyObserver observer(*fiber.cluster, fiber.cta->rank, nullptr, nullptr);
    or_fail(fiber, [&] { bulk_prefetch(global, bytes, observer); });
}

void bulk_push(
    uint32_t remote_shared,
    uint32_t shared,
    uint32_t bytes,
    uint32_t remote_barrier,
    const Reduction* reduction
) {
    Flight flight{.kind = Flight::Kind::kPush};
    flight.bytes = bytes;
    if (reduction) flight.reduction = decoded(*reduction);
    issue_push(TMAASYNC_EMULATE_CALLER(), std::move(flight), shared, remote_shared, remote_barrier);
}

void bulk_reduce(Reduction reduction, void* global, uint32_t shared, uint32_t bytes) {
    const BulkReduction wanted = decoded(reduction);
    Store store{.kind = Store::Kind::kBulkReduce};
    store.op = wanted.op;
    store.type = wanted.type;
    store.global = global;
    store.bytes = bytes;
    issue_store(TMAASYNC_EMULATE_CALLER(), store, shared);
}

void bulk_store(void* global, uint32_t shared, uint32_t bytes) {
    Store store{.kind = Store::Kind::kBulk};
    store.global = global;
    store.bytes = bytes;
    issue_store(TMAASYNC_EMULATE_CALLER(), store, shared);
}

void tensor_load(uint32_t shared, const Box& box, uint32_t barrier) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    issue_load(fiber, flight_of(fiber, box), shared, barrier);
}

void tensor_load_multicast(uint32_t shared, const Box& box, uint32_t barrier, uint32_t cta_mask) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    issue_multicast(fiber, flight_of(fiber, box), shared, barrier, cta_mask);
}

void tensor_store(const Box& box, uint32_t shared) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    issue_store(fiber, copy_of<Store>(fiber, box), shared);
}

void tensor_reduce(int op, const Box& box, uint32_t shared) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    Store store = copy_of<Store>(fiber, box);
    store.kind = Store::Kind::kReduce;
    store.op = static_cast<ReduceOp>(op);
    issue_store(fiber, store, shared);
}

void tensor_prefetch(const Box& box) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    prefetch(fiber, copy_of<Flight>(fiber, box));
}

void check_map(const void* map) {
    decode_for(TMAASYNC_EMULATE_CALLER(), map);
}

void bulk_commit() {
    commit_stores(TMAASYNC_EMULATE_CALLER());
}

void bulk_wait(uint32_t pending) {
    wait_for_group(TMAASYNC_EMULATE_CALLER(), pending, true);
}

void bulk_wait_read(uint32_t pending) {
    wait_for_group(TMAASYNC_EMULATE_CALLER(), pending, false);
}

void thread_copy(uint32_t shared, const void* global, uint32_t bytes, uint32_t source_bytes) {
    issue_thread_copy(TMAASYNC_EMULATE_CALLER(), {shared, global, bytes, source_bytes});
}

void thread_copies_commit() {
    commit_thread_copies(TMAASYNC_EMULATE_CALLER());
}

void thread_copies_wait(uint32_t pending) {
    wait_for_thread_copies(TMAASYNC_EMULATE_CALLER(), pending);
}

void thread_copies_arrive(uint32_t barrier, bool raises) {
    arrive_after_thread_copies(TMAASYNC_EMULATE_CALLER(), barrier, raises);
}

// --- edits of tensor maps ------------------------------------------------------------------------

void* map_in_shared(uint32_t shared_map) {
    return shared_map_at(TMAASYNC_EMULATE_CALLER(), shared_map);
}

void replace_in_map(void* map, MapField field, int ordinal, uint64_t value) {
    edit_map(TMAASYNC_EMULATE_CALLER(), map, field, ordinal, value);
}

void copy_map_and_release(void* map, uint32_t shared_map) {
    copy_map_by_warp(TMAASYNC_EMULATE_CALLER(), map, shared_map);
}

void fence_maps_release() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector()) detector->release_maps(fiber.number);
}

void fence_map_acquire(const void* map) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector()) {
        detector->acquire_map(fiber.number, reinterpret_cast<uintptr_t>(map));
    }
}

// --- wgmma ---------------------------------------------------------------------------------------

void mma_fence() {
    fence_mmas(TMAASYNC_EMULATE_CALLER());
}

void mma_issue(const Mma& mma) {
    issue_mma(TMAASYNC_EMULATE_CALLER(), mma);
}

void mma_commit() {
    commit_mmas(TMAASYNC_EMULATE_CALLER());
}

void mma_wait(uint32_t pending) {
    wait_for_mmas(TMAASYNC_EMULATE_CALLER(), pending);
}

}  // namespace tmaasync_emulate
