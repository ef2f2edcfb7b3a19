#pragma once

#include <tmaasync/operands/integers.cuh>

// PTX ISA: "TensorCore 5th Generation Instructions". Shapes and formats, and how instructions name
// them.
namespace tmaasync::ptx {

// The shape of tcgen05.ld and tcgen05.st: lanes, and bits of a lane in one repeat.
enum class Tcgen05Shape { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };

// Registers that each thread has for one repeat.
__device__ constexpr int registers_of(Tcgen05Shape shape) {
    return shape == Tcgen05Shape::k16x128b ? 2 : shape == Tcgen05Shape::k16x256b ? 4 : 1;
}

// The reduction of tcgen05.ld.red over the columns that a thread loads.
enum class Tcgen05Reduction { kMinU32, kMaxU32, kMinS32, kMaxS32, kMinF32, kMaxF32 };

// The kind of a tcgen05.mma: the types of its operands, and whether they have scale factors.
enum class Tcgen05Kind { kF16, kTF32, kF8F6F4, kI8, kMXF8F6F4, kMXF4, kMXF4NVF4 };

__device__ constexpr bool is_block_scaled(Tcgen05Kind kind) {
    return kind == Tcgen05Kind::kMXF8F6F4 || kind == Tcgen05Kind::kMXF4 ||
           kind == Tcgen05Kind::kMXF4NVF4;
}

// Rows, and bits of a row, of a tcgen05.cp, with the lanes that get a copy.
enum class Tcgen05Copy {
    k128x256b,
    k128x128b,
    k4x256b,
    k64x128bWarpx2_02_13,
    k64x128bWarpx2_01_23,
    k32x128bWarpx4,
};

// The use of the collector, a buffer of A, of B with .ws: tcgen05.mma fills it, or uses an earlier
// fill, perhaps for the last time. Operands stay unchanged until the last use completes.
enum class Tcgen05Collector { kDiscard, kFill, kUse, kLastUse };

// Groups of 16 elements in shared memory, which tcgen05.cp expands to bytes.
enum class Tcgen05Format { kBytes, kB6x16P32, kB4x16P64 };

// The names, as variables: the constraint "C" takes no literals.
struct Tcgen05Names {
    static constexpr char kNone[] = "";
    static constexpr char k32x32b[] = "32x32b";
    static constexpr char k16x64b[] = "16x64b";
    static constexpr char k16x128b[] = "16x128b";
    static constexpr char k16x256b[] = "16x256b";
    static constexpr char k16x32bx2[] = "16x32bx2";
    static constexpr char kPack[] = ".pack::16b";
    static constexpr char kUnpack[] = ".unpack::16b";
    static constexpr char kMinU32[] = "min.u32";
    static constexpr char kMaxU32[] = "max.u32";
    static constexpr char kMinS32[] = "min.s32";
    static constexpr char kMaxS32[] = "max.s32";
    static constexpr char kMinF32[] = "min.f32";
    static constexpr char kMaxF32[] = "max.f32";
    static constexpr char kF16[] = "f16";
    static constexpr char kTF32[] = "tf32";
    static constexpr char kF8F6F4[] = "f8f6f4";
    static constexpr char kI8[] = "i8";
    static constexpr char kMXF8F6F4[] = "mxf8f6f4";
    static constexpr char kMXF4[] = "mxf4";
    static constexpr char kMXF4NVF4[] = "mxf4nvf4";
    static constexpr char kSparse[] = ".sp";
    static constexpr char kMetadata[] = "[e], ";
    static constexpr char kShift[] = ".ashift";
    static constexpr char kFill[] = ".collector::a::fill";
    static constexpr char kUse[] = ".collector::a::use";
    static constexpr char kLastUse[] = ".collector::a::lastuse";
    static constexpr char kFillB[] = "::fill";
    static constexpr char kUseB[] = "::use";
    static constexpr char kLastUseB[] = "::lastuse";
    static constexpr char kDiscardB[] = "::discard";
    static constexpr char kBlock16[] = ".block16";
    static constexpr char kBlock32[] = ".block32";
    static constexpr char k128x256b[] = "128x256b";
    static constexpr char k128x128b[] = "128x128b";
    static constexpr char k4x256b[] = "4x256b";
    static constexpr char k64x128bWarpx2_02_13[] = "64x128b.warpx2::02_13";
    static constexpr char k64x128bWarpx2_01_23[] = "64x128b.warpx2::01_23";
    static constexpr char k32x128bWarpx4[] = "32x128b.warpx4";
    static constexpr char kB6x16P32[] = ".b8x16.b6x16_p32";
    static constexpr char kB4x16P64[] = ".b8x16.b4x16_p64";
};

__device__ constexpr const char* name_of(Tcgen05Shape shape) {
    switch (shape) {
        case Tcgen05Shape::k32x32b:
            return Tcgen05Names::k32x32b;
        case Tcgen05Shape::k16x64b:
            return Tcgen05Names::k16x64b;
        case Tcgen05Shape::k16x128b:
            return Tcgen05Names::k16x128b;
        case Tcgen05Shape::k16x256b:
            return Tcgen05Names::k16x256b;
        case Tcgen05Shape::k16x32bx2:
            return Tcgen05Names::k16x32bx2;
    }
    return Tcgen05Names::kNone;
}

__device__ constexpr const char* name_of(Tcgen05Reduction reduction) {
    switch (reduction) {
        case Tcgen05Reduction::kMinU32:
            return Tcgen05Names::kMinU32;
        case Tcgen05Reduction::kMaxU32:
            return Tcgen05Names::kMaxU32;
        case Tcgen05Reduction::kMinS32:
            return Tcgen05Names::kMinS32;
        case Tcgen05Reduction::kMaxS32:
            return Tcgen05Names::kMaxS32;
        case Tcgen05Reduction::kMinF32:
            return Tcgen05Names::kMinF32;
        case Tcgen05Reduction::kMaxF32:
            return Tcgen05Names::kMaxF32;
    }
    return Tcgen05Names::kNone;
}

__device__ constexpr const char* name_of(Tcgen05Kind value) {
    switch (value) {
        case Tcgen05Kind::kF16:
            return Tcgen05Names::kF16;
        case Tcgen05Kind::kTF32:
            return Tcgen05Names::kTF32;
        case Tcgen05Kind::kF8F6F4:
            return Tcgen05Names::kF8F6F4;
        case Tcgen05Kind::kI8:
            return Tcgen05Names::kI8;
        case Tcgen05Kind::kMXF8F6F4:
            return Tcgen05Names::kMXF8F6F4;
        case Tcgen05Kind::kMXF4:
            return Tcgen05Names::kMXF4;
        case Tcgen05Kind::kMXF4NVF4:
            return Tcgen05Names::kMXF4NVF4;
    }
    return Tcgen05Names::kNone;
}

__device__ constexpr const char* name_of(Tcgen05Copy value) {
    switch (value) {
        case Tcgen05Copy::k128x256b:
            return Tcgen05Names::k128x256b;
        case Tcgen05Copy::k128x128b:
            return Tcgen05Names::k128x128b;
        case Tcgen05Copy::k4x256b:
            return Tcgen05Names::k4x256b;
        case Tcgen05Copy::k64x128bWarpx2_02_13:
            return Tcgen05Names::k64x128bWarpx2_02_13;
        case Tcgen05Copy::k64x128bWarpx2_01_23:
            return Tcgen05Names::k64x128bWarpx2_01_23;
        case Tcgen05Copy::k32x128bWarpx4:
            return Tcgen05Names::k32x128bWarpx4;
    }
    return Tcgen05Names::kNone;
}

__device__ constexpr const char* name_of(Tcgen05Format value) {
    switch (value) {
        case Tcgen05Format::kBytes:
            return Tcgen05Names::kNone;
        case Tcgen05Format::kB6x16P32:
            return Tcgen05Names::kB6x16P32;
        case Tcgen05Format::kB4x16P64:
            return Tcgen05Names::kB4x16P64;
    }
    return Tcgen05Names::kNone;
}

__device__ constexpr const char* name_of(Tcgen05Collector value) {
    switch (value) {
        case Tcgen05Collector::kFill:
            return Tcgen05Names::kFill;
        case Tcgen05Collector::kUse:
            return Tcgen05Names::kUse;
        case Tcgen05Collector::kLastUse:
            return Tcgen05Names::kLastUse;
        case Tcgen05Collector::kDiscard:
            break;
    }
    return Tcgen05Names::kNone;
}

// The same of a buffer of B, whose name precedes it.
__device__ constexpr const char* name_of_b(Tcgen05Collector value) {
    switch (value) {
        case Tcgen05Collector::kFill:
            return Tcgen05Names::kFillB;
        case Tcgen05Collector::kUse:
            return Tcgen05Names::kUseB;
        case Tcgen05Collector::kLastUse:
            return Tcgen05Names::kLastUseB;
        case Tcgen05Collector::kDiscard:
            break;
    }
    return Tcgen05Names::kDiscardB;
}

// The number of elements that a scale factor is of.
__device__ constexpr const char* name_of_block(int elements) {
    return elements == 16 ? Tcgen05Names::kBlock16 : Tcgen05Names::kBlock32;
}

// Text that becomes part of an instruction, and a number in this form.
template <char... kLetters>
struct Tcgen05Text {
    static constexpr char letters[] = {kLetters..., '\0'};
};
template <int kNumber, char... kAfter>
struct Tcgen05Number
    : Tcgen05Number<kNumber / 10, static_cast<char>('0' + kNumber % 10), kAfter...> {};
template <char kFirst, char... kAfter>
struct Tcgen05Number<0, kFirst, kAfter...> : Tcgen05Text<kFirst, kAfter...> {};

// The operand immHalfSplitoff of the shape 16x32bx2, with its comma; nothing for other shapes.
template <Tcgen05Shape kShape, int kSplit, char... kAfter>
struct Tcgen05Split
    : Tcgen05Split<kShape, kSplit / 10, static_cast<char>('0' + kSplit % 10), kAfter...> {
    static_assert(
        kShape == Tcgen05Shape::k16x32bx2,
        "the shape 16x32bx2, and no other, takes the column offset of its second half"
    );
};
template <Tcgen05Shape kShape, char kFirst, char... kAfter>
struct Tcgen05Split<kShape, 0, kFirst, kAfter...> : Tcgen05Text<',', ' ', kFirst, kAfter...> {};
template <Tcgen05Shape kShape>
struct Tcgen05Split<kShape, -1> : Tcgen05Text<> {
    static_assert(
        kShape != Tcgen05Shape::k16x32bx2,
        "the shape 16x32bx2 takes the column offset of its second half"
    );
};

// The operand scale-input-d, with its comma; nothing for 0.
template <int kScale, char... kAfter>
struct Tcgen05ScaleOfD
    : Tcgen05ScaleOfD<kScale / 10, static_cast<char>('0' + kScale % 10), kAfter...> {};
template <>
struct Tcgen05ScaleOfD<0> : Tcgen05Text<> {};
template <char kFirst, char... kAfter>
struct Tcgen05ScaleOfD<0, kFirst, kAfter...> : Tcgen05Text<',', ' ', kFirst, kAfter...> {};

// Sparse A, with the address of its metadata in tensor memory: A has half of the elements along K.
template <typename A>
struct Tcgen05Sparse {
    A a;  // a matrix descriptor, or an address in tensor memory
    u32 metadata;
};

// Where A of tcgen05.mma lies, by its operand's type: a matrix descriptor, or an address in tensor
// memory. `kOperand` is the operand in an instruction, of a register `a` with this many bits. The
// register `e` has the address of the metadata of sparse A.
template <typename A>
struct Tcgen05SourceOfA {
    static_assert(sizeof(A) == 0, "A is a descriptor, of type u64, or an address, of type u32");
};
template <typename A>
struct Tcgen05DenseSource {
    static constexpr bool kIsSparse = false;
    static constexpr int kBits = sizeof(A) * 8;
    static constexpr char kSparse[] = "";
    static constexpr char kMetadata[] = "";
    __device__ static constexpr u64 bits(A a) { return a; }
    __device__ static constexpr u32 metadata(A) { return 0; }
};
template <>
struct Tcgen05SourceOfA<u64> : Tcgen05DenseSource<u64> {
    static constexpr bool kIsTensorMemory = false;
    static constexpr char kOperand[] = "a";
};
template <>
struct Tcgen05SourceOfA<u32> : Tcgen05DenseSource<u32> {
    static constexpr bool kIsTensorMemory = true;
    static constexpr char kOperand[] = "[a]";
};
template <typename A>
struct Tcgen05SourceOfA<Tcgen05Sparse<A>> {
    static constexpr bool kIsSparse = true;
    static constexpr bool kIsTensorMemory = Tcgen05SourceOfA<A>::kIsTensorMemory;
    static constexpr int kBits = Tcgen05SourceOfA<A>::kBits;
    static constexpr const char* kOperand = Tcgen05SourceOfA<A>::kOperand;
    static constexpr const char* kSparse = Tcgen05Names::kSparse;
    static constexpr const char* kMetadata = Tcgen05Names::kMetadata;
    __device__ static constexpr u64 bits(const Tcgen05Sparse<A>& sparse) { return sparse.a; }
    __device__ static constexpr u32 metadata(const Tcgen05Sparse<A>& sparse) {
        return sparse.metadata;
    }
};

}  // namespace tmaasync::ptx
