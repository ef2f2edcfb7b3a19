#include "memory/accesses.hpp"

#include "memory/addresses.hpp"
#include "memory/grids.hpp"
#include "memory/guards.hpp"
#include "memory/kernel_heap.hpp"
#include "memory/registers.hpp"
#include "memory/unwritten.hpp"
#include "schedule/faults.hpp"
#include "schedule/worker.hpp"
#include "state/names.hpp"
#include "verify/sync_order.hpp"

namespace tmaasync_emulate {

// --- the race detector
// ----------------------------------------------------------------------------

void check_no_barrier(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    const Cta& cta = fiber.cluster->ctas[rank];
    const Mbarrier* const barrier = barrier_in(cta, offset, bytes);
    if (!barrier) return;
    fail(
        fiber, {FaultKind::kWriteOverMbarrier, bytes, offset, barrier_at(barrier->offset),
                of_cta(fiber, cta)}
    );
}

// Called before an ordinary read. PTX ISA: only mbarrier instructions access an mbarrier.
static void check_reads_no_barrier(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    const Cta& cta = fiber.cluster->ctas[rank];
    const Mbarrier* const barrier = barrier_in(cta, offset, bytes);
    if (!barrier) return;
    break_rule(
        fiber, {FaultKind::kReadOverMbarrier, bytes, shared_at(offset), of_cta(fiber, cta),
                barrier_at(barrier->offset)}
    );
}

void check_read(Fiber& fiber, uint32_t rank, uint32_t offset, uint32_t bytes) {
    check_is_written(fiber, rank, offset, bytes);
    check_reads_no_barrier(fiber, rank, offset, bytes);
}

static bool may_repeat(Operation operation, uint64_t bytes) {
    return is_comparable(operation) && bytes <= std::tuple_size_v<decltype(Repeat::held)>;
}

// Called before a store: keeps the old bytes if another lane has just stored to them.
static void note_repeat(Fiber& fiber, const void* pointer, uint64_t bytes) {
    const std::optional<Race> race = fiber.cluster->detector->take_repeated();
    if (!race) return;
    Repeat repeat{static_cast<const uint8_t*>(pointer), static_cast<uint32_t>(bytes), {}, *race};
    std::memcpy(repeat.held.data(), pointer, bytes);
    fiber.races.repeat = std::make_unique<Repeat>(repeat);
}

void record_shared(
    Fiber& fiber, Operation operation, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes
) {
    Detector& detector = *fiber.cluster->detector;
    Actor actor = detector.ordinary(fiber.number, fiber.site, operation);
    std::optional<View> before_store;
    if (fiber.races.async_store != kNoAgent) {
        before_store = detector.view_of(fiber.number);
        actor.agent = fiber.races.async_store;
        actor.epoch = fiber.races.async_store_epoch;
        actor.view = &*before_store;
    }
    actor.may_repeat = may_repeat(operation, bytes);
    detector.shared(actor, rank, offset, bytes, writes);
    if (actor.may_repeat) note_repeat(fiber, fiber.cluster->ctas[rank].window + offset, bytes);
}

void touch_shared(
    Fiber& fiber, Operation operation, uint32_t rank, uint32_t offset, uint32_t bytes, bool writes
) {
    record_shared(fiber, operation, rank, offset, bytes, writes);
    stop_if_race(fiber);
}

void touch_global(
    Fiber& fiber,
    Operation operation,
    uintptr_t address,
    uint64_t bytes,
    bool writes,
    bool is_system
) {
    check_grids_awaited(fiber, address);
    if (writes) keep_before_write(*fiber.cluster, address, bytes);
    Detector& detector = *fiber.cluster->detector;
    Actor actor = detector.ordinary(fiber.number, fiber.site, operation, is_system);
    actor.may_repeat = may_repeat(operation, bytes);
    detector.global(actor, address, bytes, writes);
    stop_if_race(fiber);
    if (actor.may_repeat) note_repeat(fiber, reinterpret_cast<const void*>(address), bytes);
}

Agent bulk_agent(Cluster& cluster, Agent& agent) {
    if (agent == kNoAgent) agent = cluster.detector->new_agent();
    return agent;
}

Access access_in(
    const Cluster& cluster, Agent thread, Epoch epoch, uintptr_t site, Operation operation
) {
    Access access{.agent = thread, .epoch = epoch, .thread = thread, .site = site};
    access.cluster = static_cast<uint32_t>(cluster.index);
    access.operation = operation;
    access.is_write = true;
    return access;
}

// --- the kernel's own accesses
// --------------------------------------------------------------------

// Allows a thread's next accesses to the range, unless every access is recorded.
static void let_reach(Cluster& cluster, Reach reach) {
    if (!cluster.detector) cluster.worker->watch.let_reach(reach);
}

// True if a thread may access the address outside its stack, shared memory and the arrays: data of
// the kernel's own library, and the runtime's public structures.
static bool is_own_memory(const Fiber& fiber, uintptr_t address) {
    const auto thread = reinterpret_cast<uintptr_t>(static_cast<const Thread*>(&fiber));
    if (address - thread < sizeof(Thread)) return true;
    const Launch& launch = fiber.cluster->launch;
    if (address && address == reinterpret_cast<uintptr_t>(launch.grid_barrier)) return true;
    return launch.memory.library.holds(address, 1);
}

// The part of a CTA's shared memory that holds these bytes; empty if none does.
static Reach shared_part(const Launch& launch, uint32_t place, uint32_t bytes) {
    if (place + bytes <= launch.shared_bytes) return {0, launch.shared_bytes};
    const uint32_t first = launch.dynamic_bytes(), end = first + launch.static_bytes;
    return place >= first && place + bytes <= end ? Reach{first, end} : Reach{};
}

[[noreturn]] static void fail_beyond_shared(
    Fiber& fiber, uint32_t place, uint32_t bytes, bool writes
) {
    const Launch& launch = fiber.cluster->launch;
    const uint32_t end =
        launch.static_bytes ? launch.dynamic_bytes() + launch.static_bytes : launch.shared_bytes;
    fail(
        fiber,
        {FaultKind::kBeyondShared, access_of(writes), bytes, shared_at(place), end, size_constant()}
    );
}

// True if the compiler's code reads a guard variable of a shared variable, which is never
// constructed.
static bool is_set_guard(Cluster& cluster, uint32_t rank, uint32_t place, uint32_t bytes) {
    if (bytes != 1 || cluster.detector->is_written(rank, place, bytes)) return false;
    const uint32_t first = cluster.launch.dynamic_bytes();
    return place >= first &&
           is_guard(reinterpret_cast<const void*>(cluster.launch.kernel), place - first);
}

static void touch_window(Fiber& fiber, uintptr_t address, uint32_t bytes, bool writes) {
    Cluster& cluster = *fiber.cluster;
    const uintptr_t offset = address - cluster.windows();
    const auto rank = static_cast<uint32_t>(offset / kWindowStride);
    const auto place = static_cast<uint32_t>(offset % kWindowStride);
    const Reach part = shared_part(cluster.launch, place, bytes);
    if (part.end == 0) fail_beyond_shared(fiber, place, bytes, writes);
    if (!cluster.detector) {
        const uintptr_t start = address - place;
        return let_reach(cluster, {start + part.start, start + part.end});
    }
    if (rank != fiber.cta->rank) {
        note_remote(cluster.ctas[rank].races.remote, remote_access(fiber));
    }
    if (!writes && is_set_guard(cluster, rank, place, bytes)) return;
    writes ? check_no_barrier(fiber, rank, place, bytes) : check_read(fiber, rank, place, bytes);
    touch_shared(fiber, writes ? Operation::kWrite : Operation::kRead, rank, place, bytes, writes);
}

static void touch_stack(Fiber& fiber, uintptr_t address, uint64_t bytes, bool writes) {
    const uintptr_t end = (address | (kStackBytes - 1)) + 1 - kStackWords * sizeof(void*);
    if (writes && address + bytes > end) {
        fail(fiber, FaultKind::kStackOverflow);
    }
    if (fiber.cluster->detector) touch_registers(fiber, address, bytes, writes);
}

// An access to an array by a subscript of a pointer parameter must be to the parameter's own.
static void check_own_array(Fiber& fiber, uintptr_t address, uint64_t bytes, bool writes) {
    OwnArrays& own_arrays = fiber.cluster->launch.memory.own_arrays;
    const Array* const own = own_arrays.at(fiber.site, writes);
    if (!own || own->holds(address, bytes)) return;
    const Mention place = outside_array(own_arrays.number_of(own), address);
    break_rule(
        fiber, {FaultKind::kOtherArray, access_of(writes), bytes, place, hexadecimal(address)}
    );
}

// Returns the array with the bytes, or the memory of a pointer to it; of the kernel's heap nothing.
static Reach checked_reach(Fiber& fiber, uintptr_t address, uint64_t bytes, bool writes) {
    const LaunchMemory& memory = fiber.cluster->launch.memory;
    if (const Reach reach = memory.array_of(address, bytes); reach.end) {
        if (fiber.cluster->detector && memory.own_arrays.are_known()) {
            check_own_array(fiber, address, bytes, writes);
        }
        return reach;
    }
    if (KernelHeap::holds(address, bytes)) return {};
    const bool was_freed = KernelHeap::was_freed(address);
    if (const Reach reach = memory.reach_of(address, bytes); reach.end && !was_freed) return reach;
    if (is_no_shared_address(address)) fail(fiber, FaultKind::kPointerOutsideShared);
    fail(fiber, {FaultKind::kBeyondArrays, access_of(writes), bytes, hexadecimal(address)});
}

void touch(Fiber& fiber, const void* pointer, uint64_t bytes, bool writes) {
    Cluster& cluster = *fiber.cluster;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address - cluster.windows() < cluster.windows_bytes()) {
        return touch_window(fiber, address, static_cast<uint32_t>(bytes), writes);
    }
    if ((address ^ stack_pointer()) < kStackBytes) {
        return touch_stack(fiber, address, bytes, writes);
    }
    const bool is_own = is_own_memory(fiber, address);
    // Among the library's data, kernels access only __device__ and __constant__ variables.
    const bool is_variable = is_own && cluster.launch.memory.library.holds(address, 1);
    if (is_own && !(is_variable && cluster.detector)) return;
    const Reach reach = is_own ? Reach{} : checked_reach(fiber, address, bytes, writes);
    if (cluster.detector) {
        const Operation operation = writes ? Operation::kWrite : Operation::kRead;
        return touch_global(fiber, operation, address, bytes, writes);
    }
    check_grids_awaited(fiber, address);
    if (!cluster.launch.memory.is_fresh(address)) let_reach(cluster, reach);
}

