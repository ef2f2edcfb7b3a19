"""CUDA C++'s keywords and macros, and parts of the language that the CPU rejects."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tmaasync import CompileError, EmulatedFault, EmulatedRace, Kernel, emulate

WORDS = """
#include <cuda_runtime.h>
#include <math_constants.h>
#if !defined(__CUDACC__) || !defined(__CUDACC_RTC__) || __CUDA_ARCH__ != 900
#error not as NVRTC
#endif
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL) || __CUDA_ARCH_SPECIFIC__ != 900
#error not as NVRTC for sm_90a
#endif
constexpr int kSides = 4;
struct alignas(float4) alignas(32) Aligned { float x; };
struct alignas(2 * kSides) Small { char c; };
__constant__ float table[4] = {1, 2, 3, 4};
__device__ __managed__ int counter;
extern "C" __global__ void __block_size__((64, 1, 1)) words(float* x, long long* moments) {
    __shared__ alignas(128) float tile[2][33];
    __shared__ __align__(16) Small small[2];
    extern __shared__ alignas(1024) unsigned char dynamic[];
    alignas(64) float local[kSides] = {1, 2, 3, 4};
    const long long began = clock64();
    if (threadIdx.x != 0) return;
#pragma unroll 4
    for (int i = 0; i < 4; ++i) local[i] += table[i];
#pragma nounroll
    for (int i = 0; i < 4; ++i) tile[1][i] = local[i];
    dynamic[0] = small[1].c = 5;
    int* const counted = static_cast<int*>(__builtin_assume_aligned(&counter, 4));
    *counted = 4;
    if (__builtin_expect(x[0] > 1, 0)) __trap();
    __builtin_assume(x[0] == 0);
    __prof_trigger(1);
    assert(tile[1][3] == 8);
    x[0] = size_t(tile) % 128 + size_t(dynamic) % 1024 + size_t(small) % 16 + size_t(local) % 64;
    x[1] = alignof(Aligned) + alignof(Small) + dynamic[0] + *counted;
    x[2] = CUDART_PI_F;
    x[3] = __isShared(tile) + 2 * __isGlobal(x) + 4 * __isLocal(local) + 8 * __isShared(x) +
           16 * __isLocal(tile) + 32 * __isGlobal(local) + 64 * __isGlobal(table) +
           128 * __isClusterShared(tile);
    x[4] = *static_cast<float*>(__cvta_global_to_generic(__cvta_generic_to_global(x + 2))) -
           *static_cast<float*>(__cvta_local_to_generic(__cvta_generic_to_local(local + 3)));
    x[5] = *static_cast<float*>(__cvta_shared_to_generic(__cvta_generic_to_shared(&tile[1][3])));
    __stcg(x + 6, 1.5f), __stcs(x + 7, 2.5f), __stwb(x + 8, 3.5f), __stwt(x + 9, 4.5f);
    x[10] = __ldca(x + 6) + __ldcg(x + 7) + __ldcs(x + 8) + __ldlu(x + 9) + __ldcv(x + 6);
    moments[0] = clock64() >= began && clock() >= 0;
    printf("%d %5.2f %s %c %llu %x %%\\n", 1, 2.5, "three", '4', 5ull, 255u);
}
"""


def test_keywords_and_macros(capfd: pytest.CaptureFixture[str]) -> None:
    x, moments = np.zeros(16, np.float32), np.zeros(1, np.int64)
    Kernel(WORDS, "words")(1, 64, (x, moments), shared_mem=2048)

    pi = np.float32(np.pi)
    expected = [0, 32 + 8 + 5 + 4, pi, 1 + 2 + 4 + 64 + 128, pi - 8, 8, 1.5, 2.5, 3.5, 4.5, 13.5]
    assert x[:11].tolist() == [float(value) for value in np.array(expected, np.float32)]
    assert moments[0] == 1
    with pytest.raises(Exception, match="64"):
        Kernel(WORDS, "words")(1, 96, (x, moments), shared_mem=2048)


SHARED = """
#include <cuda_bf16.h>
#include <cuda_fp8.h>
namespace library::detail {
extern __shared__ __half2 dynamic[];
template <typename T>
__device__ T* dynamic_as() {
    extern __shared__ __align__(1024) unsigned char raw[];
    return reinterpret_cast<T*>(raw);
}
}  // namespace library::detail
namespace {
#define DYNAMIC(T, name) extern __shared__ T name[]
template <int kSize>
__device__ void fill(float* x) {
    DYNAMIC(float, words);
    __shared__ unsigned long long barrier;
    __shared__ alignas(128) __nv_bfloat16 tile[kSize][64];
    static __shared__ __nv_fp8_e4m3 bytes[kSize];
    volatile __shared__ __half2 pair[2];
    const int i = threadIdx.x;
    words[i] = i, tile[i][1] = 2 * i, bytes[i] = __nv_fp8_e4m3(float(i));
    if (i == 0) barrier = 7, reinterpret_cast<volatile float*>(pair)[0] = 8;
    __syncwarp();
    x[i] = library::detail::dynamic_as<float>()[i] + __bfloat162float(tile[i][1]) + float(bytes[i]);
    if (i > 0) return;
    x[8] = __cvta_generic_to_shared(tile) % 1024 + barrier;
    x[9] = static_cast<void*>(library::detail::dynamic) == words;
}
}  // namespace
extern "C" __global__ void shared(float* x) { fill<8>(x); }
"""


def test_shared_memory_of_classes_in_namespaces_and_templates() -> None:
    x = np.zeros(10, np.float32)
    Kernel(SHARED, "shared")(1, 8, (x,), shared_mem=1024)
    assert x.tolist() == [*(4.0 * i for i in range(8)), 7, 1]


OWN_INTEGERS = """
typedef unsigned long long uint64_t;
typedef unsigned int uint32_t;
using int64_t = long long;
template <typename T> struct Width { static constexpr int kBits = 8 * sizeof(T); };
__device__ int chosen(unsigned long long*) { return 1; }
extern "C" __global__ void own(uint64_t* x, const uint32_t* y, int64_t z) {
    atomicAdd(x, uint64_t{y[0]} << 32);
    x[1] = Width<uint64_t>::kBits + chosen(x) + z;
}
"""


def test_a_kernel_defines_its_own_integers_as_for_nvrtc() -> None:
    x = np.array([7, 0], np.uint64)
    Kernel(OWN_INTEGERS, "own")(1, 1, (x, np.array([3], np.uint32), -5))
    assert x.tolist() == [7 + (3 << 32), 60]


ENDS = """
extern "C" __global__ void ends(int* x, int which) {
    if (which == 0) __brkpt();
    __builtin_assume(x[0] == 1);
    x[0] = 2;
}
"""


@pytest.mark.parametrize(
    ("which", "reason"),
    [(0, r"called __brkpt\(\)"), (1, r"__builtin_assume\(x\[0\] == 1\) does not hold")],
)
def test_what_ends_a_kernel(which: int, reason: str) -> None:
    with pytest.raises(EmulatedFault, match=f"{reason}"):
        Kernel(ENDS, "ends")(1, 1, (np.zeros(1, np.int32), which))


SCOPES = """
extern "C" __global__ void scopes(int* x, int which) {
    if (which == 0) atomicAdd_block(x, 1);
    if (which == 1) blockIdx.x ? atomicAdd(x, 1) : atomicAdd_block(x, 1);
    if (which == 2) atomicAdd_block(x + blockIdx.x, 1);
    if (which == 3) atomicAdd_system(x, 1);
    if (which == 4) x[threadIdx.x] = 1, __syncthreads(), x[64] = __ldg(x + threadIdx.x / 32);
    if (which == 5) x[threadIdx.x + 64 * blockIdx.x] = __ldg(x + 128);
    if (which == 6) asm volatile("red.relaxed.cta.global.add.s32 [%0], 1;" ::"l"(x) : "memory");
    if (which == 7) asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(x) : "memory");
    if (which == 8) {
        x[threadIdx.x] = 1, __syncthreads();
        asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(which) : "l"(x + threadIdx.x / 32));
    }
}
"""


@pytest.mark.parametrize(
    ("which", "cluster"), [(0, None), (1, (2, 1, 1)), (6, None), (6, (2, 1, 1))]
)
def test_atomics_of_one_block_race_with_another(which: int, cluster: Any) -> None:
    with (
        emulate.scheduled(races=True),
        pytest.raises(EmulatedRace, match=r"x\[0\](.|\n)*without _block, or name a wider scope"),
    ):
        Kernel(SCOPES, "scopes")(2, 64, (np.zeros(256, np.int32), which), cluster=cluster)


@pytest.mark.parametrize("which", [2, 3, 5, 7])
def test_atomics_and_loads_that_keep_their_rules(which: int) -> None:
    x = np.zeros(256, np.int32)
    with emulate.scheduled(races=True):
        Kernel(SCOPES, "scopes")(2, 64, (x, which))
    assert x[:3].tolist() == {2: [64, 64, 0], 3: [128, 0, 0], 5: [0, 0, 0], 7: [128, 0, 0]}[which]


@pytest.mark.parametrize(("which", "code"), [(4, "__ldg(x + thread"), (8, "ld.global.nc")])
def test_a_read_only_load_of_what_the_launch_has_written(which: int, code: str) -> None:
    line = next(at for at, text in enumerate(SCOPES.splitlines(), 1) if code in text)
    with pytest.raises(EmulatedFault, match=rf"kernel\.cu:{line}\b.*Read them without __ldg"):
        Kernel(SCOPES, "scopes")(1, 64, (np.zeros(256, np.int32), which))


REFUSED = {
    "x[0] = __shfl_down(x[0], 1);": "does not have warp functions without _sync, and no GPU",
    "x[0] = tex2D<float>(0, 1, 2);": "uses tex2D: the CPU back end does not have textures.",
    "surf2Dwrite(1.0f, 0, 1, 2);": "uses surf2Dwrite: the CPU back end does not have surfaces.",
    "k<<<1, 1>>>(x);": "uses <<<: the CPU back end does not have kernels that launch kernels",
    "wmma::experimental::bmma_sync(0);": "does not have matrix instructions of 1 and 4 bits. Use",
    "x[0] = __isConstant(x);": "the CPU back end cannot tell constant from global memory",
    "x[0] = helper(x[0]);": "calls helper(float), which is declared but not on the CPU.",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", REFUSED)
def test_what_is_left_out_is_refused_with_one_sentence(code: str) -> None:
    text = (
        "__device__ float helper(float);\n"
        f'extern "C" __global__ void k(float* x) {{\n    {code}\n}}\n'
    )
    with pytest.raises(CompileError) as caught:
        Kernel(text, "k")(1, 1, (np.zeros(4, np.float32),))
    first = str(caught.value).splitlines()[0]
    assert REFUSED[code] in first
    assert re.search(r"kernel\.cu(:3|) ", first) or "kernel.cu:3:" in first
    assert len(first) < 250


def test_names_of_what_is_left_out_may_stand_in_comments_and_other_branches() -> None:
    text = """
