"""Accesses that nothing orders are found whatever order they happened in; ordered ones are not."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any, get_args

import numpy as np
import pytest
from bodies import chosen

from tmaasync import EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy

PASS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct Big { int values[40]; };
struct Two { int first, second; };
__device__ __noinline__ Two two(int x) { return {x, x + 1}; }

extern "C" __global__ void pass(int* out, int* flag, int what) {
    __shared__ int value;
    __shared__ Big from, to;
    const int thread = threadIdx.x;
BODIES
}
"""


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


ACROSS = {
    "blocks write": "if (thread == 0) out[0] = blockIdx.x;",
    "blocks count": "if (thread == 0) { out[blockIdx.x] = 1; __threadfence(); "
    "if (atomicAdd(flag, 1) == 1) { __threadfence(); out[2] = out[0] + out[1]; } }",
}
BODIES = {
    **{f"ordered: {name}": body for name, body in ORDERED.items()},
    **{name: body for name, (body, _) in RACES.items()},
    **ACROSS,
}


def run(name: str, *, blocks: int = 1) -> Any:
    out, flag = np.zeros(1024, np.int32), np.zeros(4, np.int32)
    kernel = Kernel(PASS.replace("BODIES", chosen(BODIES.values())), "pass")
    kernel(blocks, 64, (out, flag, [*BODIES].index(name)))
    return out


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ORDERED)
def test_what_is_ordered_is_no_race(name: str) -> None:
    for policy in get_args(Policy)[:2]:
        with scheduled(policy, seed=3):
            run(f"ordered: {name}")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", RACES)
def test_what_is_not_ordered_is_a_race(name: str) -> None:
    _, place = RACES[name]

    for policy in get_args(Policy)[:2]:
        with scheduled(policy, seed=3), pytest.raises(EmulatedRace, match="a race on") as caught:
            run(name)
        assert place in str(caught.value)
        assert "at kernel.cu:" in str(caught.value)


def test_blocks_are_ordered_by_nothing_but_atomics_and_fences() -> None:
    with pytest.raises(EmulatedRace, match=r"block \(0, 0, 0\).*\n.*block \(1, 0, 0\)"):
        run("blocks write", blocks=2)
    assert run("blocks count", blocks=2)[2] == 2


STAGED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int staged_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void staged(
    const __grid_constant__ Tile tile, float* array, int what
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
BODIES
}
"""
LOAD = (
    "if (threadIdx.x == 0) { shared.full.expect_bytes(Tile::kBytes); "
    "tile.async_copy(shared.tile, shared.full, {0, 0}); }"
)
FILL = "shared.tile.data()[threadIdx.x] = 1;"
STORE = "if (threadIdx.x == 0) { tile.async_store(shared.tile, {0, 0}); commit_group(); "
FENCED = f"{FILL} fence_async_view_proxy(); __syncthreads(); "


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


STAGED_BODIES = {**STAGED_ORDERED, **{name: body for name, (body, _) in STAGED_RACES.items()}}


def run_staged(name: str) -> None:
    array = np.ones((8, 8), np.float32)
    tile = create_tma_tile(array, (8, 8))
    text = STAGED.replace("BODIES", chosen(STAGED_BODIES.values()))
    kernel = Kernel(text, "staged", types={"Tile": tile})
    kernel(1, 64, (tile, array, [*STAGED_BODIES].index(name)))


@pytest.mark.parametrize("name", STAGED_ORDERED)
def test_tma_in_order_is_no_race(name: str) -> None:
    run_staged(name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STAGED_RACES)
def test_tma_out_of_order_is_a_race_with_its_remedy(name: str) -> None:
    _, remedy = STAGED_RACES[name]

    with pytest.raises(Exception, match=r"a race on|nothing has written") as caught:
        run_staged(name)

    assert remedy in str(caught.value)


def test_a_race_survives_the_way_to_another_process() -> None:
    with pytest.raises(EmulatedRace) as caught:
        run("two writers")

    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.first, again.second, str(again)) == (
        caught.value.first,
        caught.value.second,
        str(caught.value),
    )


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


FLAG_BETWEEN_BLOCKS = """
#include <cuda/atomic>
template <cuda::thread_scope kScope>
__device__ int load(int* flag) { return cuda::atomic_ref<int, kScope>(*flag).load(); }
extern "C" __global__ void flagged(int* data, int* flag, int* out, bool is_wide, int what) {
    if (blockIdx.x == 0) {
        *data = 5;
        __threadfence();
        if (is_wide) asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory");
        if (!is_wide) asm volatile("st.relaxed.cta.global.u32 [%0], 1;" :: "l"(flag) : "memory");
        return;
    }
    for (int seen = 0; !seen;) {
LOADS
    }
    __threadfence();
    *out = *data;
}
"""
LOAD_FLAG = 'asm volatile("ld.{}.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");'
FLAG_LOADS = {
    "gpu": LOAD_FLAG.format("relaxed.gpu"),
    "device": "seen = load<cuda::thread_scope_device>(flag);",
    "cta": LOAD_FLAG.format("relaxed.cta"),
    "acquire.cta": LOAD_FLAG.format("acquire.cta"),
    "block": "seen = load<cuda::thread_scope_block>(flag);",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("is_wide", "load"), [(False, "gpu"), *((True, load) for load in FLAG_LOADS)]
)
def test_a_flag_between_blocks_has_the_scope_of_the_device(is_wide: bool, load: str) -> None:
    kernel = Kernel(FLAG_BETWEEN_BLOCKS.replace("LOADS", chosen(FLAG_LOADS.values())), "flagged")
    data, flag, out = (np.zeros(1, np.int32) for _ in range(3))
    is_race = not is_wide or load not in ("gpu", "device")
    race = pytest.raises(EmulatedRace, match="atomic for the threads of one block")
    with race if is_race else contextlib.nullcontext():
        kernel(2, 1, (data, flag, out, is_wide, [*FLAG_LOADS].index(load)))
    assert is_race or out[0] == 5
