"""Kernels that would end the process or corrupt its heap: each is a fault with its line, and the
process goes on. Every launch here is a plain one: no schedule, and no option.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tmaasync import (
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedTimeout,
    Kernel,
    StaleTileError,
    TMAError,
    TMATensorTileArray,
    create_tma_tile,
)
from tmaasync.emulate import scheduled


@pytest.fixture(autouse=True)
def plain(races: None) -> Iterator[None]:
    with scheduled(races=False):
        yield


@dataclass(frozen=True)
class Defect:
    """What thread 3 does, and how that is reported."""

    code: str
    reason: str
    error: type[TMAError] = EmulatedFault
    line: str = ""  # of the source; by default the thread's own


NO_ARRAY = "lies in none of the launch's arrays. Check indices"
NO_MEMORY = "is no memory. Check indices and pointers"
BEYOND_SHARED = "beyond the shared memory of the CTA, which has .* bytes. Check indices"
STACK = "below the thread's stack of 128 KiB. .* recursion shallow"
DEFECTS = {
    "write next to an array": Defect(
        "x[n + 4] = 1;", f"a write of 4 bytes at 0x.*, which {NO_ARRAY}"
    ),
    "write far away": Defect("x[1ll << 40] = 1;", f"a write .*{NO_ARRAY}"),
    "null": Defect(
        "int* null = x - n; null -= (size_t(null) / 4); *null = 1;", f"at 0x0, .*{NO_ARRAY}"
    ),
    "atomic next to an array": Defect("atomicAdd(x + n, 1);", f"a write of 4 bytes .*{NO_ARRAY}"),
    "long copy": Defect("memset(x, 0, n * 400);", f"a write of 1600 bytes .*{NO_ARRAY}"),
    "dynamic shared memory": Defect("dynamic[n * 16] = 1;", f"a write .*{BEYOND_SHARED}"),
    "misaligned": Defect(
        "*reinterpret_cast<int*>(reinterpret_cast<char*>(x) + 2) = 1;",
        "a misaligned address: .* Use narrower accesses",
    ),
    "local array": Defect(
        "x[1] = overflows(n * 4);",
        "a local array of this function was written beyond its end. Check its indices",
        line="int overflows",
    ),
    "deep recursion": Defect("x[1] = deep(n * 1000000);", STACK, line="int deep"),
    "abort": Defect("abort();", r"called abort\(\)"),
    "exit": Defect("exit(3);", r"called exit\(\). Return from it"),
    "division by zero": Defect(
        "x[0] = n / x[1];", "an integer division by zero, .* Check the divisor"
    ),
    "unreachable": Defect("__builtin_trap();", "an illegal instruction"),
    "free twice": Defect(
        "int* mine = own(4); delete[] mine; delete[] mine;", "Free each block once"
    ),
    "beyond the heap": Defect("int* mine = own(4); mine[n] = 1;", f"a write .*{NO_ARRAY}"),
    "exception": Defect("throws(n);", "threw an exception", line="none"),
    "null function": Defect("called(x + n)();", NO_MEMORY),
    "string that is none": Defect(
        'printf("%s", reinterpret_cast<const char*>(size_t(n)));', NO_MEMORY
    ),
    "endless loop": Defect(
        "while (true) {}", r"thread 3 is in an endless loop, in which", EmulatedTimeout
    ),
    "endless loop over memory": Defect(
        "while (look(x) == 5) {}", "every thread waits", EmulatedDeadlock, line="int look"
    ),
    "endless loop that writes": Defect(
        "while (look(x) == 5) x[1] += 2;",
        "are spent; .* thread 3 runs on",
        EmulatedTimeout,
        line="none",
    ),
    "endless loop over a flag": Defect(
        "while (*(volatile int*)x == 5) {}", "every thread waits", EmulatedDeadlock
    ),
}
SOURCE = """
#include <unistd.h>
#include <vector>
extern "C" __device__ const int defect_shared_bytes = 64;
extern __shared__ int dynamic[];
__shared__ int few[4];

__device__ __noinline__ void fill(int* to, int count) {
    for (int i = 0; i < count; ++i) to[i] = 0x01010101;
}
__device__ __noinline__ int overflows(int n) { int local[4]; fill(local, n); return local[3]; }
__device__ __noinline__ int deep(int n) { volatile int a[9]{n}; return n ? deep(n - 1) + a[1] : 0; }
__device__ __noinline__ int huge(int n) { int local[100000]; fill(local, n); return local[n - 1]; }
__device__ __attribute__((noipa)) int look(const int* x) { return x[0]; }
__device__ __noinline__ int* own(int count) { return new int[count]; }
using Function = void (*)();
__device__ __noinline__ Function called(int* at) { return Function(size_t(at) - size_t(at)); }
__device__ __noinline__ void throws(int n) { std::vector<int>(n).at(n); }

