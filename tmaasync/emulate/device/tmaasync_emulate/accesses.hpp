// Functions that a kernel compiled with -fsanitize=thread calls before its ordinary loads and
// stores. The compiler chose the names; the functions are ours, and no sanitizer is linked. Each
// looks up the ranges that its thread was last allowed to access, and asks the runtime about other
// addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tmaasync_emulate/calls.hpp>

namespace tmaasync_emulate {

TMAASYNC_EMULATE_INLINE TMAASYNC_EMULATE_UNSEEN bool is_within_reach(
    std::uintptr_t address, std::size_t bytes
) {
    const Thread& thread = current_thread();
    const std::uintptr_t end = address + bytes;
    if (address >= thread.stack.start && end <= thread.stack.end) return true;
    const Reach* reach = thread.reaches;
    for (std::size_t i = 0; i < kReaches; ++i, ++reach) {
        if (address >= reach->start && end <= reach->end) return true;
    }
    return false;
}

}  // namespace tmaasync_emulate

// NOLINTBEGIN: the names are the compiler's.
#define TMAASYNC_EMULATE_TSAN_FUNCTION \
    __attribute__((visibility("hidden"), used, noinline)) TMAASYNC_EMULATE_UNSEEN void
#define TMAASYNC_EMULATE_TSAN(NAME, BYTES, KIND, IS_QUICK, IS_ALIGNED)                    \
    TMAASYNC_EMULATE_TSAN_FUNCTION __tsan_##NAME##BYTES(void* pointer) {                  \
        using namespace ::tmaasync_emulate;                                               \
        if (!has_launched) return;                                                        \
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);                   \
        const bool is_aligned = !IS_ALIGNED || address % BYTES == 0;                      \
        if (is_aligned && IS_QUICK) return;                                               \
        touch(__builtin_return_address(0), pointer, BYTES, AccessKind::KIND, IS_ALIGNED); \
    }
#define TMAASYNC_EMULATE_TSAN_SIZES(NAME, KIND, IS_ALIGNED)                       \
    TMAASYNC_EMULATE_TSAN(NAME, 1, KIND, is_within_reach(address, 1), IS_ALIGNED) \
    TMAASYNC_EMULATE_TSAN(NAME, 2, KIND, is_within_reach(address, 2), IS_ALIGNED) \
    TMAASYNC_EMULATE_TSAN(NAME, 4, KIND, is_within_reach(address, 4), IS_ALIGNED) \
    TMAASYNC_EMULATE_TSAN(NAME, 8, KIND, is_within_reach(address, 8), IS_ALIGNED) \
    TMAASYNC_EMULATE_TSAN(NAME, 16, KIND, is_within_reach(address, 16), IS_ALIGNED)
// Volatile accesses outside the thread's own stack let other threads run.
#define TMAASYNC_EMULATE_TSAN_VOLATILE(NAME, KIND)                        \
    TMAASYNC_EMULATE_TSAN(NAME, 1, KIND, is_on_own_stack(address), false) \
    TMAASYNC_EMULATE_TSAN(NAME, 2, KIND, is_on_own_stack(address), false) \
    TMAASYNC_EMULATE_TSAN(NAME, 4, KIND, is_on_own_stack(address), false) \
    TMAASYNC_EMULATE_TSAN(NAME, 8, KIND, is_on_own_stack(address), false) \
    TMAASYNC_EMULATE_TSAN(NAME, 16, KIND, is_on_own_stack(address), false)
#define TMAASYNC_EMULATE_TSAN_RANGE(NAME, KIND)                                              \
    TMAASYNC_EMULATE_TSAN_FUNCTION __tsan_##NAME##_range(void* pointer, std::size_t bytes) { \
        using namespace ::tmaasync_emulate;                                                  \
        if (!has_launched) return;                                                           \
        if (is_within_reach(reinterpret_cast<std::uintptr_t>(pointer), bytes)) return;       \
        touch(__builtin_return_address(0), pointer, bytes, AccessKind::KIND, false);         \
    }

extern "C" {
TMAASYNC_EMULATE_TSAN_SIZES(read, kRead, true)
TMAASYNC_EMULATE_TSAN_SIZES(write, kWrite, true)
TMAASYNC_EMULATE_TSAN_SIZES(read_write, kWrite, true)
TMAASYNC_EMULATE_TSAN_SIZES(unaligned_read, kRead, false)
TMAASYNC_EMULATE_TSAN_SIZES(unaligned_write, kWrite, false)
TMAASYNC_EMULATE_TSAN_SIZES(unaligned_read_write, kWrite, false)
TMAASYNC_EMULATE_TSAN_VOLATILE(volatile_read, kVolatileRead)
TMAASYNC_EMULATE_TSAN_VOLATILE(volatile_write, kVolatileWrite)
TMAASYNC_EMULATE_TSAN_VOLATILE(unaligned_volatile_read, kVolatileRead)
TMAASYNC_EMULATE_TSAN_VOLATILE(unaligned_volatile_write, kVolatileWrite)
TMAASYNC_EMULATE_TSAN_RANGE(read, kRead)
TMAASYNC_EMULATE_TSAN_RANGE(write, kWrite)
TMAASYNC_EMULATE_TSAN_FUNCTION __tsan_init() {}
TMAASYNC_EMULATE_TSAN_FUNCTION __tsan_func_entry(void*) {}
TMAASYNC_EMULATE_TSAN_FUNCTION __tsan_func_exit() {}
// An access to the virtual-table pointer of an object.
#define TMAASYNC_EMULATE_TSAN_VPTR(POINTER, KIND) \
    using namespace ::tmaasync_emulate;           \
    if (!has_launched) return;                    \
    touch(__builtin_return_address(0), POINTER, sizeof(void*), AccessKind::KIND, true);
TMAASYNC_EMULATE_TSAN_FUNCTION __tsan_vptr_update(void** pointer, void*){
    TMAASYNC_EMULATE_TSAN_VPTR(pointer, kWrite)
} TMAASYNC_EMULATE_TSAN_FUNCTION __tsan_vptr_read(void** pointer) {
    TMAASYNC_EMULATE_TSAN_VPTR(pointer, kRead)
}

// The compiler copies structs with these functions if they are too large for inline moves.
__attribute__((visibility("hidden"), used)) TMAASYNC_EMULATE_UNSEEN void* memcpy(
    void* to, const void* from, std::size_t bytes
) noexcept {
    return tmaasync_emulate::copy(__builtin_return_address(0), to, from, bytes);
}
__attribute__((visibility("hidden"), used)) TMAASYNC_EMULATE_UNSEEN void* memmove(
    void* to, const void* from, std::size_t bytes
) noexcept {
    return tmaasync_emulate::copy(__builtin_return_address(0), to, from, bytes);
}
__attribute__((visibility("hidden"), used)) TMAASYNC_EMULATE_UNSEEN void* memset(
    void* to, int value, std::size_t bytes
) noexcept {
    return tmaasync_emulate::fill(__builtin_return_address(0), to, value, bytes);
}
}
// NOLINTEND
