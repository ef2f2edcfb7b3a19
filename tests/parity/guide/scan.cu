// Exclusive prefix sums in one pass: each block scans its tile, publishes the tile's sum, and looks
// back over the sums of the tiles before. A descriptor holds a flag and a value in 64 bits.
#include <cuda/atomic>

enum : unsigned { kEmpty, kSum, kPrefix };
union Descriptor {
    unsigned long long bits;
    struct {
        unsigned value, flag;
    };
};
using Shared = cuda::atomic_ref<unsigned long long, cuda::thread_scope_device>;

constexpr int kWarps = 4;

__device__ unsigned scan_of_warp(unsigned value) {
    const int lane = threadIdx.x % warpSize;
#pragma unroll
    for (int distance = 1; distance < 32; distance <<= 1) {
        const unsigned below = __shfl_up_sync(0xffffffff, value, distance);
        if (lane >= distance) value += below;
    }
    return value;
}

template <int kItems>
__global__ void __launch_bounds__(32 * kWarps) scan(
    const unsigned* __restrict__ in,
    unsigned* __restrict__ out,
    unsigned long long* descriptors,
    unsigned* ticket,
    int size
) {
    __shared__ unsigned sums[kWarps], tile_of_block, tiles_before;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Tiles in the order in which blocks start: those before have started.
    if (threadIdx.x == 0) tile_of_block = atomicAdd(ticket, 1u);
    __syncthreads();  // of the ticket
    const int tile = tile_of_block;
    const int first = (tile * blockDim.x + threadIdx.x) * kItems;
    unsigned before[kItems], total = 0;
    if constexpr (kItems == 4) {
        uint4 four = {};
        if (first + 4 <= size) four = __ldcs(reinterpret_cast<const uint4*>(in + first));
        const unsigned words[4] = {four.x, four.y, four.z, four.w};
        for (int i = 0; i < 4; ++i) {
            before[i] = total;
            total += first + 4 <= size ? words[i] : first + i < size ? __ldcs(in + first + i) : 0;
        }
    } else {
        for (int i = 0; i < kItems; ++i) {
            before[i] = total;
            total += first + i < size ? __ldcs(in + first + i) : 0;
        }
    }
    const unsigned inclusive = scan_of_warp(total);
    if (lane == 31) sums[warp] = inclusive;
    __syncthreads();  // of the sums
    unsigned sum = 0, warps_before = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
        if (i < warp) warps_before += sums[i];
        sum += sums[i];
    }

    if (warp == 0) {
        Descriptor own;
        own.value = sum;
        own.flag = tile == 0 ? kPrefix : kSum;
        if (lane == 0) Shared(descriptors[tile]).store(own.bits, cuda::memory_order_release);
        unsigned prefix = 0;
        bool is_done = tile == 0;
        for (int other = tile - 1 - lane; !is_done; other -= 32) {
            Descriptor seen;
            seen.value = 0;
            seen.flag = kPrefix;
            if (other >= 0) {
                do {
                    seen.bits = Shared(descriptors[other]).load(cuda::memory_order_acquire);
                    if (seen.flag == kEmpty) __nanosleep(32);
                } while (seen.flag == kEmpty);
            }
            const unsigned prefixes = __ballot_sync(0xffffffff, seen.flag == kPrefix);
            const bool counts = prefixes == 0 || lane < __ffs(prefixes);
            prefix += __reduce_add_sync(0xffffffff, counts ? seen.value : 0);
            is_done = prefixes != 0;
        }
        if (lane == 0) {
            own.value += prefix;
            own.flag = kPrefix;
            if (tile > 0) Shared(descriptors[tile]).store(own.bits, cuda::memory_order_release);
            tiles_before = prefix;
        }
    }
    __syncthreads();  // of the tiles before
    const unsigned start = tiles_before + warps_before + inclusive - total;
    for (int i = 0; i < kItems; ++i) {
        if (first + i < size) out[first + i] = start + before[i];
    }
}
