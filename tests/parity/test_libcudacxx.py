"""The objects of libcu++ do the same on both back ends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate

from tmaasync import EmulatedRace, Kernel, TMAError
from tmaasync.emulate import scheduled

SOURCE = """
#include <cuda/annotated_ptr>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/cmath>
#include <cuda/functional>
#include <cuda/latch>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <cuda/semaphore>
#include <cuda/std/array>
#include <cuda/std/bit>
#include <cuda/std/chrono>
#include <cuda/std/limits>
#include <cuda/std/optional>
#include <cuda/std/span>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>

constexpr int kBlocks = 3, kThreads = 64;

using Latch = cuda::latch<cuda::thread_scope_block>;
__device__ cuda::binary_semaphore<cuda::thread_scope_device> one_at_a_time(1);

// A block's messages, each published by its flag.
__device__ void pass_messages(int* messages, int* flags, cuda::memory_order order) {
    const int block = blockIdx.x;
    cuda::atomic_ref<int, cuda::thread_scope_device> flag(flags[block]);
    cuda::atomic_ref<int, cuda::thread_scope_device> before(flags[(block + kBlocks - 1) % kBlocks]);
    if (threadIdx.x != 0) return;
    messages[block] = 10 * block;
    flag.store(1, order);
    while (before.load(cuda::memory_order_acquire) == 0) {}
    messages[kBlocks + block] = messages[(block + kBlocks - 1) % kBlocks] + 1;
}

extern "C" __global__ void objects(
    int* messages, int* flags, int* counts, float* sums, unsigned long long* words,
    int is_released
) {
    pass_messages(
        messages, flags, is_released ? cuda::memory_order_release : cuda::memory_order_relaxed
    );
    const int thread = blockIdx.x * kThreads + threadIdx.x;

    cuda::atomic_ref<int, cuda::thread_scope_device> lowest(counts[0]), highest(counts[1]);
    lowest.fetch_min(thread);
    highest.fetch_max(thread, cuda::memory_order_relaxed);
    cuda::atomic_ref<int> total(counts[2]);
    total += 2;
    ++total;
    cuda::atomic_ref<int> doubled(counts[3]);
    int old = doubled.load();
    while (threadIdx.x == 0 && !doubled.compare_exchange_weak(old, old * 2)) {}
    cuda::atomic_ref<float>(sums[0]).fetch_add(0.5f);
    cuda::std::atomic_ref<unsigned long long> bits(words[0]);
    bits.fetch_or(1ull << threadIdx.x);
    bits.fetch_xor(0);

    // An atomic object of a block, and a barrier that half of the threads leave.
    __shared__ cuda::atomic<int, cuda::thread_scope_block> count;
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) {
        count.store(0, cuda::memory_order_relaxed);
        init(&bar, kThreads);
    }
    __syncthreads();
    count.fetch_add(threadIdx.x);
    if (threadIdx.x % 2) {
        bar.arrive_and_drop();
    } else {
        bar.arrive_and_wait();
        if (threadIdx.x == 0) counts[4 + blockIdx.x] = count;
        bar.arrive_and_wait();
        auto token = bar.arrive();
        while (!bar.try_wait_for(cuda::std::move(token), cuda::std::chrono::nanoseconds(1000))) {}
    }

    if (threadIdx.x == 0) {
        one_at_a_time.acquire();
        counts[7] = counts[7] * 2 + 1;
        one_at_a_time.release();
    }

    __shared__ alignas(Latch) unsigned char memory[sizeof(Latch)];
    __shared__ int sent;
    auto* const latch = reinterpret_cast<Latch*>(memory);
    if (threadIdx.x == 0) new (latch) Latch(kThreads);
    __syncthreads();
    if (threadIdx.x == 1) sent = 8;
    latch->arrive_and_wait();
    if (thread == 0) counts[8] = sent;

    // The library.
    if (thread == 0) {
        cuda::std::array<int, 3> values{3, 1, 2};
        cuda::std::span<int> rest(values.data() + 1, 2);
        const auto [a, b] = cuda::std::make_pair(values[0], rest[1]);
        cuda::std::optional<int> some = a + b;
        const auto three = cuda::std::make_tuple(1, 2.5f, 'c');
        static_assert(cuda::std::is_same_v<decltype(cuda::std::get<1>(three)), const float&>, "");
        counts[9] = some.value_or(0) + static_cast<int>(cuda::std::get<1>(three) * 2);
        counts[10] = cuda::std::numeric_limits<short>::max() + cuda::ceil_div(7, 2);
        counts[11] = cuda::maximum<int>()(3, cuda::minimum<int>()(9, 5));
        cuda::annotated_ptr<int, cuda::access_property::global> pointer(counts + 12);
        pointer[0] = cuda::std::popcount(0xf0u) + static_cast<int>(cuda::std::bit_width(8u));
    }
    if (thread == 33) {
        counts[13] = cuda::ptx::get_sreg_laneid() + 100 * cuda::ptx::get_sreg_ctaid_x();
    }
}
"""


@functools.cache
def objects() -> Kernel:
    return Kernel(SOURCE, "objects")


def run(backend: Any, *, is_released: bool) -> list[Any]:
    hosts = [
        np.zeros(6, np.int32),
        np.zeros(3, np.int32),
        np.array([999, -1, 0, 1, *[0] * 10], np.int32),
        np.zeros(1, np.float32),
        np.zeros(1, np.uint64),
    ]
    arrays = [backend.array(host) for host in hosts]
    objects()(3, 64, (*arrays, is_released), cooperative=True)
    return [backend.host(array) for array in arrays]


@pytest.mark.parametrize("policy", ["round_robin", "random", "adversarial"])
def test_objects_of_every_scope(backend: Any, policy: Any) -> None:
    with scheduled(policy, races=True):
        messages, flags, counts, sums, words = run(backend, is_released=True)

    assert messages.tolist() == [0, 10, 20, 21, 1, 11]
    assert flags.tolist() == [1, 1, 1]
    assert counts.tolist() == [0, 191, 576, 8, 2016, 2016, 2016, 7, 8, 10, 32771, 5, 8, 1]
    assert sums[0] == 96
    assert words[0] == 2**64 - 1


def test_a_relaxed_store_publishes_nothing() -> None:
    with scheduled(races=True), pytest.raises(EmulatedRace, match=r"a race on messages\[\d\]"):
        run(Emulate(), is_released=False)


OWN_TRAITS = """
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
struct Two { int first, second; };
struct Proxy {};
template <> struct cuda::std::tuple_size<Two> : cuda::std::integral_constant<size_t, 2> {};
template <> struct cuda::std::tuple_element<1, Two> { using type = short; };
template <> struct cuda::std::is_reference<Proxy> : cuda::std::true_type {};

