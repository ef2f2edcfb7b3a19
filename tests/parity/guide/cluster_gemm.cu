// out = a @ b^T of float16 with float32 sums, in CUDA C++ and inline PTX alone. The two CTAs of a
// cluster take rows of a below one another, and share the tile of b: each loads one half and
// multicasts it to both. A stage is free when the consumers of both CTAs have read it.
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(64) TensorMap {
    u64 opaque[16];
};

#define CTAS 2
#define TILE_M 128
#define TILE_N 64
#define TILE_K 64
#define STAGES 4
#define CONSUMER_THREADS 256
#define A_BYTES (TILE_M * TILE_K * 2)
#define B_BYTES (TILE_N * TILE_K * 2)
#define B_SHARE (B_BYTES / CTAS)

// --- PTX -----------------------------------------------------------------------------------------

#define SPECIAL_REGISTER(name, ptx)                         \
    __device__ __forceinline__ u32 name() {                 \
        u32 value;                                          \
        asm volatile("mov.u32 %0, " ptx ";" : "=r"(value)); \
        return value;                                       \
    }
SPECIAL_REGISTER(cluster_rank, "%%cluster_ctarank")
SPECIAL_REGISTER(cluster_id_x, "%%clusterid.x")
SPECIAL_REGISTER(block_y, "%%ctaid.y")
SPECIAL_REGISTER(thread_x, "%%tid.x")
SPECIAL_REGISTER(lane_id, "%%laneid")

namespace mbarrier {

__device__ __forceinline__ void init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive_and_expect(u32 barrier, u32 bytes) {
    asm volatile(
        "{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier),
        "r"(bytes)
        : "memory"
    );
}

// On the barrier at the same place in another CTA.
__device__ __forceinline__ void arrive_remote(u32 barrier, u32 cta) {
    asm volatile(
        "{\n\t"
        ".reg .b32 remote;\n\t"
        "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n\t"
        "}" ::"r"(barrier),
        "r"(cta)
        : "memory"
    );
}

__device__ __forceinline__ bool try_wait(u32 barrier, u32 parity) {
    u32 is_over;
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2, %3;\n\t"
        "selp.u32 %0, 1, 0, done;\n\t"
        "}"
        : "=r"(is_over)
        : "r"(barrier), "r"(parity), "r"(0x989680)
        : "memory"
    );
    return is_over != 0;
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!try_wait(barrier, parity)) {}
}

}  // namespace mbarrier

namespace cluster {

__device__ __forceinline__ void arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace cluster

namespace tma {

__device__ __forceinline__ u64 keep_in_l2() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void load(u32 target, const TensorMap& map, u32 barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(target),
        "l"(&map), "r"(x), "r"(y), "r"(barrier)
        : "memory"
    );
}

__device__ __forceinline__ void load_multicast(
    u32 target, const TensorMap& map, u32 barrier, int x, int y, u16 ctas, u64 policy
) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(target),
        "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(ctas), "l"(policy)
        : "memory"
    );
}

}  // namespace tma

namespace wgmma {

__device__ __forceinline__ u64 descriptor(u32 address) {
    return (u64(address) >> 4 & 0x3fff) | u64(1) << 16 | u64(64) << 32 | u64(1) << 62;
}
__device__ __forceinline__ void fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define F4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
template <int kScaleD>
__device__ __forceinline__ void m64n64k16(float (&c)[32], u64 a, u64 b) {
    asm volatile(
        "{\n\t"
        ".reg .pred accumulate;\n\t"
        "setp.ne.b32 accumulate, %34, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16\n\t"
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,\n\t"
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},\n\t"
        "%32, %33, accumulate, 1, 1, 0, 0;\n\t"
        "}"
        : F16(0), F16(16)
        : "l"(a), "l"(b), "n"(kScaleD)
    );
}

}  // namespace wgmma

// --- the roles -----------------------------------------------------------------------------------

struct Ring {
    u32 a, b, full, empty;  // shared addresses of stage 0
    u32 stage = 0, phase = 0;

    __device__ u32 a_at() const { return a + stage * A_BYTES; }
    __device__ u32 b_at() const { return b + stage * B_BYTES; }
    __device__ u32 full_at() const { return full + stage * 8; }
    __device__ u32 empty_at() const { return empty + stage * 8; }
    __device__ void advance() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        phase ^= stage == 0;
    }
};

