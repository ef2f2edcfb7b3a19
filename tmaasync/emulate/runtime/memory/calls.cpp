// The functions that kernels call for their accesses, their memory and its order.

#include <cstring>

#include "memory/accesses.hpp"
#include "memory/grids.hpp"
#include "memory/kernel_heap.hpp"
#include "schedule/caller.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

namespace {

// Hash of a reading thread's state: its stack, where its registers are saved during calls.
__attribute__((noinline)) uint64_t state_at_read(const void* pointer) {
    __builtin_unwind_init();
    const auto low = reinterpret_cast<uintptr_t>(__builtin_alloca(sizeof(void*)));
    return hash_of(low, low | (kStackBytes - 1), reinterpret_cast<uintptr_t>(pointer));
}

// Lets others run if a thread repeats a read in the same state, as a polling thread does.
void watch_access(Fiber& fiber, const void* pointer, AccessKind kind) {
    LoopWatch& watch = fiber.cluster->worker->watch;
    if (kind != AccessKind::kRead) return watch.end();
    if (!watch.repeats_read(state_at_read(pointer))) return;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    spin(fiber, {.polled = address, .activity = Activity::kRepeatedRead});
}

}  // namespace

void touch(
    const void* site, const void* pointer, std::size_t bytes, AccessKind kind, bool is_aligned
) {
    Fiber& fiber = current_fiber();
    fiber.site = reinterpret_cast<uintptr_t>(site);
    fiber.cluster->worker->watch.note_call();
    if (fiber.races.repeat) check_repeat(fiber);
    touch_as(fiber, pointer, bytes, kind, is_aligned);
    if (fiber.cluster->worker->watch.is_on()) watch_access(fiber, pointer, kind);
}

void check_only_read(const void* pointer, std::size_t bytes) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (!fiber.cluster->detector) return;
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

void* allocate(std::size_t bytes) {
    void* const memory = KernelHeap::allocate(bytes);
    if (!memory || !is_on_fiber()) return memory;
    const Cluster& cluster = *TMAASYNC_EMULATE_CALLER().cluster;
    const auto block = reinterpret_cast<uintptr_t>(memory);
    if (cluster.detector) cluster.detector->forget_global(block, bytes);
    if (Undo* const undo = cluster.launch.memory.undo) undo->keep_block(block, false);
    return memory;
}

// To free a block is to write to all of it, for the race detector.
static void end_block(Fiber& fiber, uintptr_t block) {
    const std::optional<std::size_t> bytes = KernelHeap::bytes_of(block);
    if (!bytes) fail(fiber, {FaultKind::kFreeOfNoBlock, hexadecimal(block)});
    Detector* const detector = fiber.cluster->detector.get();
    if (!detector) return;
    const Actor actor = detector->ordinary(fiber.number, fiber.site, Operation::kWrite);
    detector->global(actor, block, *bytes, true);
    stop_if_race(fiber);
}

void release(const void* site, void* memory) {
    const auto block = reinterpret_cast<uintptr_t>(memory);
    if (!block) return;
    Undo* undo = nullptr;
    if (is_on_fiber()) {
        Fiber& fiber = caller(reinterpret_cast<uintptr_t>(site));
        end_block(fiber, block);
        undo = fiber.cluster->launch.memory.undo;
    }
    KernelHeap::set_held(block, false);
    undo ? undo->keep_block(block, true) : KernelHeap::drop(block);
}

// The emulator executes accesses in program order. The detector models the orders that the chip
// guarantees.
void fence(Scope scope) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector.get()) {
        detector->fence(fiber.number, scope >= Scope::kGpu, scope == Scope::kSystem);
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void fence_proxy_async_shared() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector.get()) {
        detector->publish(fiber.number, Space::kShared);
    }
}

void fence_proxy_async_global() {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (Detector* detector = fiber.cluster->detector.get()) {
        detector->publish(fiber.number, Space::kGlobal);
    }
}

void wait_for_grids() {
    note_grid_wait(TMAASYNC_EMULATE_CALLER());
}

void narrow_scope(const volatile void* address, Scope scope) {
    TMAASYNC_EMULATE_CALLER().narrow_access = {reinterpret_cast<uintptr_t>(address), scope};
}

void begin_atomic(const void* pointer, uint32_t bytes, const AtomicForm& form) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (form.old != OldValue::kUnused) check_old_value(fiber, address, bytes);
    let_other_clusters_run(fiber, address, form.changes);
    AtomicAccess access = AtomicAccess::kChange;
    if (SyncOrder* order = fiber.cluster->launch.order) {
        const Commuting reduction = order->reduction_of(fiber, form);
        order->access(fiber, address, bytes, SyncAccess::kReadAndWrite, reduction, form.expected);
        if (reduction.operation) access = AtomicAccess::kReduce;
        // A compare and swap that fails writes nothing, so that it releases nothing.
        if (form.expected && std::memcmp(pointer, form.expected, bytes) != 0) {
            access = AtomicAccess::kFail;
        }
    }
    Detector* const detector = fiber.cluster->detector.get();
    if (detector && form.old == OldValue::kCompared) {
        detector->exchange(fiber.number, address, bytes);
    }
    touch_atomically(fiber, address, bytes, access, form.scope);
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
void end_atomic(const void* address, bool has_changed) {
    Fiber& fiber = TMAASYNC_EMULATE_CALLER();
    if (!has_changed) {
        if (SyncOrder* order = fiber.cluster->launch.order) order->note_unchanged(fiber);
        return spin(
            fiber, {.instruction = "atomic", .polled = reinterpret_cast<uintptr_t>(address)}
        );
    }
    note_change(*fiber.cluster);
    if (fiber.cluster->choices.yields_to_atomics()) yield(fiber);
}

}  // namespace tmaasync_emulate
