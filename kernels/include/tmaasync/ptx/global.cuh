#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "ld" and "st" of 1, 2 or 4 words of global memory, under a predicate. Addresses are
// multiples of the size; where the predicate does not hold they are not touched.
namespace tmaasync::ptx {

// Zeros where the predicate does not hold.
template <int kWords>
__device__ __forceinline__ void ld_global(
    u32 (&words)[kWords], const void* global, bool predicate
) {
    static_assert(kWords == 1 || kWords == 2 || kWords == 4 || kWords == 8, "4 to 32 bytes");
    const u32 holds = predicate;
    if constexpr (kWords == 8) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "setp.ne.b32 p, %9, 0;\n\t"
            "mov.b32 %0, 0;\n\t"
            "mov.b32 %1, 0;\n\t"
            "mov.b32 %2, 0;\n\t"
            "mov.b32 %3, 0;\n\t"
            "mov.b32 %4, 0;\n\t"
            "mov.b32 %5, 0;\n\t"
            "mov.b32 %6, 0;\n\t"
            "mov.b32 %7, 0;\n\t"
            "@p ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];\n\t"
            "}"
            : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3]), "=&r"(words[4]),
              "=&r"(words[5]), "=&r"(words[6]), "=&r"(words[7])
            : "l"(global), "r"(holds)
            : "memory"
        );
    } else if constexpr (kWords == 1) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "setp.ne.b32 p, %2, 0;\n\t"
            "mov.b32 %0, 0;\n\t"
            "@p ld.global.b32 %0, [%1];\n\t"
            "}"
            : "=&r"(words[0])
            : "l"(global), "r"(holds)
            : "memory"
        );
    } else if constexpr (kWords == 2) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "setp.ne.b32 p, %3, 0;\n\t"
            "mov.b32 %0, 0;\n\t"
            "mov.b32 %1, 0;\n\t"
            "@p ld.global.v2.b32 {%0, %1}, [%2];\n\t"
            "}"
            : "=&r"(words[0]), "=&r"(words[1])
            : "l"(global), "r"(holds)
            : "memory"
        );
    } else {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "setp.ne.b32 p, %5, 0;\n\t"
            "mov.b32 %0, 0;\n\t"
            "mov.b32 %1, 0;\n\t"
            "mov.b32 %2, 0;\n\t"
            "mov.b32 %3, 0;\n\t"
            "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t"
            "}"
            : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3])
            : "l"(global), "r"(holds)
            : "memory"
        );
    }
}

template <int kWords>
__device__ __forceinline__ void st_global(
    void* global, const u32 (&words)[kWords], bool predicate
) {
    static_assert(kWords == 1 || kWords == 2 || kWords == 4 || kWords == 8, "4 to 32 bytes");
    const u32 holds = predicate;
    if constexpr (kWords == 8) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "setp.ne.b32 p, %9, 0;\n\t"
            "@p st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};\n\t"
            "}" ::"l"(global),
            "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(words[4]),
            "r"(words[5]), "r"(words[6]), "r"(words[7]), "r"(holds)
            : "memory"
        );
    } else if constexpr (kWords == 1) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "setp.ne.b32 p, %2, 0;\n\t"
            "@p st.global.b32 [%0], %1;\n\t"
            "}" ::"l"(global),
            "r"(words[0]), "r"(holds)
            : "memory"
        );
    } else if constexpr (kWords == 2) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "setp.ne.b32 p, %3, 0;\n\t"
            "@p st.global.v2.b32 [%0], {%1, %2};\n\t"
            "}" ::"l"(global),
            "r"(words[0]), "r"(words[1]), "r"(holds)
            : "memory"
        );
    } else {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "setp.ne.b32 p, %5, 0;\n\t"
            "@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n\t"
            "}" ::"l"(global),
            "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(holds)
            : "memory"
        );
    }
}

}  // namespace tmaasync::ptx
