"""Accesses that nothing orders are found whatever order they happened in; ordered ones are not."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled

PASS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct Big { int values[40]; };
struct Two { int first, second; };
__device__ __noinline__ Two two(int x) { return {x, x + 1}; }

extern "C" __global__ void pass(int* out, int* flag) {
    __shared__ int value;
    __shared__ Big from, to;
    const int thread = threadIdx.x;
    (void)from, (void)to, (void)flag;
    BODY
}
"""


def run(body: str, *, blocks: int = 1, threads: int = 64) -> Any:
    out, flag = np.zeros(1024, np.int32), np.zeros(4, np.int32)
    Kernel(PASS.replace("BODY", body), "pass")(blocks, threads, (out, flag))
    return out


STMATRIX = (
    "__shared__ alignas(16) int row[4]; if (thread < 32) "
    'asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: '
    '"r"((unsigned)__cvta_generic_to_shared(row)), "r"(VALUE)); '
    "__syncthreads(); out[thread] = row[0];"
)
ORDERED = {
    "equal rows of one stmatrix": STMATRIX.replace("VALUE", "5"),
    "a barrier": "if (thread == 63) value = 7; __syncthreads(); out[thread] = value;",
    "a barrier of a warp": "if (thread == 5) value = 7; __syncwarp(); "
    "if (thread < 32) out[thread] = value;",
    "a named barrier": "if (thread == 40) value = 7; NamedBarrier<64>{2}.sync(); "
    "out[thread] = value;",
    "atomics": "if (thread == 0) value = 0; __syncthreads(); atomicAdd(&value, 1); "
    "__syncthreads(); out[thread] = value;",
    "a flag after fences": "if (thread == 33) { out[0] = 7; __threadfence(); "
    "atomicExch(flag, 1); } if (thread == 0) { while (atomicAdd(flag, 0) == 0) {} "
    "__threadfence(); out[1] = out[0]; }",
    "a volatile flag after fences": "auto* seen = const_cast<volatile int*>(flag); "
    "if (thread == 33) { out[0] = 7; __threadfence(); *seen = 1; } "
    "if (thread == 0) { while (*seen == 0) {} __threadfence(); out[1] = out[0]; }",
    "a named barrier of the block and __syncthreads()": "if (thread == 40) value = 7; "
    "if (thread < 32) NamedBarrier<64>{0}.sync(); else __syncthreads(); out[thread] = value;",
    "memset and memcpy": "if (thread == 0) { memset(&from, 0, sizeof from); "
    "memcpy(&to, &from, 12); } __syncthreads(); out[thread] = to.values[thread % 3];",
    "functions of the C library": "__shared__ float s[64], c[64]; __shared__ double d[64]; "
    "__shared__ int e[64], q[64]; sincosf(thread, &s[thread], &c[thread]); "
    "d[thread] = modf(thread, &d[thread]) + remquof(thread, 3, &q[thread]); "
    "frexpf(thread, &e[thread]); __syncthreads(); const int peer = 63 - thread; "
    "out[thread] = s[peer] + c[peer] + d[peer] + e[peer] + q[peer];",
    "other bytes": "if (thread < 4) reinterpret_cast<char*>(&value)[thread] = 1; __syncthreads(); "
    "out[thread] = value;",
    "a struct that a call returns": "auto* const both = reinterpret_cast<Two*>(from.values); "
    "if (thread == 63) both[3] = two(7); __syncthreads(); out[thread] = both[3].second;",
    "a copied struct": "if (thread == 0) { for (int& v : from.values) v = 1; to = from; } "
    "__syncthreads(); out[thread] = to.values[thread % 40];",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("body", ORDERED.values(), ids=ORDERED)
@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_what_is_ordered_is_no_race(body: str, policy: Any) -> None:
    with scheduled(policy, seed=3):
        run(body)


CLEAR = "if (thread == 0) value = 0; __syncthreads(); "
RACES = {
    "no barrier": (CLEAR + "if (thread == 63) value = 7; out[thread] = value;", "value"),
    "a barrier of another warp": (
        CLEAR + "if (thread == 5) value = 7; __syncwarp(); if (thread >= 32) out[thread] = value;",
        "value",
    ),
    "a struct that a call returns": (
        (
            "reinterpret_cast<Two*>(from.values)[0] = two(thread); __syncthreads(); "
            "out[thread] = from.values[0];"
        ),
        "from.values",
    ),
    "different rows of one stmatrix": (STMATRIX.replace("VALUE", "thread"), "row"),
    "two writers": ("value = thread; __syncthreads(); out[thread] = value;", "value"),
    "a shuffle is no fence": (
        CLEAR + "if (thread == 0) value = 7; __shfl_sync(0xffffffff, 1, 0); "
        "if (thread == 1) out[0] = value;",
        "value",
    ),
    "a flag without fences": (
        (
            "if (thread == 33) { out[0] = 7; atomicExch(flag, 1); } "
            "if (thread == 0) { while (atomicAdd(flag, 0) == 0) {} out[1] = out[0]; }"
        ),
        "global address",
    ),
    "an atomic and a read": (CLEAR + "atomicAdd(&value, 1); out[thread] = value;", "value"),
    "an atomic after a store of its thread": (
        "if (thread == 0) value = 0; atomicAdd(&value, 1); __syncthreads(); out[thread] = value;",
        "value",
    ),
    "a store that a warp has read": (
        (
            "if (thread < 32) { if (thread == 0) value = 7; __syncwarp(); out[thread] = value; "
            "__syncwarp(); if (thread == 0) atomicExch(flag, 1); } "
            "else { while (atomicAdd(flag, 0) == 0) {} out[thread] = value; }"
        ),
        "value",
    ),
    "a short memcpy": (
        (
            "if (thread == 40) { memset(&from, 0, sizeof from); memcpy(&to, &from, 12); } "
            "__syncthreads(); if (thread == 0) memset(&to, 1, 12); out[thread] = to.values[0];"
        ),
        "to.values",
    ),
    "a pointer given to sincosf": (
        "__shared__ float s; sincosf(thread, &s, (float*)&to.values[thread / 2]);",
        "race on",
    ),
    "a copied struct": (
        (
            "if (thread % 40 == 0) { for (int& v : from.values) v = 1; } __syncthreads(); "
            "if (thread < 2) to = from; __syncthreads(); out[thread] = to.values[thread % 40];"
        ),
        "from.values",
    ),
    "a struct copied by two": (
        (
            "if (thread == 0) { for (int& v : from.values) v = 1; } __syncthreads(); "
            "if (thread < 2) to = from; __syncthreads(); out[thread] = to.values[thread % 40];"
        ),
        "to.values",
    ),
    "global memory": ("out[thread / 2] = thread;", "global address"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", RACES)
@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_what_is_not_ordered_is_a_race(name: str, policy: Any) -> None:
    body, place = RACES[name]

    with scheduled(policy, seed=3), pytest.raises(EmulatedRace, match="a race on") as caught:
        run(body)

    assert place in str(caught.value)
    assert "kernel.cu:14" in str(caught.value)


def test_blocks_are_ordered_by_nothing_but_atomics_and_fences() -> None:
    with pytest.raises(EmulatedRace, match=r"block \(0, 0, 0\).*\n.*block \(1, 0, 0\)"):
        run("if (thread == 0) out[0] = blockIdx.x;", blocks=2)

    counted = run(
        "if (thread == 0) { out[blockIdx.x] = 1; __threadfence(); "
        "if (atomicAdd(flag, 1) == 1) { __threadfence(); out[2] = out[0] + out[1]; } }",
        blocks=2,
    )
    assert counted[2] == 2


STAGED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int staged_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void staged(const __grid_constant__ Tile tile, float* array) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    BODY
}
"""
LOAD = (
    "if (threadIdx.x == 0) { shared.full.expect_bytes(Tile::kBytes); "
    "tile.async_copy(shared.tile, shared.full, {0, 0}); }"
)
FILL = "shared.tile.data()[threadIdx.x] = 1;"
STORE = "if (threadIdx.x == 0) { tile.async_store(shared.tile, {0, 0}); commit_group(); "
FENCED = f"{FILL} fence_async_view_proxy(); __syncthreads(); "


def run_staged(body: str) -> None:
    array = np.ones((8, 8), np.float32)
    tile = create_tma_tile(array, (8, 8))
    kernel = Kernel(STAGED.replace("BODY", body), "staged", types={"Tile": tile})
    kernel(1, 64, (tile, array))


STAGED_ORDERED = {
    "a load waited for": f"{LOAD} shared.full.wait(0); "
    "if (shared.tile.data()[threadIdx.x] == 7) array[threadIdx.x] = 1;",
    "a fenced store": f"{FENCED} {STORE} wait_group<0>(); array[1] = 2; }}",
    "a buffer written again": f"{FENCED} {STORE} wait_group_read<0>(); {FILL} }}",
    "a fence by the one that issues": f"{FILL} __syncthreads(); if (threadIdx.x == 0) "
    f"fence_async_view_proxy(); {STORE} wait_group_read<0>(); }}",
}
STAGED_RACES = {
    "a load not waited for": (
        (
            f"{LOAD} float x = shared.tile.data()[threadIdx.x]; shared.full.wait(0); "
            "if (x == 7) array[0] = x;"
        ),
        "",
    ),
    "a relaxed wait": (
        (
            f"{LOAD} shared.full.wait_relaxed<Scope::kCta>(0); "
            "if (shared.tile.data()[threadIdx.x] == 7) array[0] = 1;"
        ),
        "Wait on full",
    ),
    "no proxy fence": (
        f"{FILL} __syncthreads(); {STORE} wait_group_read<0>(); }}",
        "fence_async_view_proxy",
    ),
    "a fence before the write": (
        f"fence_async_view_proxy(); {FILL} __syncthreads(); {STORE} wait_group_read<0>(); }}",
        "fence_async_view_proxy",
    ),
    "a load over written memory": (
        f"{FILL} __syncthreads(); {LOAD} shared.full.wait(0);",
        "fence_async_view_proxy",
    ),
    "the buffer written too early": (
        f"{FENCED} {STORE} {FILL} wait_group_read<0>(); }}",
        "wait_group_read",
    ),
    "atomic operations on the source of a reduction": (
        (
            f"{FENCED} if (threadIdx.x == 0) {{ tile.async_reduce<ReduceOp::kAdd>(shared.tile, "
            "{0, 0}); commit_group(); wait_group<0>(); } "
            "else atomicAdd(&shared.tile.data()[threadIdx.x], 1.0f);"
        ),
        "",
    ),
    "a reduction of unfenced atomic operations": (
        (
            f"{FENCED} atomicAdd(&shared.tile.data()[threadIdx.x], 1.0f); __syncthreads(); "
            "if (threadIdx.x == 0) { tile.async_reduce<ReduceOp::kAdd>(shared.tile, {0, 0}); "
            "commit_group(); wait_group<0>(); }"
        ),
        "fence_async_view_proxy",
    ),
    "the array read too early": (
        f"{FENCED} {STORE} wait_group_read<0>(); array[1] = 2; }}",
        "wait_group<0>",
    ),
}


@pytest.mark.parametrize("body", STAGED_ORDERED.values(), ids=STAGED_ORDERED)
def test_tma_in_order_is_no_race(body: str) -> None:
    run_staged(body)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STAGED_RACES)
def test_tma_out_of_order_is_a_race_with_its_remedy(name: str) -> None:
    body, remedy = STAGED_RACES[name]

    with pytest.raises(Exception, match=r"a race on|nothing has written") as caught:
        run_staged(body)

    assert remedy in str(caught.value)


def test_a_race_survives_the_way_to_another_process() -> None:
    with pytest.raises(EmulatedRace) as caught:
        run("value = thread; __syncthreads(); out[thread] = value;")

    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.first, again.second, str(again)) == (
        caught.value.first,
        caught.value.second,
        str(caught.value),
    )


def test_without_the_detector_the_kernel_runs() -> None:
    with scheduled(races=False):
        run("value = thread; __syncthreads(); out[thread] = value;")


MEET = """
extern "C" __global__ void meet(int* out) {
    __shared__ unsigned long long barrier;
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 64;" :: "r"(at));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
    out[threadIdx.x] = 1;
}
"""


def test_a_relaxed_cluster_arrival_after_the_fence_hands_on_an_initialised_mbarrier() -> None:
    # PTX ISA, fence.mbarrier_init: the example of a cluster's barriers.
    out = np.zeros(64, np.int32)
    with scheduled(races=True):
        Kernel(MEET, "meet")(1, 64, (out,))
        assert out.all()

        late = MEET.replace(
            'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");', ""
        )
        with pytest.raises(EmulatedRace, match=r"no barrier lies between mbarrier\.init and"):
            Kernel(late, "meet")(1, 64, (out,))


HANDED_ON = """
extern "C" __global__ void handed_on(int* out) {
    __shared__ int cell;
    __shared__ unsigned long long barrier;
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at));
        cell = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        cell = 7;
        RELEASE
    } else {
        ACQUIRE
        out[threadIdx.x] = cell;
    }
}
"""
CTA_FENCE = 'asm volatile("fence.acq_rel.cta;" ::: "memory");'


def arrival(semantics: str) -> str:
    instruction = f"mbarrier.arrive{semantics}.shared::cta.b64 _, [%0];"
    return f'asm volatile("{instruction}" :: "r"(at) : "memory");'


def waiting(semantics: str) -> str:
    return f"""
    unsigned done = 0;
    while (!done) {{
        asm volatile(
            "{{ .reg .pred p; mbarrier.try_wait.parity{semantics}.shared::cta.b64 p, [%1], 0; "
            "selp.u32 %0, 1, 0, p; }}" : "=r"(done) : "r"(at) : "memory");
    }}"""


RELAXED = ".relaxed.cta"
ORDERED_BY_FENCES = {
    "a fence, then a relaxed arrival": (f"{CTA_FENCE} {arrival(RELAXED)}", waiting("")),
    "a relaxed wait, then a fence": (arrival(""), f"{waiting(RELAXED)} {CTA_FENCE}"),
    "both": (f"{CTA_FENCE} {arrival(RELAXED)}", f"{waiting(RELAXED)} {CTA_FENCE}"),
}
NOT_ORDERED = {
    "a relaxed arrival": (arrival(RELAXED), waiting("")),
    "a fence after the arrival": (f"{arrival(RELAXED)} {CTA_FENCE}", waiting("")),
    "a relaxed wait": (arrival(""), waiting(RELAXED)),
}


def hand_on(release: str, acquire: str) -> None:
    text = HANDED_ON.replace("RELEASE", release).replace("ACQUIRE", acquire)
    with scheduled(races=True):
        Kernel(text, "handed_on")(1, 64, (np.zeros(64, np.int32),))


@pytest.mark.parametrize("name", ORDERED_BY_FENCES)
def test_a_fence_with_a_relaxed_operation_on_an_mbarrier_orders(name: str) -> None:
    """PTX ISA, memory consistency model: release and acquire patterns."""
    hand_on(*ORDERED_BY_FENCES[name])


@pytest.mark.parametrize("name", NOT_ORDERED)
def test_a_relaxed_operation_on_an_mbarrier_alone_orders_nothing(name: str) -> None:
    with pytest.raises(EmulatedRace, match="a race on cell"):
        hand_on(*NOT_ORDERED[name])


ACROSS_THE_CLUSTER = """
extern "C" __global__ void __cluster_dims__(2) across(int* out) {
    __shared__ int cell;
    cell = 7;
    FENCE
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    unsigned peer, value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(&cell))), "r"(1 - blockIdx.x));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(peer) : "memory");
    out[blockIdx.x] = value;
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
"""


def test_a_fence_before_a_relaxed_cluster_arrival_orders() -> None:
    # PTX ISA, barrier.cluster: "use memory fence prior to arrive for relaxed barrier".
    fence = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
    out = np.zeros(2, np.int32)
    with scheduled(races=True):
        Kernel(ACROSS_THE_CLUSTER.replace("FENCE", fence), "across")(2, 1, (out,))
        assert out.tolist() == [7, 7]
        with pytest.raises(EmulatedRace, match="a race on cell"):
            Kernel(ACROSS_THE_CLUSTER.replace("FENCE", ""), "across")(2, 1, (out,))


REPEATED_STORES = """
__global__ void repeated(float* x, int which) {
    __shared__ float kept[2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (which == 0) kept[warp] = x[64];                     // one value a warp
    if (which == 1) kept[warp] = lane == 9;                 // two values
    if (which == 2) kept[0] = x[64];                        // two warps
    if (which == 3) x[warp] = warp;
    __syncthreads();
    if (which < 3) x[threadIdx.x] = kept[which == 2 ? 0 : warp];
    if (which == 4 && warp == 0) x[0] = lane == 31;         // the thread's last store
}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("which", "is_race"), [(0, False), (1, True), (2, True), (3, False), (4, True)]
)
def test_lanes_that_store_one_value_by_one_instruction_do_not_race(
    which: int, is_race: bool
) -> None:
    """CUDA C++ Programming Guide, "SIMT Architecture": one of the stores is performed."""
    expected = pytest.raises(EmulatedRace) if is_race else contextlib.nullcontext()
    with scheduled(races=True), expected:
        Kernel(REPEATED_STORES, "repeated")(1, 64, (np.ones(65, np.float32), which))


