// New here: a swizzle. Shared memory has 32 banks of 4 bytes, and rows of 128 bytes put all of a
// column into the same four: eight threads that read it take eight turns. TMA can spread the
// 16-byte units of a column over the banks while it loads. A kernel asks tile_offset where one is.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// A pixel is four floats: the 16 bytes that a swizzle moves as one.
constexpr int kPixelFloats = 4;
constexpr int kSide = Tile::side(0);
static_assert(Tile::side(1) == kSide * kPixelFloats, "a tile is square");

struct SharedMemory {
    Tile::Shared loaded;
    Tile::Shared transposed;
    SharedMemBarrier full;
};
extern "C" __device__ const int transpose_shared_bytes = sizeof(SharedMemory);

__device__ u32 pixel_offset(int row, int column) {
    return Tile::tile_offset({column * kPixelFloats, row});
}

// Neighbouring threads read down a column and write along a row.
__device__ void transpose_pixels(const Tile::Shared& loaded, Tile::Shared& transposed) {
    for (int i = threadIdx.x; i < kSide * kSide; i += blockDim.x) {
        const int row = i % kSide, column = i / kSide;
        const unsigned char* from = loaded.bytes + pixel_offset(row, column);
        unsigned char* to = transposed.bytes + pixel_offset(column, row);
        *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
    }
}

extern "C" __global__ void transpose(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target
) {
    auto& shared = dynamic_shared<SharedMemory>();  // starts where a swizzle pattern starts
    const int x = blockIdx.x * kSide, y = blockIdx.y * kSide;

    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        shared.full.expect_bytes(Tile::kBytes);
        source.async_copy(shared.loaded, shared.full, {x * kPixelFloats, y});
    }
    __syncthreads();
    shared.full.wait(0);
    transpose_pixels(shared.loaded, shared.transposed);

    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        target.async_store(shared.transposed, {y * kPixelFloats, x});
        commit_group();
        wait_group_read<0>();
    }
}