#ifdef NO_SUCH_MACRO
#include <cub/cub.cuh>
#endif
extern "C" __global__ void k(float* x) { x[0] = 1; /* tex2D<<< */ }
"""
    x = np.zeros(1, np.float32)
    Kernel(text, "k")(1, 1, (x,))
    assert x[0] == 1


OF_FLOAT = (
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 exp10 expm1 fabs floor "
    "j0 j1 lgamma log log10 log1p log2 logb nearbyint rint round rsqrt rcbrt sin sinh sqrt tan "
    "tanh tgamma trunc y0 y1 abs sinpi erfinv normcdf"
)
OF_TWO_FLOATS = "atan2 copysign fdim fmax fmin fmod hypot max min nextafter pow remainder"


@pytest.mark.parametrize("header", ["", "cmath"])
def test_functions_of_floats_are_floats_without_an_f(header: str) -> None:
    calls = [
        *(f"{name}(x[0])" for name in OF_FLOAT.split()),
        *(f"{name}(x[0], x[0])" for name in OF_TWO_FLOATS.split()),
        *("pow(x[0], 2)", "fma(x[0], x[0], x[0])", "ldexp(x[0], 1)", "jn(1, x[0])"),
        *("modf(x[0], x)", "frexp(x[0], (int*)x)", "remquo(x[0], x[0], (int*)x)"),
    ]
    include = f"#include <{header}>\n" if header else ""
    body = "".join(f'static_assert(sizeof({call}) == 4, "{call}");' for call in calls)
    text = f'{include}extern "C" __global__ void k(float* x) {{ {body} x[0] = pow(x[0], 2); }}'
    x = np.array([3], np.float32)

    Kernel(text, "k")(1, 1, (x,))

    assert x[0] == 9
    assert Kernel(text.replace(include, ""), "k").compile().warnings == ()


def test_a_launch_without_arrays_runs_on_the_cpu_where_it_is_scheduled(
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = '__global__ void greet(int n, float x) { printf("%d %g|", n + (int)threadIdx.x, x); }\n'

    with emulate.scheduled(races=True):
        Kernel(text, "greet")(1, 2, (7, 0.5))

    assert sorted(capfd.readouterr().out.split("|")) == ["", "7 0.5", "8 0.5"]