extern "C" __global__ void k(int* out) {
    using Three = cuda::std::tuple<int, float, char>;
    out[0] = cuda::std::tuple_size_v<Two> * 10 + cuda::std::tuple_size<Three>::value;
    out[1] = sizeof(cuda::std::tuple_element_t<1, Two>) * 10 +
             sizeof(cuda::std::tuple_element_t<2, Three>);
    out[2] = cuda::std::is_reference<Proxy>::value * 10 + cuda::std::is_reference<int&>::value;
}
"""


def test_a_kernel_specialises_traits_of_cuda_std_for_its_own_types(backend: Any) -> None:
    out = backend.array(np.zeros(3, np.int32))

    Kernel(OWN_TRAITS, "k")(1, 1, (out,))

    assert backend.host(out).tolist() == [23, 21, 11]


PRIMITIVES = """
#include <cuda_awbarrier_primitives.h>
#include <cuda_pipeline.h>
#include <nv/target>
namespace nv_pipelines = nvcuda::experimental;

extern "C" __global__ void primitives(const int* in, int* out, int waits) {
    __shared__ alignas(16) int copied[128], other[64];
    __shared__ __mbarrier_t here, landed;
    const int i = threadIdx.x;
    if (i == 0) {
        __mbarrier_init(&here, 64);
        __mbarrier_init(&landed, 64);
    }
    __syncthreads();

    if (i < 32) __pipeline_memcpy_async(&copied[4 * i], &in[4 * i], 16, i == 31 ? 8 : 0);
    __pipeline_commit();
    __pipeline_memcpy_async(&other[i], &in[i], 4);
    __pipeline_arrive_on(&landed);
    const __mbarrier_token_t counted = __mbarrier_arrive(&landed);
    const __mbarrier_token_t token = __mbarrier_arrive(&here);
    while (!__mbarrier_try_wait(&here, token, 1000)) {}
    while (waits && !__mbarrier_test_wait(&landed, counted)) {}
    out[i] = copied[127 - i] + other[63 - i];
    __syncthreads();

    nv_pipelines::pipeline pipeline;
    nv_pipelines::memcpy_async(other[i], in[64 + i], pipeline);
    pipeline.commit_and_wait();
    out[64 + i] = other[i];
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_90, (out[128 + i] = 90;), (out[128 + i] = 0;))
    NV_DISPATCH_TARGET(
        NV_PROVIDES_SM_100, (out[128 + i] = 100;), NV_IS_DEVICE, (out[128 + i] += 1000;),
        NV_ANY_TARGET, (out[128 + i] = 1;)
    )
    NV_IF_TARGET(NV_IS_HOST, (out[128 + i] = -1;))
}
"""


def test_the_primitives_of_pipelines_and_barriers(backend: Any, chip: str) -> None:
    given = np.random.default_rng(4).integers(-99, 99, 128).astype(np.int32)
    out = backend.array(np.zeros(192, np.int32))

    with scheduled(races=True):
        Kernel(PRIMITIVES, "primitives")(1, 64, (backend.array(given), out, 1))

    copied = given.copy()
    copied[-2:] = 0
    np.testing.assert_array_equal(backend.host(out)[:64], copied[:63:-1] + given[63::-1])
    np.testing.assert_array_equal(backend.host(out)[64:128], given[64:])
    # NV_DISPATCH_TARGET takes the branch of sm_100 on all of Blackwell.
    assert (backend.host(out)[128:] == (1090 if chip == "sm_90a" else 100)).all()


def test_a_pipeline_that_is_not_waited_for() -> None:
    with scheduled(races=True), pytest.raises(TMAError, match=r"kernel\.cu:25"):
        Kernel(PRIMITIVES, "primitives")(
            1, 64, (np.ones(128, np.int32), np.zeros(192, np.int32), 0)
        )


VIEWS = """
#include <cuda/std/array>
#include <cuda/std/mdspan>
namespace cs = cuda::std;

