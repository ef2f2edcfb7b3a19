// One TMA instruction at a time, from poisoned shared memory, with a bounded wait.
//
//   RANK       dimensions of the map
//   OPERATION  0 load, 1 store, 2 reduce, 3 im2col load, 4 bulk load, 5 bulk store
//   REDUCE     a ReduceOp, for OPERATION 2
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kImageBytes = 32768;
constexpr unsigned char kPoison = 0xcc;
constexpr u32 kPolls = 20000;
constexpr u64 kPolicy = static_cast<u64>(CachePolicy::kEvictNormal);

struct Position {
    i32 at[5];
    u16 offsets[3];
    u16 padding;
};

struct SharedMemory {
    alignas(1024) unsigned char image[kImageBytes];
    SharedMemBarrier full;
};

extern "C" __device__ const int probe_shared_bytes = sizeof(SharedMemory);

__device__ Coordinates<RANK> coordinates(const Position& position) {
    Coordinates<RANK> at;
    for (int dim = 0; dim < RANK; ++dim) at.values[dim] = position.at[dim];
    return at;
}

// Templates, so that the branches of other operations are not compiled.
template <int kOperation, int kRank>
__device__ void issue_load(
    u32 image,
    u32 barrier,
    const ptx::TensorMap& map,
    const Position& position,
    void* global,
    u32 bytes
) {
    if constexpr (kOperation == 0) {
        ptx::cp_async_bulk_tensor_load<kRank>(image, &map, coordinates(position), barrier, kPolicy);
    } else if constexpr (kOperation == 3) {
        u16 offsets[kRank - 2];
        for (int dim = 0; dim < kRank - 2; ++dim) offsets[dim] = position.offsets[dim];
        ptx::cp_async_bulk_tensor_load_im2col<kRank>(
            image, &map, coordinates(position), offsets, barrier, kPolicy
        );
    } else {
        ptx::cp_async_bulk_load(image, global, bytes, barrier, kPolicy);
    }
}

template <int kOperation, int kRank>
__device__ void issue_store(
    u32 image, const ptx::TensorMap& map, const Position& position, void* global, u32 bytes
) {
    if constexpr (kOperation == 1) {
        ptx::cp_async_bulk_tensor_store<kRank>(&map, coordinates(position), image, kPolicy);
    } else if constexpr (kOperation == 2) {
        ptx::cp_reduce_async_bulk_tensor<static_cast<ReduceOp>(REDUCE), kRank>(
            &map, coordinates(position), image, kPolicy
        );
    } else {
        ptx::cp_async_bulk_store(global, image, bytes, kPolicy);
    }
}

// `image` is what shared memory holds before a store, or held after a load. `completed` is
// whether the barrier's phase ended with `bytes` expected. One block of any size; its first thread
// issues.
extern "C" __global__ void probe(
    const __grid_constant__ ptx::TensorMap map,
    const Position position,
    unsigned char* image,
    unsigned char* global,
    u32 bytes,
    u32 shared_offset,
    u32* completed
) {
    constexpr bool kLoads = OPERATION == 0 || OPERATION == 3 || OPERATION == 4;
    auto& shared = dynamic_shared<SharedMemory>();
    for (int i = threadIdx.x; i < kImageBytes; i += blockDim.x) {
        shared.image[i] = kLoads ? kPoison : image[i];
    }
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    fence_async_view_proxy();
    __syncthreads();

    if (threadIdx.x == 0) {
        const u32 start = ptx::shared_address(shared.image) + shared_offset;
        if constexpr (kLoads) {
            shared.full.expect_bytes(bytes);
            issue_load<OPERATION, RANK>(start, shared.full.address(), map, position, global, bytes);
            bool done = false;
            for (u32 poll = 0; poll < kPolls && !done; ++poll) done = shared.full.test_wait(0);
            *completed = done;
        } else {
            issue_store<OPERATION, RANK>(start, map, position, global, bytes);
            commit_group();
            wait_group<0>();
            *completed = 1;
        }
    }
    __syncthreads();
    if constexpr (kLoads) {
        for (int i = threadIdx.x; i < kImageBytes; i += blockDim.x) {
            image[i] = *const_cast<volatile unsigned char*>(&shared.image[i]);
        }
    }
}