// Checks an access whose type is aligned to its size: at other addresses the chip faults.
static void check_aligned(Fiber& fiber, uintptr_t address, uint32_t bytes, bool writes) {
    if (address % bytes != 0 && (address ^ stack_pointer()) >= kStackBytes) {
        fail(fiber, {FaultKind::kMisaligned, access_of(writes), bytes, hexadecimal(address)});
    }
}

static void touch_aligned(Fiber& fiber, const void* pointer, uint32_t bytes, bool writes) {
    check_aligned(fiber, reinterpret_cast<uintptr_t>(pointer), bytes, writes);
    touch(fiber, pointer, bytes, writes);
}

void let_other_clusters_run(Fiber& fiber, uintptr_t address, bool writes) {
    Cluster& cluster = *fiber.cluster;
    if (address - cluster.windows() < cluster.windows_bytes()) return;
    pause(fiber, writes);
}

void check_old_value(Fiber& fiber, uintptr_t address, uint32_t bytes) {
    Cluster& cluster = *fiber.cluster;
    const uintptr_t offset = address - cluster.windows();
    if (!cluster.detector || offset >= cluster.windows_bytes()) return;
    const auto rank = static_cast<uint32_t>(offset / kWindowStride);
    check_is_written(fiber, rank, static_cast<uint32_t>(offset % kWindowStride), bytes);
}

