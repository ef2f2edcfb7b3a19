// CUTLASS's tutorial TUTORIAL for Blackwell: its device part, which the test puts in place of the
// marked line, called with TMA atoms around our tensor maps, where its host part makes them.
// CuTe's other headers do not compile before its tensors.
#include <cute/tensor.hpp>

#include <cutlass/arch/barrier.h>
#include <cutlass/half.h>
#include <cute/algorithm/cooperative_copy.hpp>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/tmem_allocator_sm100.hpp>
#include <cute/numeric/integral_constant.hpp>
using namespace cute;

// A kernel is called like a function below.
#pragma push_macro("__global__")
#undef __global__
#define __global__ __device__
// the device part
#pragma pop_macro("__global__")

using T = half_t;
constexpr bool kIsPair = TUTORIAL >= 4;
constexpr auto K = UMMA::Major::K;
using Instruction = conditional_t<
    kIsPair,
    SM100_MMA_F16BF16_2x1SM_SS<T, T, float, 256, 256, K, K>,
    SM100_MMA_F16BF16_SS<T, T, float, 128, 256, K, K>>;
using Mma = decltype(make_tiled_mma(Instruction{}));
using Tiler = Shape<Int<kIsPair ? 256 : 128>, _256, _64>;
using Cluster = conditional_t<(TUTORIAL >= 3), Shape<_4, _4, _1>, Shape<_1, _1, _1>>;
using ShapeA = decltype(partition_shape_A(Mma{}, select<0, 2>(Tiler{})));
using ShapeB = decltype(partition_shape_B(Mma{}, select<1, 2>(Tiler{})));
using SA = decltype(UMMA::tile_to_mma_shape(UMMA::Layout_K_SW128_Atom<T>{}, ShapeA{}));
using SB = decltype(UMMA::tile_to_mma_shape(UMMA::Layout_K_SW128_Atom<T>{}, ShapeB{}));

// Holds a tensor map and nothing else: all its strides are known at compile time.
template <class Op, class Value, int kValues>
using Atom = Copy_Atom<
    Copy_Traits<
        Op,
        Int<kValues * sizeof_bits_v<Value>>,
        AuxTmaParams<Stride<E<1>, E<0>>, Layout<_1>, Swizzle<3, 4, 3>>>,
    Value>;
struct alignas(64) TensorMap {
    char bytes[128];
};

template <class Made>
__device__ const Made& atom_of(const TensorMap& map) {
    return reinterpret_cast<const Made&>(map);
}

template <class Value>
__device__ auto matrix(Value* start, int rows, int columns) {
    return make_tensor(
        make_gmem_ptr(start), make_layout(make_shape(rows, columns), make_stride(columns, _1{}))
    );
}

#if TUTORIAL == 1
using Storage = SharedStorage<T, T, SA, SB>;
extern "C" __global__ void __launch_bounds__(128) tutorial(
    const T* a, const T* b, const float* c, float* d, int m, int n, int k, float alpha, float beta
) {
    gemm_device<Storage>(
        matrix(a, m, k), matrix(b, n, k), matrix(c, m, n), matrix(d, m, n), Tiler{}, Mma{},
        Cluster{}, alpha, beta
    );
}
#else
using Load = conditional_t<
    kIsPair,
    SM100_TMA_2SM_LOAD_MULTICAST,
    conditional_t<TUTORIAL == 3, SM90_TMA_LOAD_MULTICAST, SM90_TMA_LOAD>>;
using AtomA = Atom<Load, T, 128 * 64>;
using AtomB = Atom<Load, T, (kIsPair ? 128 : 256) * 64>;

#if TUTORIAL < 5
using Storage = SharedStorage<T, T, SA, SB>;
extern "C" __global__ void __launch_bounds__(128) tutorial(
    const __grid_constant__ TensorMap map_a,
    const __grid_constant__ TensorMap map_b,
    const float* c,
    float* d,
    int m,
    int n,
    int k,
    float alpha,
    float beta
) {
    const AtomA& atom_a = atom_of<AtomA>(map_a);
    const AtomB& atom_b = atom_of<AtomB>(map_b);
    const auto all_a = atom_a.get_tma_tensor(make_shape(m, k));
    const auto all_b = atom_b.get_tma_tensor(make_shape(n, k));
    const auto all_c = matrix(c, m, n);
    const auto all_d = matrix(d, m, n);
    gemm_device<
        Storage, decltype(all_a), decltype(all_b), decltype(all_c), decltype(all_d), Tiler, Mma,
        Cluster, const AtomA&, const AtomB&>(
        all_a, all_b, all_c, all_d, Tiler{}, Mma{}, Cluster{}, atom_a, atom_b, alpha, beta
    );
}
#else
using EpilogueTile = decltype(make_tile(_128{}, _64{}));
using SD = decltype(group<0, 2>(
    tile_to_shape(UMMA::Layout_K_SW128_Atom<float>{}, make_shape(_128{}, _64{}))
));
using Storage = SharedStorage<T, T, float, float, SA, SB, SD, SD>;
using AtomC = Atom<SM90_TMA_LOAD, float, 128 * 32>;
using AtomD = Atom<SM90_TMA_STORE, float, 128 * 32>;
extern "C" __global__ void __launch_bounds__(128) tutorial(
    const __grid_constant__ TensorMap map_a,
    const __grid_constant__ TensorMap map_b,
    const __grid_constant__ TensorMap map_c,
    const __grid_constant__ TensorMap map_d,
    int m,
    int n,
    int k,
    float alpha,
    float beta
) {
    const AtomA& atom_a = atom_of<AtomA>(map_a);
    const AtomB& atom_b = atom_of<AtomB>(map_b);
    const AtomC& atom_c = atom_of<AtomC>(map_c);
    const AtomD& atom_d = atom_of<AtomD>(map_d);
    const auto all_a = atom_a.get_tma_tensor(make_shape(m, k));
    const auto all_b = atom_b.get_tma_tensor(make_shape(n, k));
    const auto all_c = atom_c.get_tma_tensor(make_shape(m, n));
    const auto all_d = atom_d.get_tma_tensor(make_shape(m, n));
    gemm_device<
        Storage, decltype(all_a), decltype(all_b), decltype(all_c), decltype(all_d), Tiler,
        EpilogueTile, Mma, Cluster, const AtomA&, const AtomB&, const AtomC&, const AtomD&>(
        all_a, all_b, all_c, all_d, Tiler{}, EpilogueTile{}, Mma{}, Cluster{}, atom_a, atom_b,
        atom_c, atom_d, alpha, beta
    );
}
#endif
#endif
extern "C" __device__ const int tutorial_shared_bytes = sizeof(Storage);
