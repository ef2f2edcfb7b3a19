// Loads, stores, atomics, clusters and lanes, each in inline PTX. RELEASE and ACQUIRE are names
// that the test fills in.
using u32 = unsigned;
using u64 = unsigned long long;

// --- every way to move a word --------------------------------------------------------------------

extern "C" __global__ void moves(const u32* in, u32* out, u32* counts, float* sums) {
    __shared__ __align__(16) u32 words[256];
    const u32 t = threadIdx.x;
    const u32 mine = static_cast<u32>(__cvta_generic_to_shared(words + 4 * t));
    u32 a, b, c, d;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "l"(in + 4 * t));
    asm volatile("st.shared.v2.b32 [%0 + 8], {%1, %2};" ::"r"(mine), "r"(a), "r"(b) : "memory");
    asm volatile(
        "st.shared::cta.u8 [%0], %1;\n\tst.shared.b16 [%0 + 4], %2;\n\t"
        "st.shared.u8 [%0+1], %3;" ::"r"(mine),
        "r"(c), "h"((unsigned short)d), "r"(0)
        : "memory"
    );
    __syncthreads();
    u32 byte, half, generic;
    u64 pair;
    asm volatile("ld.shared.s8 %0, [%1];" : "=r"(byte) : "r"(mine));
    asm volatile(
        "{ .reg .u64 p; cvta.shared.u64 p, %2; ld.u16 %0, [p + 4]; ld.volatile.u32 %1, [p + 8]; }"
        : "=r"(half), "=r"(generic)
        : "l"(u64(mine))
    );
    asm volatile("ld.shared.b64 %0, [%1 + 8];" : "=l"(pair) : "r"(mine));
    out[4 * t] = byte;
    out[4 * t + 1] = half;
    asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(out + 4 * t + 2), "r"(generic) : "memory");
    asm volatile("st.global.L1::evict_first.v2.u32 [%0 + 1024], {%1, %2};" ::"l"(out + 4 * t),
                 "r"(u32(pair)), "r"(u32(pair >> 32))
                 : "memory");

    // Counters: add, max, and, inc, exch, cas; an f32 and a vector of them; f16x2.
    u32 old;
    asm volatile("atom.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(counts), "r"(a & 7)
                 : "memory");
    asm volatile("red.relaxed.gpu.global.max.s32 [%0 + 4], %1;" ::"l"(counts), "r"(a) : "memory");
    asm volatile("red.global.and.b32 [%0 + 8], %1;" ::"l"(counts), "r"(~(1u << t % 32)) : "memory");
    asm volatile("atom.global.inc.u32 %0, [%1 + 12], 40;" : "=r"(old) : "l"(counts) : "memory");
    asm volatile(
        "{ .reg .u32 seen, old; ld.relaxed.gpu.u32 old, [%0 + 16];\n"
        ".reg .pred again;\n"
        "AGAIN: mov.u32 seen, old; .reg .u32 next; mad.lo.u32 next, seen, 1, %1;\n"
        "atom.acq_rel.gpu.global.cas.b32 old, [%0 + 16], seen, next;\n"
        "setp.ne.u32 again, old, seen; @again bra AGAIN; }" ::"l"(counts),
        "r"(b & 255)
        : "memory"
    );
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(sums), "f"(1.5f) : "memory");
    asm volatile("red.global.add.v2.f32 [%0 + 8], {%1, %2};" ::"l"(sums), "f"(1.0f), "f"(2.0f)
                 : "memory");
    asm volatile("red.global.add.noftz.f16x2 [%0 + 16], %1;" ::"l"(sums), "r"(0x3c004000)
                 : "memory");
}

// --- a flag from block to block ------------------------------------------------------------------

extern "C" __global__ void handed_on(u32* data, u32* flag, u32* out) {
    if (blockIdx.x == 0) {
        data[threadIdx.x] = threadIdx.x * 3 + 1;
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("fence.acq_rel.gpu;\n\tst.RELEASE.gpu.global.u32 [%0], 1;" ::"l"(flag)
                         : "memory");
        }
        return;
    }
    if (threadIdx.x == 0) {
        asm volatile(
            "{ .reg .u32 v; .reg .pred p;\n"
            "SPIN: ld.ACQUIRE.gpu.global.u32 v, [%0]; setp.eq.u32 p, v, 0; @p bra SPIN; }" ::"l"(
                flag
            )
            : "memory"
        );
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x];
}

// --- into the other CTA of the cluster -----------------------------------------------------------

