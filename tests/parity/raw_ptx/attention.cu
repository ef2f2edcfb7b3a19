// o = softmax(q @ k^T * scale) @ v of float16, and the log-sum-exp of each row, in CUDA C++ and
// inline PTX alone: a persistent kernel of one producer warp and two consumer warpgroups of 64
// queries each. While the tensor cores multiply the probabilities of one block of keys by V, the
// scores of the next block are computed (FlashAttention-3, section 3.2). No header of any library
// is included.
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct __align__(64) tensor_map_t {
    u64 opaque[16];
};

#define HEAD_DIM 64
#define QUERIES 128  // of a CTA
#define KEYS 128     // of a block
#define STAGES 2
#define CONSUMER_WARPS 8
#define ROW_BYTES (HEAD_DIM * 2)
#define Q_BYTES (QUERIES * ROW_BYTES)
#define KV_BYTES (KEYS * ROW_BYTES)
#define LOG2_E 1.4426950408889634f
#define MINUS_INFINITY __uint_as_float(0xff800000u)

struct SharedStorage {
    __align__(1024) u8 q[Q_BYTES];
    __align__(1024) u8 k[STAGES][KV_BYTES];
    __align__(1024) u8 v[STAGES][KV_BYTES];
    __align__(1024) u8 o[2][Q_BYTES / 2];  // of a consumer warpgroup
    __align__(8) u64 q_full;
    u64 q_empty;
    u64 k_full[STAGES], k_empty[STAGES];
    u64 v_full[STAGES], v_empty[STAGES];
};
extern "C" __device__ const int attention_shared_bytes = sizeof(SharedStorage);

struct PipelineState {
    int index = 0;
    u32 phase = 0;

    __device__ __forceinline__ void operator++() {
        if (++index == STAGES) {
            index = 0;
            phase ^= 1;
        }
    }
};

// --- mbarriers -----------------------------------------------------------------------------------

__device__ __forceinline__ u32 cast_smem_ptr_to_uint(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbar_init(u64* bar, u32 count) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cast_smem_ptr_to_uint(bar)), "r"(count)
    );
}

__device__ __forceinline__ void mbar_arrive_expect_tx(u64* bar, u32 bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cast_smem_ptr_to_uint(bar)),
        "r"(bytes)
        : "memory"
    );
}

__device__ __forceinline__ void mbar_arrive(u64* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cast_smem_ptr_to_uint(bar))
                 : "memory");
}

__device__ __forceinline__ void mbar_wait(u64* bar, u32 phase) {
    asm volatile(
        "{\n"
        ".reg .pred P1;\n"
        "LAB_WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1, %2;\n"
        "@P1 bra DONE;\n"
        "bra LAB_WAIT;\n"
        "DONE:\n"
        "}\n" ::"r"(cast_smem_ptr_to_uint(bar)),
        "r"(phase), "r"(0x989680)
        : "memory"
    );
}

__device__ __forceinline__ void named_barrier_sync(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// --- TMA -----------------------------------------------------------------------------------------

__device__ __forceinline__ void tma_load_3d(
    void* smem, const tensor_map_t* map, u64* bar, int row, int head, u64 policy
) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(cast_smem_ptr_to_uint(smem)),
        "l"(map), "r"(cast_smem_ptr_to_uint(bar)), "n"(0), "r"(row), "r"(head), "l"(policy)
        : "memory"
    );
}

__device__ __forceinline__ void tma_store_3d(
    const tensor_map_t* map, const void* smem, int row, int head
) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n\t"
        "cp.async.bulk.commit_group;" ::"l"(map),
        "r"(cast_smem_ptr_to_uint(smem)), "n"(0), "r"(row), "r"(head)
        : "memory"
    );
}

// --- wgmma ---------------------------------------------------------------------------------------

// Rows of 128 bytes with the swizzle of 128 bytes; groups of eight rows are 1024 bytes apart.
__device__ __forceinline__ u64 smem_descriptor(const void* tile) {
    u64 desc = (cast_smem_ptr_to_uint(tile) & 0x3FFFF) >> 4;
    desc |= (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
    return desc;
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)

// S (+)= Q of 64 rows @ K^T of 128 keys, 16 columns of the head.
__device__ __forceinline__ void wgmma_m64n128k16_ss(float (&d)[64], u64 a, u64 b, int scale_d) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n"
        "}\n"
        : D16(0), D16(16), D16(32), D16(48)
        : "l"(a), "l"(b), "r"(scale_d)
    );
}

// O (+)= P of 16 keys, in registers, @ V, whose columns are contiguous.
__device__ __forceinline__ void wgmma_m64n64k16_rs(
    float (&d)[32], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int scale_d
) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n"
        "}\n"
        : D16(0), D16(16)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(scale_d)
    );
}

__device__ __forceinline__ void warpgroup_arrive() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit_batch() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void gemm_qk(float (&s)[64], const u8* q, const u8* k) {
    const u64 a = smem_descriptor(q), b = smem_descriptor(k);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; ++i) wgmma_m64n128k16_ss(s, a + 2 * i, b + 2 * i, i != 0);
    warpgroup_commit_batch();
}

