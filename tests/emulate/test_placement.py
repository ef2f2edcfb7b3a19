"""Lanes, tensor maps and tiles that the chip does not find where the kernel expects them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel, create_tma_tile
from tmaasync.emulate import scheduled

SOURCE = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;

struct SharedMemory {
    alignas(1024) unsigned char bytes[16384];
    SharedMemBarrier full;
};
extern "C" __device__ const int strict_shared_bytes = sizeof(SharedMemory);

__device__ __noinline__ void load_by_value(Tile tile, SharedMemory& shared) {
    auto& to = *reinterpret_cast<typename Tile::Shared*>(shared.bytes);
    shared.full.expect_bytes(Tile::kBytes);
    tile.async_copy(to, shared.full, {0, 0});
}

__device__ __noinline__ void load(const Tile& tile, SharedMemory& shared, int offset) {
    const u32 to = ptx::shared_address(shared.bytes) + offset;
    shared.full.expect_bytes(Tile::kBytes);
    ptx::cp_async_bulk_tensor_load<2>(to, &tile.map, {0, 0}, shared.full.address(), 0);
    shared.full.wait(0);
}

extern "C" __global__ void strict(
    const __grid_constant__ Tile tile, const __grid_constant__ Tile target, int* out, int what
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    int value = lane;
CODE
    out[threadIdx.x] = value;
}
"""
FILL = """
        for (int i = threadIdx.x; i < 16384; i += 32) shared.bytes[i] = 0;
        fence_async_view_proxy();
        __syncthreads();
"""
STORE = """
        if (elect()) {
            ptx::cp_async_bulk_tensor_store<2>(
                &target.map, {0, 0}, ptx::shared_address(shared.bytes) + OFFSET, 0
            );
            commit_group();
            wait_group<0>();
        }
"""

LEGAL = {
    "a warp elects": "if (elect()) value = 7;",
    "a butterfly of the whole warp": "value += __shfl_xor_sync(0xffffffff, value, 16);",
    "a butterfly of half a warp": "if (lane < 16) value += __shfl_xor_sync(0xffff, value, 8);",
    "sums down, of which lane 0 is used": """
        if (lane < 16) {
            int sum = lane;
            for (int i = 8; i > 0; i /= 2) sum += __shfl_down_sync(0xffff, sum, i);
            if (lane == 0) value = sum;
        }""",
    "lanes that leave, and the others shuffle": """
        if (lane >= 16) return;
        value = __shfl_sync(0xffffffff, value, lane ^ 8);""",
    "guarded reads beyond the mask": """
        if (lane < 16) {
            const int other = __shfl_sync(0xffff, value, lane + 1);
            if (lane < 15) value = other;
        }""",
    "a parameter by reference": "if (threadIdx.x == 0) load(tile, shared, 0);",
    "a tile at the second pattern": "if (threadIdx.x == 0) load(tile, shared, 1024);",
    "a store from the start": FILL + STORE.replace("OFFSET", "0"),
}


class Defect(NamedTuple):
    """The code, the report, and text of the line that the report names."""

    code: str
    match: str
    line: str


