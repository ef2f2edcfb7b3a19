// Transposes FP8 V for attention.cu, because for FP8 wgmma accepts V only with the keys contiguous.
// Each group of sixteen keys has the order of column_of_k, in which a thread holds their
// probabilities. Positions after the last key are zero.
//
//   VTile           keys by HEAD_DIM columns, of [batch, keys, kv_heads, head_dim]
//   TransposedTile  HEAD_DIM columns by the same keys, of [batch, kv_heads, head_dim, keys]
//   HEAD_DIM        columns of the tiles: the head dimension, zero-padded to a multiple of 64
//
// Grid: one CTA of 128 threads per block of keys, head and entry.
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/wgmma.cuh>

#include "abi.cuh"

using namespace tmaasync;
using namespace tmaasync::kernels::attention;

constexpr int kKeys = VTile::side(1);
constexpr int kWarps = 4;

using Values = WgmmaBuffer<float8_e4m3, VTile::kSwizzle, Major::kK, kKeys, HEAD_DIM>;
using Transposed = WgmmaBuffer<float8_e4m3, TransposedTile::kSwizzle, Major::kK, HEAD_DIM, kKeys>;

static_assert(
    TransposedTile::side(2) == HEAD_DIM && TransposedTile::side(3) == kKeys, "transposed"
);

struct SharedMemory {
    VTile::Shared values;
    TransposedTile::Shared transposed;
    SharedMemBarrier full;
};

extern "C" __device__ const int attention_values_shared_bytes = sizeof(SharedMemory);

// Transpose four rows of four bytes.
__device__ __forceinline__ void transpose(const u32 (&rows)[4], u32 (&columns)[4]) {
    const u32 even[2] = {
        __byte_perm(rows[0], rows[1], 0x5140), __byte_perm(rows[2], rows[3], 0x5140)
    };
    const u32 odd[2] = {
        __byte_perm(rows[0], rows[1], 0x7362), __byte_perm(rows[2], rows[3], 0x7362)
    };
    columns[0] = __byte_perm(even[0], even[1], 0x5410);
    columns[1] = __byte_perm(even[0], even[1], 0x7632);
    columns[2] = __byte_perm(odd[0], odd[1], 0x5410);
    columns[3] = __byte_perm(odd[0], odd[1], 0x7632);
}

// A warp transposes sixteen keys by 32 columns at a time, and a lane four by four of them.
__device__ void transpose_tile(SharedMemory& shared) {
    constexpr int kSixteens = kKeys / 16, kBlocks = kSixteens * HEAD_DIM / 32;
    const int lane = lane_index();
#pragma unroll
    for (int block = warp_index(); block < kBlocks; block += kWarps) {
        const int key = block % kSixteens * 16, own_key = lane % 4 * 4;
        const int column = block / kSixteens * 32 + lane / 4 * 4;
        u32 rows[4], columns[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 at = Values::offset_bytes(key + column_of_k(own_key + i), column);
            rows[i] = *reinterpret_cast<const u32*>(shared.values.bytes + at);
        }
        transpose(rows, columns);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 at = Transposed::offset_bytes(column + i, key + own_key);
            *reinterpret_cast<u32*>(shared.transposed.bytes + at) = columns[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * kWarps) attention_values(
    const __grid_constant__ VTile v,
    const __grid_constant__ TransposedTile transposed,
    const __grid_constant__ ValueSizes sizes
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const i32 blocks = count_tiles(sizes.keys, kKeys);
    const i32 first = static_cast<i32>(blockIdx.x) % blocks * kKeys;
    const i32 head_of_all = static_cast<i32>(blockIdx.x) / blocks;
    const i32 head = head_of_all % sizes.kv_heads, entry = head_of_all / sizes.kv_heads;

    launch_dependent_grids();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        wait_for_previous_grids();
        shared.full.expect_bytes(VTile::kBytes);
        v.async_copy(shared.values, shared.full, {0, head, first, entry});
    }
    __syncthreads();
    shared.full.wait(0);
    transpose_tile(shared);
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        transposed.async_store(shared.transposed, {first, 0, head, entry});
        commit_group();
        wait_group_read<0>();
    }
}