__device__ void produce(
    Ring ring,
    const TensorMap& map_a,
    const TensorMap& map_b,
    u32 rank,
    int row,
    int column,
    int blocks
) {
    const u64 policy = tma::keep_in_l2();
    for (int block = 0; block < blocks; ++block) {
        mbarrier::wait(ring.empty_at(), ring.phase ^ 1);
        mbarrier::arrive_and_expect(ring.full_at(), A_BYTES + B_BYTES);
        tma::load(ring.a_at(), map_a, ring.full_at(), block * TILE_K, row);
        tma::load_multicast(
            ring.b_at() + rank * B_SHARE, map_b, ring.full_at(), block * TILE_K,
            column + int(rank) * (TILE_N / CTAS), (1 << CTAS) - 1, policy
        );
        ring.advance();
    }
}

__device__ __forceinline__ void release(u32 empty) {
    // One thread of each warp, for each CTA.
    if (lane_id() < CTAS) mbarrier::arrive_remote(empty, lane_id());
}

__device__ void consume(
    Ring ring, float* out, int m, int n, int row, int column, int blocks, u32 thread
) {
    float c[32];
    const u32 group = thread / 128;
    u32 before = 0;
    for (int block = 0; block < blocks; ++block) {
        mbarrier::wait(ring.full_at(), ring.phase);
        const u64 a = wgmma::descriptor(ring.a_at() + group * (64 * TILE_K * 2));
        const u64 b = wgmma::descriptor(ring.b_at());
        wgmma::fence();
        if (block == 0) {
            wgmma::m64n64k16<0>(c, a, b);
        } else {
            wgmma::m64n64k16<1>(c, a, b);
        }
        for (int k = 1; k < TILE_K / 16; ++k) wgmma::m64n64k16<1>(c, a + 2 * k, b + 2 * k);
        wgmma::commit();
        wgmma::wait<1>();
        if (block > 0) release(before);
        before = ring.empty_at();
        ring.advance();
    }
    wgmma::wait<0>();
    release(before);

    const int first = row + int(group) * 64 + int(thread % 128 / 32) * 16 + int(lane_id() / 4);
    for (int i = 0; i < 16; ++i) {
        const int x = column + i / 2 * 8 + int(lane_id() % 4) * 2, y = first + i % 2 * 8;
        asm volatile(
            "{\n\t"
            ".reg .pred inside;\n\t"
            "setp.lt.s32 inside, %3, %4;\n\t"
            "setp.lt.and.s32 inside, %5, %6, inside;\n\t"
            "@inside st.global.v2.f32 [%0], {%1, %2};\n\t"
            "}" ::"l"(out + (long long)y * n + x),
            "f"(c[2 * i]), "f"(c[2 * i + 1]), "r"(y), "r"(m), "r"(x), "r"(n)
            : "memory"
        );
    }
}

// --- the kernel ----------------------------------------------------------------------------------

extern "C" __global__ void __cluster_dims__(CTAS, 1, 1)
    __launch_bounds__(CONSUMER_THREADS + 128) cluster_gemm(
        const __grid_constant__ TensorMap map_a,
        const __grid_constant__ TensorMap map_b,
        float* out,
        int m,
        int n,
        int k
    ) {
    extern __shared__ __align__(1024) u8 smem[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    Ring ring;
    ring.a = static_cast<u32>(__cvta_generic_to_shared(smem));
    ring.b = ring.a + STAGES * A_BYTES;
    ring.full = static_cast<u32>(__cvta_generic_to_shared(barriers));
    ring.empty = ring.full + STAGES * 8;
    const u32 thread = thread_x(), rank = cluster_rank();

    if (thread == 0) {
        tma::prefetch(map_a);
        tma::prefetch(map_b);
        for (u32 stage = 0; stage < STAGES; ++stage) {
            mbarrier::init(ring.full + stage * 8, 1);
            mbarrier::init(ring.empty + stage * 8, CTAS * CONSUMER_THREADS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster::arrive();
    cluster::wait();

    const int row = (cluster_id_x() * CTAS + rank) * TILE_M, column = block_y() * TILE_N;
    const int blocks = (k + TILE_K - 1) / TILE_K;
    if (thread < CONSUMER_THREADS) {
        consume(ring, out, m, n, row, column, blocks, thread);
    } else if (thread == CONSUMER_THREADS) {
        produce(ring, map_a, map_b, rank, row, column, blocks);
    }
    __syncwarp();
    cluster::arrive();
    cluster::wait();
}