def test_a_volatile_read_is_no_write() -> None:
    source = """
    extern "C" __global__ void total(const int* in, int* out) {
        __shared__ int s;
        if (threadIdx.x == 0) s = 1;
        __syncthreads();
        const bool asks = threadIdx.x == 5;
        const int value = asks ? *const_cast<volatile int*>(&s) : s;
        out[threadIdx.x] = value + (asks ? *(const volatile int*)in : __ldg(in));
    }
    """
    out = np.zeros(32, np.int32)

    with scheduled(races=True):
        Kernel(source, "total")(1, 32, (np.ones(1, np.int32), out))

    assert (out == 2).all()


def test_memory_that_is_allocated_anew_has_no_past() -> None:
    source = """
    struct Shape { int side; __device__ virtual int area() const { return side * side; } };
    extern "C" __global__ void areas(int* out) {
        for (int i = 0; i < 3; ++i) {
            Shape* const shape = new Shape;
            shape->side = threadIdx.x + i;
            out[threadIdx.x] = shape->area();
            delete shape;
        }
    }
    """
    out = np.zeros(32, np.int32)

    with scheduled(races=True):
        Kernel(source, "areas")(1, 32, (out,))

    assert (out == (np.arange(32) + 2) ** 2).all()


FLAG_BETWEEN_BLOCKS = """
#include <cuda/atomic>
extern "C" __global__ void flagged(int* data, int* flag, int* out) {
    int seen = 0;
    if (blockIdx.x == 0) {
        *data = 5;
        __threadfence();
        SET
    } else {
        while (!seen) { GET }
        __threadfence();
        *out = *data;
    }
}
"""
SETS = {
    "gpu": 'asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");',
    "cta": 'asm volatile("st.relaxed.cta.global.u32 [%0], 1;" :: "l"(flag) : "memory");',
}
LOAD_FLAG = 'asm volatile("ld.{}.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");'
REF = "seen = cuda::atomic_ref<int, cuda::thread_scope_{}>(*flag).load();"
GETS = {
    "gpu": LOAD_FLAG.format("relaxed.gpu"),
    "cta": LOAD_FLAG.format("relaxed.cta"),
    "acquire.cta": LOAD_FLAG.format("acquire.cta"),
    "block": REF.format("block"),
    "device": REF.format("device"),
}
OF_DEVICE = {"gpu", "device"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("store", "load"), [("cta", "gpu"), *(("gpu", load) for load in GETS)])
def test_a_flag_between_blocks_has_the_scope_of_the_device(store: str, load: str) -> None:
    text = FLAG_BETWEEN_BLOCKS.replace("SET", SETS[store]).replace("GET", GETS[load])
    arrays = tuple(np.zeros(1, np.int32) for _ in range(3))
    with scheduled(races=True):
        if {store, load} <= OF_DEVICE:
            Kernel(text, "flagged")(2, 1, arrays)
            assert arrays[2][0] == 5
        else:
            with pytest.raises(EmulatedRace, match="atomic for the threads of one block"):
                Kernel(text, "flagged")(2, 1, arrays)
