"""Programmatic dependent launches that read the results of the kernel before without waiting."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel, create_tma_tile
from tmaasync.emulate import scheduled

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int first_shared_bytes = sizeof(SharedMemory);
extern "C" __device__ const int second_shared_bytes = sizeof(SharedMemory);

__device__ void load(SharedMemory& shared, const Tile& tile) {
    shared.full.expect_bytes(Tile::kBytes);
    tile.async_copy(shared.tile, shared.full, {0, 0});
    shared.full.wait(0);
}

extern "C" __global__ void first(
    const __grid_constant__ Tile tile, const float* weights, float* array, int uses_tma
) {
    auto& shared = dynamic_shared<SharedMemory>();
    launch_dependent_grids();
    if (!uses_tma) array[threadIdx.x] = weights[threadIdx.x];
    if (uses_tma) shared.tile.data()[threadIdx.x] = weights[threadIdx.x];
    fence_async_view_proxy();
    __syncthreads();
    if (uses_tma && threadIdx.x == 0) {
        tile.async_store(shared.tile, {0, 0});
        commit_group();
        wait_group<0>();
    }
}

extern "C" __global__ void second(
    const __grid_constant__ Tile tile, const float* weights, float* array, float* out, int what
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    float value = 0;
CODE
    out[threadIdx.x] = value;
}
"""
LEGAL = {
    "every thread waits": "wait_for_previous_grids();\nvalue = array[threadIdx.x];",
    "weights first": "value = weights[3];\nwait_for_previous_grids();\nvalue += array[3];",
    "one thread waits, and the others meet it": """
        if (threadIdx.x == 40) wait_for_previous_grids();
        __syncthreads();
        value = array[threadIdx.x];""",
    "the producer waits": """
        if (threadIdx.x == 0) {
            wait_for_previous_grids();
            load(shared, tile);
        }
        __syncthreads();""",
}


class Defect(NamedTuple):
    """The code, text of the line that the report names, and whether it is found without races."""

    code: str
    line: str
    is_copy: bool = False


DEFECTS = {
    "no wait": Defect("value = array[threadIdx.x];", "value = array[threadIdx.x];"),
    "a write without a wait": Defect("array[threadIdx.x] = 5;", "array[threadIdx.x] = 5;"),
    "one thread waits, and the others do not meet it": Defect(
        "if (threadIdx.x == 0) wait_for_previous_grids();\nvalue = array[threadIdx.x ^ 1];",
        "value = array[threadIdx.x ^ 1];",
    ),
    "a load without a wait": Defect(
        "if (threadIdx.x == 0) load(shared, tile);\n__syncthreads();\nvalue = 1;",
        "tile.async_copy(shared.tile",
        True,
    ),
}
CODES = {**LEGAL, **{name: defect.code for name, defect in DEFECTS.items()}}
TEXT = SOURCE.replace(
    "CODE",
    "\n".join(
        f"    if (what == {number}) {{\n{code}\n    }}"
        for number, code in enumerate(CODES.values())
    ),
)


def run(what: str, *, uses_tma: bool, pdl: bool = True) -> None:
    weights, array = np.ones(64, np.float32), np.zeros((8, 8), np.float32)
    out: Any = np.zeros(64, np.float32)
    tile = create_tma_tile(array, (8, 8))
    first, second = (Kernel(TEXT, name, types={"Tile": tile}) for name in ("first", "second"))
    first(1, 64, (tile, weights, array, int(uses_tma)))
    second(1, 64, (tile, weights, array, out, list(CODES).index(what)), pdl=pdl)


@pytest.mark.parametrize("uses_tma", [False, True])
def test_kernels_that_wait_run(uses_tma: bool) -> None:
    for races in (False, True):
        for what in LEGAL:
            with scheduled(races=races):
                run(what, uses_tma=uses_tma)
        for what in DEFECTS:
            if not (races and "do not meet" in what):
                with scheduled(races=races):
                    run(what, uses_tma=uses_tma, pdl=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("what", "uses_tma", "races"),
    [
        (what, uses_tma, races)
        for what, defect in DEFECTS.items()
        for uses_tma in (False, True)
        for races in (True, False)
        if races or (defect.is_copy and uses_tma)
    ],
)
def test_an_array_that_the_kernel_before_wrote_is_a_fault(
    what: str, uses_tma: bool, races: bool
) -> None:
    line = DEFECTS[what].line

    with (
        scheduled(races=races),
        pytest.raises(
            EmulatedFault,
            match=r"an access to 0x\w+ \(\w+[\[\d\]]+\), in memory that the kernel before wrote as "
            r"(array|tile)[\[\d\]]+ of first, ahead of wait_for_previous_grids\(\): with pdl=True",
        ) as caught,
    ):
        run(what, uses_tma=uses_tma)

    assert caught.value.source is not None
    assert line in TEXT.splitlines()[int(caught.value.source.removeprefix("kernel.cu:")) - 1]


REUSED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void first(float* scratch) {
    launch_dependent_grids();
    scratch[blockIdx.x * 64 + threadIdx.x] = 1;
}
extern "C" __global__ void second(const float* bias, float* out) {
    out[threadIdx.x] = bias[threadIdx.x];
}
"""


@pytest.mark.parametrize("argument", ["bias", "out"])
def test_memory_that_another_array_of_the_kernel_before_had_is_named_as_both(argument: str) -> None:
    """An allocator gives the memory of a freed array, `scratch`, to an array of the next launch."""
    pool, other = np.zeros(256, np.float32), np.zeros(64, np.float32)
    first, second = (Kernel(REUSED, name) for name in ("first", "second"))
    first(4, 64, (pool,))
    arrays = (pool[64:128], other) if argument == "bias" else (other, pool[64:128])
    with pytest.raises(
        EmulatedFault,
        match=rf"an access to 0x\w+ \({argument}\[\d+\]\), in memory that the kernel before wrote "
        r"as scratch\[\d+\] of first \(if that array was freed, the memory is in use again\), "
        r"ahead of wait_for_previous_grids\(\)",
    ):
        second(1, 64, arrays, pdl=True)


def test_an_array_that_an_earlier_kernel_wrote_is_ready() -> None:
    weights, array = np.ones(64, np.float32), np.zeros((8, 8), np.float32)
    other, out = np.zeros((8, 8), np.float32), np.zeros(64, np.float32)
    tiles = [create_tma_tile(each, (8, 8)) for each in (array, other)]
    first, second = (Kernel(TEXT, name, types={"Tile": tiles[0]}) for name in ("first", "second"))

    first(1, 64, (tiles[0], weights, array, 0))
    first(1, 64, (tiles[1], weights, other, 0))
    second(1, 64, (tiles[0], weights, array, out, list(CODES).index("no wait")), pdl=True)
