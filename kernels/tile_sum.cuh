// The sum of tiles in registers of the consumer warps.
//
//   Tile            a TMATensorTile whose rows are multiples of 16 bytes
//   CONSUMER_WARPS  warps that add, the first ones of the block
#pragma once
#include <tmaasync/tmaasync.cuh>

namespace tmaasync::kernels {

using Element = Tile::Element;
constexpr int kConsumers = 32 * CONSUMER_WARPS;

// 16-bit floats are summed in float32 and rounded once.
template <typename T>
struct SumOf {
    using type = T;
};
template <>
struct SumOf<float16> {
    using type = float;
};
template <>
struct SumOf<bfloat16> {
    using type = float;
};
using Sum = SumOf<Element>::type;

struct alignas(16) Vector {
    static constexpr int kElements = 16 / sizeof(Element);
    Element elements[kElements];
};
constexpr int kVectors = Tile::kBytes / sizeof(Vector);
static_assert(Tile::kBytes % sizeof(Vector) == 0, "rows of a tile are multiples of 16 bytes");
constexpr int kVectorsPerThread = (kVectors + kConsumers - 1) / kConsumers;

// A thread's share of the sum of tiles: the threads 0 to kConsumers - 1 add them up.
struct TileSum {
    Sum values[kVectorsPerThread][Vector::kElements];

    template <typename Function>
    __device__ __forceinline__ static void for_each_vector(const Function& function) {
#pragma unroll
        for (int i = 0; i < kVectorsPerThread; ++i) {
            const int vector = i * kConsumers + threadIdx.x;
            if (kVectors % kConsumers == 0 || vector < kVectors) function(i, vector);
        }
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto& vector : values) {
#pragma unroll
            for (auto& value : vector) value = Sum(0);
        }
    }

    __device__ __forceinline__ void add(const Tile::Shared& tile) {
        const auto* vectors = reinterpret_cast<const Vector*>(tile.bytes);
        for_each_vector([&](int i, int at) {
            const Vector vector = vectors[at];
#pragma unroll
            for (int j = 0; j < Vector::kElements; ++j) values[i][j] += Sum(vector.elements[j]);
        });
    }

    __device__ __forceinline__ void write(Tile::Shared& tile) const {
        auto* vectors = reinterpret_cast<Vector*>(tile.bytes);
        for_each_vector([&](int i, int at) {
            Vector vector;
#pragma unroll
            for (int j = 0; j < Vector::kElements; ++j) vector.elements[j] = Element(values[i][j]);
            vectors[at] = vector;
        });
    }
};

}  // namespace tmaasync::kernels
