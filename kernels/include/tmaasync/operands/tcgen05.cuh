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

// Text that becomes part of an instruction, and a number as such a text.
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

}  // namespace tmaasync::ptx