void check_not_written(Fiber& fiber, uintptr_t address, uint32_t bytes) {
    Detector& detector = *fiber.cluster->detector;
    const bool is_shared = address - fiber.cluster->windows() < fiber.cluster->windows_bytes();
    if (is_shared || !detector.is_written_globally(address, bytes)) return;
    break_rule(fiber, {FaultKind::kChangedReadOnlyLoad, bytes, hexadecimal(address)});
}

void reach_atomically(Fiber& fiber, uintptr_t address, uint32_t bytes, bool writes, Scope scope) {
    Cluster& cluster = *fiber.cluster;
    const Operation operation = scope == Scope::kCta ? Operation::kBlockAtomic : Operation::kAtomic;
    if (!cluster.detector) {
        return touch_aligned(fiber, reinterpret_cast<const void*>(address), bytes, writes);
    }
    check_aligned(fiber, address, bytes, writes);
    const uintptr_t offset = address - cluster.windows();
    if (offset < cluster.windows_bytes()) {
        const auto rank = static_cast<uint32_t>(offset / kWindowStride);
        const auto place = static_cast<uint32_t>(offset % kWindowStride);
        if (shared_part(cluster.launch, place, bytes).end == 0) {
            fail_beyond_shared(fiber, place, bytes, writes);
        }
        writes ? check_no_barrier(fiber, rank, place, bytes)
               : check_reads_no_barrier(fiber, rank, place, bytes);
        touch_shared(fiber, operation, rank, place, bytes, writes);
    } else {
        if (!is_own_memory(fiber, address)) checked_reach(fiber, address, bytes, writes);
        touch_global(fiber, operation, address, bytes, writes, scope == Scope::kSystem);
    }
}