template <class Matrix>
__device__ int trace(Matrix matrix) {
    int sum = 0;
    for (int i = 0; i < matrix.extent(0); ++i) sum += matrix(i, i);
    return sum;
}

extern "C" __global__ void views(const int* in, int* out, int rows, int columns) {
    using Fixed = cs::extents<int, 4, 6>;
    using Mixed = cs::extents<int, cs::dynamic_extent, 6>;
    static_assert(Mixed::rank() == 2 && Mixed::rank_dynamic() == 1);
    static_assert(Mixed::static_extent(1) == 6);
    const int i = threadIdx.x / columns, j = threadIdx.x % columns;

    const cs::mdspan<const int, Fixed> right(in);
    const cs::mdspan<const int, Mixed, cs::layout_left> left(in, Mixed(rows));
    const cs::mdspan<int, cs::dextents<int, 3>> target(out, 4, rows, columns);
    target(0, i, j) = right(i, j);
    target(1, i, j) = left(i, j) + 1000 * left.stride(1) + 100000 * left.extent(0);
    using Strided = cs::layout_stride::mapping<cs::dextents<int, 2>>;
    const Strided transposed(cs::dextents<int, 2>(rows, columns), cs::array<int, 2>{1, rows});
    const cs::mdspan<const int, cs::dextents<int, 2>, cs::layout_stride> strided(in, transposed);
    target(2, i, j) = strided(i, j) + int(strided.size()) + strided.stride(1);
    target(3, i, j) = trace(cs::mdspan(in, 4, 6)) + target[cs::array<int, 3>{0, i, j}];
}
"""


def test_mdspan(backend: Any) -> None:
    given = np.random.default_rng(6).integers(-99, 99, (4, 6)).astype(np.int32)
    out = backend.array(np.zeros((4, 4, 6), np.int32))

    Kernel(VIEWS, "views")(1, 24, (backend.array(given), out, 4, 6))

    columns_first = given.reshape(6, 4).T
    expected = [given, columns_first + 404000, columns_first + 28, given.trace() + given]
    np.testing.assert_array_equal(backend.host(out), expected)