extern "C" __global__ void __cluster_dims__(2, 1, 1) remote(u32* out) {
    __shared__ __align__(16) u32 box[4];
    __shared__ u64 barrier;
    const u32 mine = static_cast<u32>(__cvta_generic_to_shared(box));
    const u32 own = static_cast<u32>(__cvta_generic_to_shared(&barrier));
    u32 rank, ranks, id, grid_id;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(id));
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(grid_id));
    if (threadIdx.x == 0) {
        asm volatile(
            "mbarrier.init.shared.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(own)
        );
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16;" ::"r"(own));
    }
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) {
        asm volatile(
            "{ .reg .u32 to, at;\n"
            "mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 at, %1, %2;\n"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3, %4, %5, 77}, "
            "[at]; }" ::"r"(mine),
            "r"(own), "r"(1 - rank), "r"(rank + 10), "r"(ranks), "r"(grid_id)
            : "memory"
        );
    }
    asm volatile(
        "{ .reg .pred P; WAIT_%=: mbarrier.try_wait.parity.shared.b64 P, [%0], 0;\n"
        "@!P bra WAIT_%=; }" ::"r"(own)
        : "memory"
    );
    if (threadIdx.x < 4) out[blockIdx.x * 4 + threadIdx.x] = box[threadIdx.x] + 100 * id;
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// --- lanes ---------------------------------------------------------------------------------------

extern "C" __global__ void lanes(const u32* in, u32* out) {
    const u32 t = threadIdx.x, x = in[t];
    u32 row = 0, value, lane;
#define SAVE(expression) out[(row++) * 64 + t] = (expression)
    asm("{ .reg .pred p; shfl.sync.bfly.b32 %0|p, %1, 3, 0x1f, -1; }" : "=r"(value) : "r"(x));
    SAVE(value);
    asm("{ .reg .pred p; shfl.sync.up.b32 %0|p, %1, 5, 0, 0xffffffff; @!p mov.u32 %0, 9; }"
        : "=r"(value)
        : "r"(x));
    SAVE(value);
    asm("shfl.sync.idx.b32 %0, %1, 2, 0x181f, -1;" : "=r"(value) : "r"(x));  // of 8 lanes each
    SAVE(value);
    asm("{ .reg .pred p; setp.gt.u32 p, %1, 500; vote.sync.ballot.b32 %0, p, -1; }"
        : "=r"(value)
        : "r"(x));
    SAVE(value);
    asm("{ .reg .pred p, q; setp.lt.u32 p, %1, 2000; vote.sync.all.pred q, p, -1; selp.u32 %0, 1, "
        "0, q; }"
        : "=r"(value)
        : "r"(x));
    SAVE(value);
    asm("match.any.sync.b32 %0, %1, -1;" : "=r"(value) : "r"(x & 1));
    SAVE(value);
    asm("redux.sync.add.u32 %0, %1, -1;" : "=r"(value) : "r"(x));
    SAVE(value);
    asm("redux.sync.min.s32 %0, %1, -1;" : "=r"(value) : "r"(x - 500));
    SAVE(value);
    asm("{ .reg .pred p; .reg .b32 one; elect.sync one|p, -1; selp.u32 %0, 1, 0, p; }"
        : "=r"(value));
    SAVE(value != 0);
    asm("mov.u32 %0, %%lanemask_lt; popc.b32 %0, %0;" : "=r"(value));
    SAVE(value);
    asm("{ .reg .pred p; setp.gt.u32 p, %1, 500; barrier.cta.red.popc.aligned.u32 %0, 0, p; }"
        : "=r"(value)
        : "r"(x));
    SAVE(value);
    asm("mov.u32 %0, %%tid.x; mov.u32 %1, %%laneid;" : "=r"(value), "=r"(lane));
    SAVE(value * 100 + lane);
    if (t >= 48) asm volatile("exit;");
    SAVE(1);
}

// Four threads arrive in the first phase, of which one drops out; three in the second. Then a
// thread of cp.async copies a chunk, or zeros where the predicate says so.
extern "C" __global__ void dropped(const unsigned* x, unsigned* out) {
    __shared__ unsigned long long barrier;
    __shared__ __align__(16) unsigned chunks[3][4];
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(chunks));
    const unsigned t = threadIdx.x;
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 4;" ::"r"(at) : "memory");
    __syncthreads();
    for (unsigned phase = 0; phase < 2; ++phase) {
        if (t == 3 && phase == 0) {
            asm volatile("mbarrier.arrive_drop.release.cta.shared::cta.b64 _, [%0];" ::"r"(at)
                         : "memory");
        } else if (t < 3) {
            asm volatile("mbarrier.arrive.shared::cta.release.cta.b64 _, [%0];" ::"r"(at)
                         : "memory");
        }
        asm volatile(
            "{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra W; }" ::
                "r"(at),
            "r"(phase)
            : "memory"
        );
    }
    if (t == 0) {
        asm volatile(
            "{ .reg .pred p; setp.eq.u32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p;\n"
            "not.pred p, p; cp.async.ca.shared.global.L2::128B [%0 + 16], [%1 + 16], 16, p;\n"
            "cp.async.cg.shared.global.L2::128B [%0 + 32], [%1 + 32], 16, 4;\n"
            "cp.async.wait_all; }" ::"r"(to),
            "l"(x), "r"(t)
            : "memory"
        );
        for (int i = 0; i < 12; ++i) out[i] = chunks[i / 4][i % 4];
    }
}