__device__ __forceinline__ void gemm_pv(
    float (&o)[32], const u32 (&p)[32], const u8* v, int accumulate
) {
    const u64 b = smem_descriptor(v);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i) {
        wgmma_m64n64k16_rs(
            o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], b + i * (16 * ROW_BYTES >> 4),
            accumulate || i != 0
        );
    }
    warpgroup_commit_batch();
}

// --- online softmax ------------------------------------------------------------------------------

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float shfl_xor(float x, int lanes) {
    float y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(lanes));
    return y;
}

__device__ __forceinline__ u32 pack_half2(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// A thread has two rows, 8 apart. Returns what the sums of the blocks before are multiplied by.
struct Softmax {
    float row_max[2] = {MINUS_INFINITY, MINUS_INFINITY};
    float row_sum[2] = {0, 0};

    __device__ __forceinline__ void step(float (&s)[64], float (&rescale)[2], float scale_log2) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float highest = row_max[row];
#pragma unroll
            for (int i = 0; i < 64; i += 4) {
                highest = fmaxf(highest, fmaxf(s[i + 2 * row], s[i + 2 * row + 1]));
            }
            highest = fmaxf(highest, shfl_xor(highest, 1));
            highest = fmaxf(highest, shfl_xor(highest, 2));
            rescale[row] = exp2_approx((row_max[row] - highest) * scale_log2);
            row_max[row] = highest;

            float sum = 0;
#pragma unroll
            for (int i = 0; i < 64; i += 4) {
                float* const pair = &s[i + 2 * row];
                pair[0] = exp2_approx(pair[0] * scale_log2 - highest * scale_log2);
                pair[1] = exp2_approx(pair[1] * scale_log2 - highest * scale_log2);
                sum += pair[0] + pair[1];
            }
            row_sum[row] = row_sum[row] * rescale[row] + sum;
        }
    }

    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            row_sum[row] += shfl_xor(row_sum[row], 1);
            row_sum[row] += shfl_xor(row_sum[row], 2);
        }
    }
};

__device__ __forceinline__ void apply_mask(
    float (&s)[64], int first_query, int first_key, int keys, int causal
) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int key = first_key + i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int query = first_query + lane / 4 + i / 2 % 2 * 8;
        if (key >= keys || (causal && key > query)) s[i] = MINUS_INFINITY;
    }
}

__device__ __forceinline__ void pack_probabilities(u32 (&p)[32], const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = pack_half2(s[2 * i], s[2 * i + 1]);
}

// --- tiles ---------------------------------------------------------------------------------------

struct Problem {
    int queries, keys, heads, causal;

    __device__ __forceinline__ int query_tiles() const { return (queries + QUERIES - 1) / QUERIES; }
    __device__ __forceinline__ int tiles() const { return query_tiles() * heads; }
    __device__ __forceinline__ int blocks_of(int query) const {
        const int end = causal && query + QUERIES < keys ? query + QUERIES : keys;
        return (end + KEYS - 1) / KEYS;
    }
};

__device__ __forceinline__ void produce(
    SharedStorage& shared,
    const Problem& problem,
    const tensor_map_t* map_q,
    const tensor_map_t* map_k,
    const tensor_map_t* map_v
) {
    u64 once, often;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(often));
    PipelineState state;
    u32 q_phase = 0;
    for (int tile = blockIdx.x; tile < problem.tiles(); tile += gridDim.x) {
        const int query = tile % problem.query_tiles() * QUERIES,
                  head = tile / problem.query_tiles();
        mbar_wait(&shared.q_empty, q_phase ^ 1);
        mbar_arrive_expect_tx(&shared.q_full, Q_BYTES);
        tma_load_3d(shared.q, map_q, &shared.q_full, query, head, once);
        q_phase ^= 1;
        for (int block = 0; block < problem.blocks_of(query); ++block, ++state) {
            const int i = state.index, key = block * KEYS;
            mbar_wait(&shared.k_empty[i], state.phase ^ 1);
            mbar_arrive_expect_tx(&shared.k_full[i], KV_BYTES);
            tma_load_3d(shared.k[i], map_k, &shared.k_full[i], key, head, often);
            mbar_wait(&shared.v_empty[i], state.phase ^ 1);
            mbar_arrive_expect_tx(&shared.v_full[i], KV_BYTES);
            tma_load_3d(shared.v[i], map_v, &shared.v_full[i], key, head, often);
        }
    }
}

__device__ __forceinline__ void store_tile(
    SharedStorage& shared,
    const Problem& problem,
    const Softmax& softmax,
    const tensor_map_t* map_o,
    float* lse,
    float (&o)[32],
    int query,
    int head,
    float scale_log2
) {
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const bool is_storing = threadIdx.x % 128 == 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] = __fdividef(o[i], softmax.row_sum[i / 2 % 2]);

    if (is_storing) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    named_barrier_sync(1 + group, 128);
    const int row = warp * 16 + lane % 16;
    const u32 line = cast_smem_ptr_to_uint(shared.o[group]) + row * ROW_BYTES;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; ++i) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         line + ((i * 2 + lane / 16) ^ row % 8) * 16
                     ),
                     "r"(pack_half2(o[8 * i], o[8 * i + 1])),
                     "r"(pack_half2(o[8 * i + 2], o[8 * i + 3])),
                     "r"(pack_half2(o[8 * i + 4], o[8 * i + 5])),
                     "r"(pack_half2(o[8 * i + 6], o[8 * i + 7]))
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    named_barrier_sync(1 + group, 128);
    if (is_storing) tma_store_3d(map_o, shared.o[group], query, head);

