// What a kernel compiled with -fsanitize=thread calls around its ordinary loads and stores. The
// compiler chose the names; the functions are ours, and no sanitizer is linked.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "accesses.hpp"

namespace tmaasync_emulate {

// Whether a thread of the launch may touch the address, although it is not on its stack, in shared
// memory or in an array: the data of the kernel's own library, and the runtime's public structures.
inline bool is_own_memory(const Fiber& fiber, uintptr_t address) {
    const auto thread = reinterpret_cast<uintptr_t>(static_cast<const Thread*>(&fiber));
    if (address - thread < sizeof(Thread)) return true;
    return fiber.cluster->launch().library.holds(address, 1);
}

inline void touch_window(Fiber& fiber, uintptr_t offset, uint32_t bytes, bool writes) {
    const auto rank = static_cast<uint32_t>(offset / kWindowBytes);
    const auto place = static_cast<uint32_t>(offset % kWindowBytes);
    if (rank != fiber.cta->rank) {
        note_remote(fiber.cluster->ctas()[rank].remote, remote_access(fiber));
    }
    writes ? check_no_barrier(fiber, rank, place, bytes)
           : check_is_written(fiber, rank, place, bytes);
    touch_shared(fiber, writes ? Operation::kWrite : Operation::kRead, rank, place, bytes, writes);
}

// Null where nothing is to be checked: the host's own code may run a function that the kernel's
// library defines as well.
inline Fiber* checked_fiber(const void* site) {
    if (!is_on_fiber()) return nullptr;
    Fiber& fiber = current_fiber();
    if (!fiber.cluster->detector()) return nullptr;
    fiber.site = reinterpret_cast<uintptr_t>(site);
    return &fiber;
}

inline void touch(Fiber& fiber, const void* pointer, uint64_t bytes, bool writes) {
    Cluster& cluster = *fiber.cluster;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (const uintptr_t offset = address - cluster.windows(); offset < cluster.windows_bytes()) {
        return touch_window(fiber, offset, static_cast<uint32_t>(bytes), writes);
    }
    if ((address ^ stack_pointer()) < kStackBytes) {
        return touch_registers(fiber, address, bytes, writes);
    }
    if (is_own_memory(fiber, address)) return;
    if (!cluster.launch().may_hold(address, bytes)) {
        cluster.fail(
            fiber, std::string(writes ? "a write" : "a read") + " of " + std::to_string(bytes) +
                       " bytes at " + hexadecimal(address) +
                       ", which lies in none of the launch's arrays. Check indices, and that the "
                       "grid does not go beyond the end"
        );
    }
    touch_global(fiber, writes ? Operation::kWrite : Operation::kRead, address, bytes, writes);
}

// Of a type that is as aligned as it is large: elsewhere the chip faults.
inline void touch_aligned(Fiber& fiber, const void* pointer, uint32_t bytes, bool writes) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address % bytes != 0 && (address ^ stack_pointer()) >= kStackBytes) {
        fiber.cluster->fail(
            fiber, std::string(writes ? "a write" : "a read") + " of " + std::to_string(bytes) +
                       " bytes at " + hexadecimal(address) +
                       ", a misaligned address: it must be "
                       "a multiple of the size. Use narrower accesses, or align the data"
        );
    }
    touch(fiber, pointer, bytes, writes);
}

// Before an access to global memory by which clusters may signal one another.
inline void let_other_clusters_run(Fiber& fiber, uintptr_t address, bool writes) {
    Cluster& cluster = *fiber.cluster;
    if (address - cluster.windows() < cluster.windows_bytes()) return;
    cluster.pause(fiber, writes);
}

// Before an atomic operation: what it reaches, and what it hands on.
inline void touch_atomically(Fiber& fiber, uintptr_t address, uint32_t bytes, bool writes) {
    Cluster& cluster = *fiber.cluster;
    const uintptr_t offset = address - cluster.windows();
    if (offset < cluster.windows_bytes()) {
        const auto rank = static_cast<uint32_t>(offset / kWindowBytes);
        const auto place = static_cast<uint32_t>(offset % kWindowBytes);
        check_no_barrier(fiber, rank, place, bytes);
        touch_shared(fiber, Operation::kAtomic, rank, place, bytes, true);
    } else {
        touch_global(fiber, Operation::kAtomic, address, bytes, true);
    }
    cluster.detector()->atomic(fiber.number, address, writes);
}