DEFECTS = {
    "half a warp elects": Defect(
        "if (lane >= 16) return;\nif (elect()) value = 1;",
        r"elect.sync is executed by lanes 0 to 15 of warp 0, and lanes 16 to 31 have ended; it "
        r"takes the whole warp. Elect before lanes leave",
        "if (elect()) value = 1;",
    ),
    "a butterfly beyond the mask": Defect(
        "if (lane < 8) value += __shfl_xor_sync(0xff, value, 8);",
        r"shfl.sync: lane 0 .* reads from lane 8, which is not in the mask 0xff: what",
        "__shfl_xor_sync(0xff, value, 8);",
    ),
    "a broadcast from a lane that has ended": Defect(
        "if (lane == 3) return;\nvalue = __shfl_sync(0xffffffff, value, 3);",
        r"shfl.sync: lane 0 .* reads from lane 3, which has ended",
        "__shfl_sync(0xffffffff, value, 3);",
    ),
    "a map in a variable": Defect(
        """
        Tile copied = tile;
        if (threadIdx.x == 0) load(copied, shared, 0);""",
        r"the tensor map lies in local memory, where TMA cannot read it: it is a copy in a "
        r"variable, or an argument passed by value. Use the const __grid_constant__ parameter",
        "cp_async_bulk_tensor_load<2>(",
    ),
    "a map passed by value": Defect(
        "if (threadIdx.x == 0) load_by_value(tile, shared);\nif (what == 999) value = 4;",
        r"the tensor map lies in local memory",
        "tile.async_copy(to, shared.full",
    ),
    "a map in shared memory": Defect(
        FILL
        + """
        if (threadIdx.x == 0) {
            auto& moved = *reinterpret_cast<Tile*>(shared.bytes + 8192);
            moved = tile;
            load(moved, shared, 0);
        }""",
        r"the tensor map lies in shared memory, where TMA cannot read it. Copy it to global",
        "cp_async_bulk_tensor_load<2>(",
    ),
    "a prefetch of a map in a variable": Defect(
        """
        const Tile other = tile;
        other.prefetch_descriptor();
        value = reinterpret_cast<const volatile int*>(&other)[what];""",
        r"the tensor map lies in local memory",
        "other.prefetch_descriptor();",
    ),
    "a swizzled tile at 128": Defect(
        "if (threadIdx.x == 0) load(tile, shared, 128);\nif (what == 998) value = 5;",
        r"a tile with a swizzle of 128 bytes lies at shared offset 128 \(bytes.*\); it must lie at "
        r"a multiple of 1024, where the pattern begins. Declare it alignas\(1024\)",
        "cp_async_bulk_tensor_load<2>(",
    ),
    "a store of a swizzled tile at 256": Defect(
        FILL + STORE.replace("OFFSET", "256"),
        r"swizzle of 128 bytes lies at shared offset 256",
        "cp_async_bulk_tensor_store<2>(",
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


def run(what: str) -> Any:
    tiles = [
        create_tma_tile(np.ones((32, 32), np.float32), (32, 32), swizzle="128B") for _ in range(2)
    ]
    out = np.zeros(32, np.int32)
    kernel = Kernel(TEXT, "strict", types={"Tile": tiles[0]})
    kernel(1, 32, (*tiles, out, list(CODES).index(what)))
    return out


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", LEGAL)
@pytest.mark.parametrize("races", [False, True])
def test_what_the_chip_allows_is_no_fault(what: str, races: bool) -> None:
    for policy in ("round_robin", "random", "adversarial"):
        with scheduled(policy, races=races):
            run(what)


def test_what_lanes_get_stays_right() -> None:
    assert run("sums down, of which lane 0 is used")[0] == 120
    assert list(run("lanes that leave, and the others shuffle")[:16]) == [
        lane ^ 8 for lane in range(16)
    ]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", DEFECTS)
@pytest.mark.parametrize("races", [False, True])
def test_what_the_chip_does_not_allow_is_a_fault(what: str, races: bool) -> None:
    _, match, line = DEFECTS[what]

    with scheduled(races=races), pytest.raises(EmulatedFault, match=match) as caught:
        run(what)

    assert caught.value.source is not None
    lines = TEXT.splitlines()
    assert line in lines[int(caught.value.source.removeprefix("kernel.cu:")) - 1]


OFF_PATTERN = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;
struct SharedMemory { alignas(1024) unsigned char bytes[32768]; };
extern "C" __device__ const int multiply_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void multiply(int offset, int base, float* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    for (int i = threadIdx.x; i < 32768; i += 128) shared.bytes[i] = 0;
    fence_async_view_proxy();
    __syncthreads();
    float sums[4];
    const u32 at = ptx::shared_address(shared.bytes) + offset;
    const u64 operand = initialize_wgmma_descriptor<Swizzle::k128B>(at, 1, 1024) | u64(base) << 49;
    wgmma_fence();
    wgmma_ss_atom<bfloat16>(sums, operand, operand, false);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    out[threadIdx.x] = sums[0];
}
"""


@pytest.mark.parametrize(("offset", "base"), [(0, 0), (96, 0), (2048, 0), (128, 1)])
def test_operands_that_start_with_their_pattern_are_no_fault(offset: int, base: int) -> None:
    Kernel(OFF_PATTERN, "multiply")(1, 128, (offset, base, np.zeros(128, np.float32)))


@pytest.mark.parametrize("offset", [128, 512, 1024 + 256])
def test_an_operand_of_wgmma_off_its_pattern_is_a_fault(offset: int) -> None:
    match = rf"wgmma reads A at shared offset {offset} \(bytes.*\), and its swizzle begins at "

    with pytest.raises(EmulatedFault, match=match + "multiples of 1024 bytes") as caught:
        Kernel(OFF_PATTERN, "multiply")(1, 128, (offset, 0, np.zeros(128, np.float32)))

    assert caught.value.source == "kernel.cu:16"