extern "C" __global__ void defect(int* x, int n, int which) {
    few[threadIdx.x % 4] = 0;
    x[0] = 5;
    __syncthreads();
    if (threadIdx.x != 3) return;
    switch (which) {
CASES
    }
}
""".replace(
    "CASES",
    "\n".join(f"case {i}: {{ {defect.code} break; }}" for i, defect in enumerate(DEFECTS.values())),
)
LINES = SOURCE.splitlines()
PLAIN = 'extern "C" __global__ void plain(int* x) {\n    x[threadIdx.x] = threadIdx.x * 2;\n}'


def line_of(defect: Defect) -> str:
    text = defect.line or f"{{ {defect.code} break; }}"
    found = [number for number, line in enumerate(LINES, 1) if text in line]
    return f"at kernel.cu:{found[0]}" if found else ""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", DEFECTS)
def test_the_process_survives(name: str) -> None:
    defect = DEFECTS[name]
    around = np.zeros(4096, np.int32)
    x = around[1024:1028]

    with scheduled(budget_seconds=0.1), pytest.raises(defect.error, match=defect.reason) as caught:
        Kernel(SOURCE, "defect")(1, 32, (x, len(x), list(DEFECTS).index(name)))

    if isinstance(caught.value, EmulatedFault):
        assert (caught.value.block, caught.value.thread) == ((0, 0, 0), 3)
    assert line_of(defect) in str(caught.value)
    assert x[0] == 5
    x[:2] = 0
    assert not around.any()


@pytest.fixture(autouse=True)
def correct_kernels_run_on() -> Iterator[None]:
    yield
    after = np.zeros(32, np.int32)
    Kernel(PLAIN, "plain")(1, 32, (after,))
    assert (after == np.arange(32) * 2).all()


# --- pointers that no argument is -------------------------------------------------------------

TABLE = """
struct Pair { float* first; int count; };
extern "C" __global__ void table(float* const* rows, Pair pair, float* known, int at) {
    rows[threadIdx.x][at] = 1;
    pair.first[threadIdx.x] = 2;
    if (at == 3) known[pair.count] = 3;
}
"""


def pair_of(array: np.ndarray, count: int) -> np.ndarray:
    pair = np.zeros((), [("first", np.uint64), ("count", np.int32), ("rest", np.int32)])
    pair["first"], pair["count"] = array.ctypes.data, count
    return pair


def run_table(at: int) -> tuple[np.ndarray, ...]:
    around = np.zeros((3, 1024), np.float32)
    rows, known = np.zeros((4, 4), np.float32), around[1, :16]
    second = np.zeros(4, np.float32)
    pair = pair_of(second, len(known))
    table = np.array([row.ctypes.data for row in rows], np.uint64)
    Kernel(TABLE, "table")(1, 4, (table, pair, known, at))
    return rows, second, around


def test_a_prepared_launch_refuses_an_array_that_was_resized() -> None:
    add = Kernel("__global__ void add(int* x) { x[threadIdx.x] += 1; }", "add")
    array = np.zeros(8, np.int32)
    launch = add.prepare(1, 8, (array,))
    launch()
    assert array.tolist() == [1] * 8
    array.resize(1 << 20, refcheck=False)
    with pytest.raises(StaleTileError, match=r"args\[0\] is made for .* Prepare the launch again"):
        launch()


def test_a_pointer_may_be_below_4_gib() -> None:
    """The heap of a Python that is linked at a fixed address starts there."""
    map_32bit = 0x40  # of <sys/mman.h>
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_32bit
    row = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE, flags=flags), np.float32)
    assert row.ctypes.data < 1 << 32

    Kernel(TABLE, "table")(
        *(1, 1), (np.array([row.ctypes.data], np.uint64), pair_of(row[8:], 0), np.zeros(1, "f4"), 2)
    )

    assert row[2] == 1
    assert row[8] == 2


def test_beyond_an_array_that_is_known_nothing_is_for_all_that() -> None:
    with pytest.raises(EmulatedFault, match=rf"at kernel.cu:6: a write of 4 bytes .*{NO_ARRAY}"):
        run_table(3)


EDITED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int edited_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void edited(
    TMATensorTileArray<Tile> tiles, float* row, int rows, int stores
) {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.full.init(1);
    fence_barrier_init();
    for (int i = 0; i < 8 * 32; ++i) shared.tile.data()[i] = 5;
    fence_async_view_proxy();
    Tile& tile = tiles.at(0);
    tile.edit_in_gmem([&](auto map) {
        map.replace_global_address(row);
        if (rows) map.replace_global_dim(0, rows);
    });
    if (stores) {
        tile.async_store(shared.tile, {0, 0});
        commit_group();
        wait_group<0>();
    } else {
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {0, 0});
        shared.full.wait(0);
    }
}
"""


@pytest.mark.parametrize("stores", [0, 1])
def test_an_edited_map_reaches_no_farther_than_the_array(stores: int) -> None:
    array, around = np.zeros((8, 32), np.float32), np.zeros((16, 32), np.float32)
    tiles = TMATensorTileArray([create_tma_tile(array, (8, 32))])
    kernel = Kernel(EDITED, "edited", types={"Tile": tiles[0]})
    action = "writes" if stores else "reads"

    for _ in range(2):  # the second launch finds the map as the first one left it
        with pytest.raises(EmulatedFault, match=f"{action} 128 bytes .* outside every array"):
            kernel(1, 1, (tiles, around[4:5], 0, stores))
        assert not around[5:].any()
    kernel(1, 1, (tiles, around[4:5], 1, stores))

    assert (around[4] == 5 * stores).all()
    around[4] = 0
    assert not around.any()