// PTX ISA: ld.volatile and st.volatile order memory as relaxed ones do. A thread that reads may be
// one that waits.
inline void touch_volatile(Fiber& fiber, const void* pointer, uint32_t bytes, bool writes) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if ((address ^ stack_pointer()) < kStackBytes) return;
    if (!writes) fiber.cluster->spin(fiber, {.instruction = "a volatile read"});
    let_other_clusters_run(fiber, address, writes);
    touch_atomically(fiber, address, bytes, writes);
}

}  // namespace tmaasync_emulate

// NOLINTBEGIN: the names are the compiler's.
// Ends with a semicolon, as a statement does.
#define TMAASYNC_EMULATE_CHECK(HOW, ...)                                                \
    if (auto* fiber = ::tmaasync_emulate::checked_fiber(__builtin_return_address(0))) { \
        ::tmaasync_emulate::HOW(*fiber, __VA_ARGS__);                                   \
    }
#define TMAASYNC_EMULATE_TSAN(NAME, HOW, BYTES, WRITES)                         \
    extern "C" TMAASYNC_EMULATE_CALL void __tsan_##NAME##BYTES(void* pointer) { \
        TMAASYNC_EMULATE_CHECK(HOW, pointer, BYTES, WRITES);                    \
    }
#define TMAASYNC_EMULATE_TSAN_SIZES(NAME, HOW, WRITES) \
    TMAASYNC_EMULATE_TSAN(NAME, HOW, 1, WRITES)        \
    TMAASYNC_EMULATE_TSAN(NAME, HOW, 2, WRITES)        \
    TMAASYNC_EMULATE_TSAN(NAME, HOW, 4, WRITES)        \
    TMAASYNC_EMULATE_TSAN(NAME, HOW, 8, WRITES)        \
    TMAASYNC_EMULATE_TSAN(NAME, HOW, 16, WRITES)

TMAASYNC_EMULATE_TSAN_SIZES(read, touch_aligned, false)
TMAASYNC_EMULATE_TSAN_SIZES(write, touch_aligned, true)
TMAASYNC_EMULATE_TSAN_SIZES(read_write, touch_aligned, true)
TMAASYNC_EMULATE_TSAN_SIZES(unaligned_read, touch, false)
TMAASYNC_EMULATE_TSAN_SIZES(unaligned_write, touch, true)
TMAASYNC_EMULATE_TSAN_SIZES(unaligned_read_write, touch, true)
TMAASYNC_EMULATE_TSAN_SIZES(volatile_read, touch_volatile, false)
TMAASYNC_EMULATE_TSAN_SIZES(volatile_write, touch_volatile, true)
TMAASYNC_EMULATE_TSAN_SIZES(unaligned_volatile_read, touch_volatile, false)
TMAASYNC_EMULATE_TSAN_SIZES(unaligned_volatile_write, touch_volatile, true)

extern "C" {
TMAASYNC_EMULATE_CALL void __tsan_read_range(void* pointer, std::size_t bytes) {
    TMAASYNC_EMULATE_CHECK(touch, pointer, bytes, false);
}
TMAASYNC_EMULATE_CALL void __tsan_write_range(void* pointer, std::size_t bytes) {
    TMAASYNC_EMULATE_CHECK(touch, pointer, bytes, true);
}
// Structs too large for moves in line are copied by these, in the kernel's library (cuda.hpp).
TMAASYNC_EMULATE_CALL void* tmaasync_emulate_copy(void* to, const void* from, std::size_t bytes) {
    TMAASYNC_EMULATE_CHECK(touch, from, bytes, false);
    TMAASYNC_EMULATE_CHECK(touch, to, bytes, true);
    return std::memmove(to, from, bytes);
}
TMAASYNC_EMULATE_CALL void* tmaasync_emulate_fill(void* to, int value, std::size_t bytes) {
    TMAASYNC_EMULATE_CHECK(touch, to, bytes, true);
    return std::memset(to, value, bytes);
}
TMAASYNC_EMULATE_CALL void __tsan_init() {}
TMAASYNC_EMULATE_CALL void __tsan_func_entry(void*) {}
TMAASYNC_EMULATE_CALL void __tsan_func_exit() {}
TMAASYNC_EMULATE_CALL void __tsan_vptr_update(void**, void*) {}
TMAASYNC_EMULATE_CALL void __tsan_vptr_read(void**) {}
}
// NOLINTEND