void touch_atomically(
    Fiber& fiber, uintptr_t address, uint32_t bytes, AtomicAccess access, Scope scope
) {
    reach_atomically(fiber, address, bytes, access != AtomicAccess::kRead, scope);
    Detector* const detector = fiber.cluster->detector.get();
    if (!detector) return;
    if (access != AtomicAccess::kReduce) detector->acquire_at(fiber.number, address, scope);
    const bool releases = access == AtomicAccess::kChange || access == AtomicAccess::kReduce;
    if (releases) detector->release_at(fiber.number, address, scope);
}

// PTX ISA: ld.volatile and st.volatile order memory like relaxed accesses of system scope. A
// volatile read may be a poll.
static void touch_volatile(Fiber& fiber, const void* pointer, uint32_t bytes, bool writes) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const NarrowAccess narrow = std::exchange(fiber.narrow_access, {});
    const Scope scope = narrow.address == address ? narrow.scope : Scope::kSystem;
    if ((address ^ stack_pointer()) < kStackBytes) return;
    if (!writes) spin(fiber, {.polled = address, .activity = Activity::kVolatileRead});
    let_other_clusters_run(fiber, address, writes);
    if (SyncOrder* order = fiber.cluster->launch.order) {
        order->access(fiber, address, bytes, writes ? SyncAccess::kWrite : SyncAccess::kRead);
    }
    const AtomicAccess access = writes ? AtomicAccess::kChange : AtomicAccess::kRead;
    touch_atomically(fiber, address, bytes, access, scope);
}

void touch_as(Fiber& fiber, const void* pointer, uint64_t bytes, AccessKind kind, bool is_aligned) {
    const bool writes = kind == AccessKind::kWrite || kind == AccessKind::kVolatileWrite;
    if (kind == AccessKind::kVolatileRead || kind == AccessKind::kVolatileWrite) {
        return touch_volatile(fiber, pointer, static_cast<uint32_t>(bytes), writes);
    }
    if (is_aligned) return touch_aligned(fiber, pointer, static_cast<uint32_t>(bytes), writes);
    touch(fiber, pointer, bytes, writes);
}

}  // namespace tmaasync_emulate