#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int at = query + warp * 16 + lane / 4 + 8 * i;
        const float sum = softmax.row_max[i] * scale_log2 + __log2f(softmax.row_sum[i]);
        if (lane % 4 == 0 && at < problem.queries) {
            asm volatile("st.global.f32 [%0], %1;" ::"l"(lse + (u64)head * problem.queries + at),
                         "f"(sum / LOG2_E)
                         : "memory");
        }
    }
}

__device__ __forceinline__ void consume(
    SharedStorage& shared,
    const Problem& problem,
    const tensor_map_t* map_o,
    float* lse,
    float scale
) {
    const int group = threadIdx.x / 128 - 1;
    const bool is_releasing = threadIdx.x % 32 == 0;
    const float scale_log2 = scale * LOG2_E;
    const u8* const q = shared.q + group * (Q_BYTES / 2);
    PipelineState k_at, v_at;
    u32 q_phase = 0;
    for (int tile = blockIdx.x; tile < problem.tiles(); tile += gridDim.x) {
        const int cta_query = tile % problem.query_tiles() * QUERIES;
        const int head = tile / problem.query_tiles(), query = cta_query + group * 64;
        const int blocks = problem.blocks_of(cta_query);
        const int first_query = query + threadIdx.x / 32 % 4 * 16;
        float s[64], o[32], rescale[2];
        u32 p[32];
        Softmax softmax;

        mbar_wait(&shared.q_full, q_phase);
        q_phase ^= 1;
        mbar_wait(&shared.k_full[k_at.index], k_at.phase);
        gemm_qk(s, q, shared.k[k_at.index]);
        warpgroup_wait<0>();
        if (is_releasing) mbar_arrive(&shared.k_empty[k_at.index]);
        ++k_at;
        if (blocks == 1) apply_mask(s, first_query, 0, problem.keys, problem.causal);
        softmax.step(s, rescale, scale_log2);
        pack_probabilities(p, s);

        for (int block = 1; block < blocks; ++block) {
            mbar_wait(&shared.k_full[k_at.index], k_at.phase);
            gemm_qk(s, q, shared.k[k_at.index]);
            mbar_wait(&shared.v_full[v_at.index], v_at.phase);
            gemm_pv(o, p, shared.v[v_at.index], block > 1);
            warpgroup_wait<1>();
            if (is_releasing) mbar_arrive(&shared.k_empty[k_at.index]);
            ++k_at;
            if (block == blocks - 1) {
                apply_mask(s, first_query, block * KEYS, problem.keys, problem.causal);
            }
            softmax.step(s, rescale, scale_log2);
            warpgroup_wait<0>();
            if (is_releasing) mbar_arrive(&shared.v_empty[v_at.index]);
            ++v_at;
#pragma unroll
            for (int i = 0; i < 32; ++i) o[i] *= rescale[i / 2 % 2];
            pack_probabilities(p, s);
        }
        if (is_releasing) mbar_arrive(&shared.q_empty);

        mbar_wait(&shared.v_full[v_at.index], v_at.phase);
        gemm_pv(o, p, shared.v[v_at.index], blocks > 1);
        softmax.finish();
        warpgroup_wait<0>();
        if (is_releasing) mbar_arrive(&shared.v_empty[v_at.index]);
        ++v_at;
        store_tile(shared, problem, softmax, map_o, lse, o, query, head, scale_log2);
    }
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1) attention(
    const __grid_constant__ tensor_map_t map_q,
    const __grid_constant__ tensor_map_t map_k,
    const __grid_constant__ tensor_map_t map_v,
    const __grid_constant__ tensor_map_t map_o,
    float* lse,
    int queries,
    int keys,
    int heads,
    int causal,
    float scale
) {
    extern __shared__ __align__(1024) u8 storage[];
    SharedStorage& shared = *reinterpret_cast<SharedStorage*>(storage);
    const Problem problem{queries, keys, heads, causal};
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_q) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_k) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_v) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_o) : "memory");
        mbar_init(&shared.q_full, 1);
        mbar_init(&shared.q_empty, CONSUMER_WARPS);
        for (int i = 0; i < STAGES; ++i) {
            mbar_init(&shared.k_full[i], 1);
            mbar_init(&shared.k_empty[i], CONSUMER_WARPS);
            mbar_init(&shared.v_full[i], 1);
            mbar_init(&shared.v_empty[i], CONSUMER_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(24));
        if (threadIdx.x == 0) produce(shared, problem, &map_q, &map_k, &map_v);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(240));
        consume(shared, problem, &map_o, lse, scale);
    }
}
