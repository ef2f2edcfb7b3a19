// out = a @ b.T of CuTe's and CUTLASS's parts, and none of ours: a producer warp that loads by TMA,
// half of b by multicast to both CTAs of a cluster, PipelineTmaAsync, two warpgroups whose wgmma
// takes a from registers, and a TMA store. Needs K at a multiple of 8; M and N are any.
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/cutlass.h>
#include <cutlass/numeric_conversion.h>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/tensor.hpp>
#include <cutlass/pipeline/sm90_pipeline.hpp>
using namespace cute;

struct alignas(64) TensorMap {
    char bytes[128];
};
using T = cutlass::half_t;
constexpr int kStages = 4;
using BM = Int<128>;
using BN = Int<128>;
using BK = Int<64>;
using SA =
    decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, make_shape(BM{}, BK{}, Int<kStages>{})));
using SB =
    decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, make_shape(BN{}, BK{}, Int<kStages>{})));
using SD = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, make_shape(BM{}, BN{})));
using MainloopPipeline = cutlass::PipelineTmaAsync<kStages>;
struct Shared {
    alignas(1024) ArrayEngine<T, cosize_v<SA>> a;
    alignas(1024) ArrayEngine<T, cosize_v<SB>> b;
    alignas(1024) ArrayEngine<T, cosize_v<SD>> d;
    typename MainloopPipeline::SharedStorage pipeline;
};
extern "C" __device__ const int cutlass_gemm_shared_bytes = sizeof(Shared);

extern "C" __global__ void __launch_bounds__(384) __cluster_dims__(1, 2, 1) cutlass_gemm(
    const __grid_constant__ TensorMap map_a,
    const __grid_constant__ TensorMap map_b,
    const __grid_constant__ TensorMap map_d,
    int K
) {
    extern __shared__ __align__(1024) char raw[];
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    Tensor sA = make_tensor(make_smem_ptr(shared.a.begin()), SA{});
    Tensor sB = make_tensor(make_smem_ptr(shared.b.begin()), SB{});
    Tensor sD = make_tensor(make_smem_ptr(shared.d.begin()), SD{});
    int group = cutlass::canonical_warp_group_idx();
    int warp_in_group = cutlass::canonical_warp_idx_sync() % 4;

    typename MainloopPipeline::Params params;
    params.role = group == 0 ? MainloopPipeline::ThreadCategory::Producer
                             : MainloopPipeline::ThreadCategory::Consumer;
    params.is_leader = threadIdx.x == 0;
    params.num_consumers = 256;
    params.transaction_bytes = (128 + 128) * 64 * sizeof(T);
    MainloopPipeline pipeline(shared.pipeline, params, Shape<_1, _2, _1>{});
    cluster_arrive_relaxed();
    cluster_wait();

    int tiles = ceil_div(K, BK{});
    uint32_t rank = block_rank_in_cluster();
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<40>();
        if (warp_in_group == 0 && elect_one_sync()) {
            auto state = cutlass::make_producer_start_state<MainloopPipeline>();
            for (int k = 0; k < tiles; ++k, ++state) {
                pipeline.producer_acquire(state);
                uint64_t* barrier = pipeline.producer_get_barrier(state);
                SM90_TMA_LOAD_2D::copy(
                    &map_a, barrier, uint64_t(TMA::CacheHintSm90::EVICT_FIRST),
                    &sA(0, 0, state.index()), k * 64, blockIdx.y * 128
                );
                // Half of B each, to both CTAs.
                SM90_TMA_LOAD_MULTICAST_2D::copy(
                    &map_b, barrier, uint16_t(3), uint64_t(TMA::CacheHintSm90::EVICT_LAST),
                    &sB(rank * 64, 0, state.index()), k * 64, blockIdx.x * 128 + rank * 64
                );
            }
            pipeline.producer_tail(state);
        }
    } else {
        cutlass::arch::warpgroup_reg_alloc<232>();
        auto mma = make_tiled_mma(
            SM90_64x128x16_F32F16F16_RS<GMMA::Major::K, GMMA::Major::K>{},
            Layout<Shape<_2, _1, _1>>{}
        );
        int thread = threadIdx.x - 128;
        auto thr = mma.get_thread_slice(thread);
        Tensor tsA = thr.partition_A(sA);
        Tensor rB = thr.make_fragment_B(thr.partition_B(sB));
        Tensor acc = partition_fragment_C(mma, make_shape(BM{}, BN{}));
        Tensor rA = thr.make_fragment_A(tsA(_, _, _, 0));
        auto copy_a = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, T>{}, mma);
        auto thr_a = copy_a.get_thread_slice(thread);
        Tensor from = thr_a.partition_S(sA);
        Tensor to = thr_a.retile_D(rA);
        clear(acc);
        typename MainloopPipeline::PipelineState read;
        for (int k = 0; k < tiles; ++k, ++read) {
            pipeline.consumer_wait(read);
            copy(copy_a, from(_, _, _, read.index()), to);
            warpgroup_fence_operand(acc);
            warpgroup_arrive();
            cute::gemm(mma, rA, rB(_, _, _, read.index()), acc);
            warpgroup_commit_batch();
            warpgroup_wait<0>();
            warpgroup_fence_operand(acc);
            pipeline.consumer_release(read);
        }
        cutlass::NumericArrayConverter<T, float, decltype(size(acc))::value> convert;
        auto frag = convert(
            *reinterpret_cast<cutlass::Array<float, decltype(size(acc))::value>*>(acc.data())
        );
        Tensor rD = make_tensor(make_rmem_ptr<T>(&frag), acc.layout());
        auto copy_d = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, T>{}, mma);
        auto thr_d = copy_d.get_thread_slice(thread);
        copy(copy_d, thr_d.retile_S(rD), thr_d.partition_D(sD));
        tma_store_fence();
        cutlass::arch::NamedBarrier::sync(256, 0);
        if (thread == 0) {
            for (int half = 0; half < 2; ++half) {
                SM90_TMA_STORE_2D::copy(
                    &map_d, &sD(0, half * 64), blockIdx.x * 128 + half * 64, blockIdx.y * 128
                );
            }
            tma_store_arrive();
            tma_store_wait<0>();
        }
    }
}
