#pragma once

#include <tmaasync/operands/small_floats.cuh>

// PTX ISA: "mma.sync" and "mma.sp::ordered_metadata": the whole warp executes each, and adds A B to
// d. m8n8k4 of f16 is of every chip; the kinds are of sm_120a. Sparse A (with `metadata`, and four
// registers of B) has half of the elements along K.
namespace tmaasync::ptx {

struct MmaNames {
    static constexpr char kRow[] = "row";
    static constexpr char kColumn[] = "col";
    static constexpr char kMXF4[] = "kind::mxf4.block_scale.scale_vec::2X";
    static constexpr char kMXF4NVF4[] = "kind::mxf4nvf4.block_scale.scale_vec::4X";
    static constexpr char kE8M0[] = "ue8m0";
    static constexpr char kE4M3[] = "ue4m3";
};

// The scale factors of one row or column: the byte of the register at which they begin, and the
// thread of a quad that has it: of A 0 or 1, for a pair of threads; of B 0 to 3.
template <int kByte, int kThread>
struct MmaScale {
    u32 word;
};

// Four GEMMs of 8 x 4 by 4 x 8, one for the lanes 4 q to 4 q + 3 and 16 above: floats.
template <bool kAIsColumn = false, bool kBIsRow = false>
__device__ __forceinline__ void mma_m8n8k4(float (&d)[8], const u32 (&a)[2], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.%12.%13.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]),
          "C"(kAIsColumn ? MmaNames::kColumn : MmaNames::kRow),
          "C"(kBIsRow ? MmaNames::kRow : MmaNames::kColumn)
    );
}

// Four GEMMs of 8 x 4 by 4 x 8, one for the lanes 4 q to 4 q + 3 and 16 above: halves, two in a
// register.
template <bool kAIsColumn = false, bool kBIsRow = false>
__device__ __forceinline__ void mma_m8n8k4(u32 (&d)[4], const u32 (&a)[2], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.%8.%9.f16.f16.f16.f16 {%0, %1, %2, %3}, "
        "{%4, %5}, {%6, %7}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]),
          "C"(kAIsColumn ? MmaNames::kColumn : MmaNames::kRow),
          "C"(kBIsRow ? MmaNames::kRow : MmaNames::kColumn)
    );
}

// 16 x 8 accumulators, K = 32, of sparse A 64: floats, or halves, two in a register. Elements of 4
// and 6 bits are in bytes, of e2m1 from bit 2 on.
template <SmallFloat kA, SmallFloat kB>
__device__ __forceinline__ void mma_f8f6f4(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.%10.%11.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "C"(name_of(kA)),
          "C"(name_of(kB))
    );
}

template <SmallFloat kA, SmallFloat kB>
__device__ __forceinline__ void mma_f8f6f4(u32 (&d)[2], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16.%8.%9.f16 "
        "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "C"(name_of(kA)),
          "C"(name_of(kB))
    );
}

template <SmallFloat kA, SmallFloat kB>
__device__ __forceinline__ void mma_f8f6f4(
    float (&d)[4], const u32 (&a)[4], const u32 (&b)[4], u32 metadata
) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.%13.%14.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "r"(metadata), "C"(name_of(kA)), "C"(name_of(kB))
    );
}

template <SmallFloat kA, SmallFloat kB>
__device__ __forceinline__ void mma_f8f6f4(
    u32 (&d)[2], const u32 (&a)[4], const u32 (&b)[4], u32 metadata
) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f16.%11.%12.f16 "
        "{%0, %1}, {%2, %3, %4, %5}, {%6, %7, %8, %9}, {%0, %1}, %10, 0x0;"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "r"(metadata), "C"(name_of(kA)), "C"(name_of(kB))
    );
}

// The same of floats, with a scale factor of ue8m0 for every 32 elements along K, of sparse A 64.
template <SmallFloat kA, SmallFloat kB, int kAByte, int kAThread, int kBByte, int kBThread>
__device__ __forceinline__ void mma_mxf8f6f4(
    float (&d)[4],
    const u32 (&a)[4],
    const u32 (&b)[2],
    MmaScale<kAByte, kAThread> a_scale,
    MmaScale<kBByte, kBThread> b_scale
) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.%16.%17."
        "f32.ue8m0 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%12, %13}, {%11}, "
        "{%14, %15};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scale.word),
          "r"(b_scale.word), "n"(kAByte), "n"(kAThread), "n"(kBByte), "n"(kBThread),
          "C"(name_of(kA)), "C"(name_of(kB))
    );
}

template <SmallFloat kA, SmallFloat kB, int kAByte, int kAThread, int kBByte, int kBThread>
__device__ __forceinline__ void mma_mxf8f6f4(
    float (&d)[4],
    const u32 (&a)[4],
    const u32 (&b)[4],
    u32 metadata,
    MmaScale<kAByte, kAThread> a_scale,
    MmaScale<kBByte, kBThread> b_scale
) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::mxf8f6f4.block_scale.scale_"
        "vec::1X.f32.%19.%20.f32.ue8m0 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0, "
        "{%13}, {%15, %16}, {%14}, {%17, %18};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "r"(metadata), "r"(a_scale.word), "r"(b_scale.word), "n"(kAByte), "n"(kAThread),
          "n"(kBByte), "n"(kBThread), "C"(name_of(kA)), "C"(name_of(kB))
    );
}

// K = 64, of sparse A 128, of packed e2m1: two scale factors of ue8m0, or with kIsNvf4 four of
// ue4m3.
template <bool kIsNvf4, int kAByte, int kAThread, int kBByte, int kBThread>
__device__ __forceinline__ void mma_mxf4(
    float (&d)[4],
    const u32 (&a)[4],
    const u32 (&b)[2],
    MmaScale<kAByte, kAThread> a_scale,
    MmaScale<kBByte, kBThread> b_scale
) {
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.%16.f32.e2m1.e2m1.f32.%17 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%12, %13}, {%11}, "
        "{%14, %15};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scale.word),
          "r"(b_scale.word), "n"(kAByte), "n"(kAThread), "n"(kBByte), "n"(kBThread),
          "C"(kIsNvf4 ? MmaNames::kMXF4NVF4 : MmaNames::kMXF4),
          "C"(kIsNvf4 ? MmaNames::kE4M3 : MmaNames::kE8M0)
    );
}

template <bool kIsNvf4, int kAByte, int kAThread, int kBByte, int kBThread>
__device__ __forceinline__ void mma_mxf4(
    float (&d)[4],
    const u32 (&a)[4],
    const u32 (&b)[4],
    u32 metadata,
    MmaScale<kAByte, kAThread> a_scale,
    MmaScale<kBByte, kBThread> b_scale
) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.%19.f32.e2m1.e2m1.f32.%20 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0, "
        "{%13}, {%15, %16}, {%14}, {%17, %18};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "r"(metadata), "r"(a_scale.word), "r"(b_scale.word), "n"(kAByte), "n"(kAThread),
          "n"(kBByte), "n"(kBThread), "C"(kIsNvf4 ? MmaNames::kMXF4NVF4 : MmaNames::kMXF4),
          "C"(kIsNvf4 ? MmaNames::kE4M3 : MmaNames::kE8M0)
    );
}

}  // namespace tmaasync::ptx
