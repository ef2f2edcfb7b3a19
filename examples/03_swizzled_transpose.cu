// New here: a swizzle. Shared memory has 32 banks of 4 bytes. With rows of 128 bytes, a
// column lies in the same four banks: reading it is an 8-way bank conflict. TMA can
// permute the 16-byte units of each row as it loads, and so spread a column over the
// banks; tile_offset returns where one is.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// A pixel is four floats: 16 bytes, the unit that a swizzle permutes.
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
    auto& shared = dynamic_shared<SharedMemory>();  // aligned to the swizzle pattern: 1024 bytes
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
