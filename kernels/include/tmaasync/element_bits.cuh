#pragma once

#include <tmaasync/operands/integers.cuh>

// Elements of 4 and 6 bits, of sm_100a and sm_103a, and their numbers. A tensor map reads them
// without padding, low bits first. In a tile in shared memory a byte has two float4_e2m1, as kinds
// mxf4 and mxf4nvf4 of tcgen05.mma read them; 16 of the others take 16 bytes, of which the last 8,
// or 4, are a gap with undefined contents (kinds f8f6f4 and mxf8f6f4).
namespace tmaasync {

struct float4_e2m1 {
    unsigned char bits;
};
struct float4_e2m1_unpacked {
    unsigned char bits;
};
struct float6_e2m3 {
    unsigned char bits;
};
struct float6_e3m2 {
    unsigned char bits;
};

// Bits of an element: in shared memory, of these those that a load credits to its barrier, and
// whether shared memory is stored through a tensor map. A copy starts at a multiple of kStart
// elements.
template <int kBitsInShared, int kBitsLoaded, int kFirst, bool kMayStore>
struct NumbersOfElement {
    static constexpr int kShared = kBitsInShared;
    static constexpr int kLoaded = kBitsLoaded;
    static constexpr int kStart = kFirst;
    static constexpr bool kIsStored = kMayStore;
};
template <typename T>
struct ElementBits
    : NumbersOfElement<8 * sizeof(T), 8 * sizeof(T), sizeof(T) < 16 ? 16 / sizeof(T) : 1, true> {};
template <>
struct ElementBits<float4_e2m1> : NumbersOfElement<4, 4, 32, true> {};
template <>
struct ElementBits<float4_e2m1_unpacked> : NumbersOfElement<8, 4, 128, false> {};
template <>
struct ElementBits<float6_e2m3> : NumbersOfElement<8, 6, 128, true> {};
template <>
struct ElementBits<float6_e3m2> : NumbersOfElement<8, 6, 128, true> {};

}  // namespace tmaasync
