#pragma once

#include <tmaasync/operands/tcgen05.cuh>

// PTX ISA: "tcgen05.cp" and "tcgen05.shift" (sm_100a, sm_103a). One thread issues each; with
// kCtas = 2 one of the pair, and both CTAs copy from their own shared memory.
namespace tmaasync::ptx {

// Copy rows from shared memory, as the matrix descriptor has them, to lanes of tensor memory.
template <Tcgen05Copy kShape, int kCtas = 1, Tcgen05Format kFormat = Tcgen05Format::kBytes>
__device__ __forceinline__ void tcgen05_cp(u32 address, u64 matrix) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    asm volatile("tcgen05.cp.cta_group::%2.%3%4 [%0], %1;" ::"r"(address), "l"(matrix), "n"(kCtas),
                 "C"(name_of(kShape)), "C"(name_of(kFormat))
                 : "memory");
}

// Move the rows of 32 bytes from the address's lane on down by one: each lane gets the next one's.
template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_shift_down(u32 address) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    asm volatile("tcgen05.shift.cta_group::%1.down [%0];" ::"r"(address), "n"(kCtas) : "memory");
}

}  // namespace tmaasync::ptx
