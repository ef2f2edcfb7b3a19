"""Shared memory and registers that nothing has written, where wgmma or TMA reads them."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tmaasync import EmulatedFault, EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.errors import TMAError

SOURCE = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;
using OperandA = WgmmaOperand<ATile, Major::kK>;
using OperandB = WgmmaOperand<BTile, Major::kK>;

struct SharedMemory {
    alignas(1024) ATile::Shared a;
    alignas(1024) BTile::Shared b;
    alignas(1024) CTile::Shared out;
    SharedMemBarrier full;
};
extern "C" __device__ const int defects_shared_bytes = sizeof(SharedMemory);

__device__ void clear(void* target, int begin, int end) {
    for (int i = begin + threadIdx.x; i < end; i += 128) static_cast<char*>(target)[i] = 0;
    fence_async_view_proxy();
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(128, 1) defects(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    float* out,
    int what
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    float sums[1][1][32];
    u32 held[1][4][4] = {};
CODE
}
"""
LOAD_A = """
        if (threadIdx.x == 0) {
            shared.full.expect_bytes(ATile::kBytes);
            a.async_copy(shared.a, shared.full, {0, 0});
        }
"""
LOAD = """
        if (threadIdx.x == 0) {
            shared.full.expect_bytes(ATile::kBytes + BTile::kBytes);
            a.async_copy(shared.a, shared.full, {0, 0});
            b.async_copy(shared.b, shared.full, {0, 0});
        }
"""
WAIT = "        shared.full.wait(0);\n"
MULTIPLY = "        wgmma<OperandA, OperandB>(sums, shared.a, shared.b, false);\n"
STORE = """
        if (threadIdx.x == 0) {
            c.async_store(shared.out, {0, 0});
            commit_group();
            wait_group<0>();
        }
"""

LEGAL = {
    "everything written": LOAD
    + WAIT
    + MULTIPLY
    + "        clear(&shared.out, 0, CTile::kBytes);\n"
    + STORE,
    "the NaN of an MMA": """
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            shared.out.data()[i] = __int_as_float(0x7fffffff);
        }
        fence_async_view_proxy();
        __syncthreads();
"""
    + STORE,
    "rows of A whose results nobody uses": "        clear(&shared.a, 0, 16 * 128);\n"
    "        clear(&shared.b, 0, BTile::kBytes);\n"
    + MULTIPLY
    + "        if (threadIdx.x < 32) out[threadIdx.x] = sums[0][0][0];\n",
    "a store clipped within 16 bytes": """
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            if (i % 64 < 2) shared.out.data()[i] = 1;
        }
        fence_async_view_proxy();
        __syncthreads();
        if (threadIdx.x == 0) {
            c.async_store(shared.out, {60, 0});  // columns 60 and 61 of 62
            commit_group();
            wait_group<0>();
        }
""",
    "a store clipped to what was written": "        clear(&shared.out, 0, CTile::kBytes / 2);\n"
    "        if (threadIdx.x == 0) {\n            c.async_store(shared.out, {0, 32});\n"
    "            commit_group();\n            wait_group<0>();\n        }\n",
    "accumulators set to zero": LOAD
    + WAIT
    + "        for (float& sum : sums[0][0]) sum = 0;\n"
    + MULTIPLY.replace("false", "true"),
    "two groups of A in registers": LOAD
    + WAIT
    + """
        wgmma_rs<OperandB, bfloat16, -1>(sums, held, shared.b, false);
        wgmma_wait_group<0>();
        for (auto& step : held[0]) step[0] = 1;
        wgmma_rs<OperandB, bfloat16>(sums, held, shared.b, true);
""",
}


class Defect(NamedTuple):
    """The code, the report, text of the line that it names, and the class with races."""

    code: str
    match: str
    line: str
    races: type[TMAError] = EmulatedFault


LINE = r" at kernel.cu:\d+"
DEFECTS = {
    "B neither loaded nor expected": Defect(
        LOAD_A + WAIT + MULTIPLY,
        r"wgmma reads B at shared offset 8192 \(b\), which nothing has written. Load or",
        "wgmma<OperandA",
    ),
    "no wait for cp.async": Defect(
        LOAD.replace("a.async_copy(shared.a, shared.full, {0, 0});", "").replace(
            "ATile::kBytes + ", ""
        )
        + WAIT
        + """
        for (int i = threadIdx.x; i < 512; i += 128) {
            auto* to = reinterpret_cast<char*>(&shared.a) + i * 16;
            cp_async_gs<16>(to, reinterpret_cast<const char*>(out) + i * 16);
        }
        cp_async_commit();
"""
        + MULTIPLY,
        r"wgmma reads A .*A cp.async to these bytes is in flight, issued by thread \d+"
        rf"{LINE}, 16 bytes to a: that thread waits with cp_async_wait<0>\(\), and then all "
        r"threads synchronise",
        "wgmma<OperandA",
    ),
    "half of the output": Defect(
        "        clear(&shared.out, 0, CTile::kBytes / 2);\n" + STORE,
        r"a TMA store takes 16 bytes at shared offset 24576 \(out.*\), which nothing has written",
        "c.async_store(shared.out, {0, 0})",
    ),
    "accumulators without a value": Defect(
        LOAD + WAIT + MULTIPLY.replace("false", "true"),
        r"wgmma adds to accumulators that nothing has written, register 0 of 32. Pass accumulate = "
        r"false to the first wgmma of a tile",
        "true);",
    ),
    "no fence before the first": Defect(
        LOAD
        + WAIT
        + """
        wgmma_tile<OperandA, OperandB>(
            sums[0][0], OperandA::descriptor(shared.a, 0), OperandB::descriptor(shared.b, 0), false
        );
        wgmma_commit_group();
        wgmma_wait_group<0>();
""",
        r"wgmma_fence\(\) before",
        "wgmma_tile<",
        EmulatedRace,
    ),
    "a lone warp": Defect(
        LOAD + WAIT + "        if (warp_index() == 0) {\n" + MULTIPLY + "        }\n",
        r"wgmma_fence\(\) is executed 1 times by thread 0 of warp 0 and 0 times by thread 32 of "
        r"warp 1, which belong to one warpgroup. All 128 threads execute",
        "wgmma<OperandA",
    ),
    "a fence by a lone warp": Defect(
        "        if (warp_index() == 3) wgmma_fence();\n",
        r"wgmma_fence\(\) is executed 1 times by thread 96 of warp 3 and 0 times by thread 0",
        "if (warp_index() == 3) wgmma_fence();",
    ),
}
RACES = {
    "three floats of four": Defect(
        """
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            if (i % 4 != 3) shared.out.data()[i] = 1;
        }
        fence_async_view_proxy();
        __syncthreads();
"""
        + STORE,
        r"a TMA store takes 4 bytes at shared offset 16396 \(out\), which nothing has written",
        "c.async_store(shared.out, {0, 0})",
    ),
    "three values of eight of A": Defect(
        """
        for (int i = threadIdx.x; i < 64 * 64; i += 128) {
            if (i % 8 < 3) shared.a.data()[i] = bfloat16(1.0f);
        }
        clear(&shared.b, 0, BTile::kBytes);
"""
        + MULTIPLY,
        r"wgmma reads A at shared offset 6 \(a\), which nothing has written. Load or",
        "wgmma<OperandA",
    ),
    "A overwritten in flight": Defect(
        LOAD
        + WAIT
        + """
        wgmma_rs<OperandB, bfloat16, -1>(sums, held, shared.b, false);
        held[0][3][1] = what;
        wgmma_wait_group<0>();
        out[0] = sums[0][0][0] + held[0][3][1];
""",
        r"a race on A's registers of wgmma:\n.*wgmma\n.*registers\n.*wait_group",
        "held[0][3][1] = what;",
        EmulatedRace,
    ),
    "A written without a fence": Defect(
        LOAD
        + WAIT
        + """
        wgmma_rs<OperandB, bfloat16>(sums, held, shared.b, false);
        held[0][2][1] = what;
        wgmma_tile_rs<OperandB, bfloat16>(
            sums[0][0], held[0], OperandB::descriptor(shared.b, 0), true
        );
        wgmma_commit_group();
        wgmma_wait_group<0>();
        out[0] = sums[0][0][0];
""",
        r"a race on A's registers of wgmma:\n.*registers\n.*wgmma\n.*wgmma_fence\(\)",
        "held[0][2][1] = what;",
        EmulatedRace,
    ),
}
CODES = {**LEGAL, **{name: defect.code for name, defect in (DEFECTS | RACES).items()}}
TEXT = SOURCE.replace(
    "CODE",
    "\n".join(
        f"    if (what == {number}) {{\n{code}    }}" for number, code in enumerate(CODES.values())
    ),
)


def run(what: str, threads: int = 128, fill: int = 0) -> None:
    a, b = (np.full((64, 64), fill, np.uint16).view(ml_dtypes.bfloat16) for _ in range(2))
    tiles: list[Any] = [create_tma_tile(array, (64, 64), swizzle="128B") for array in (a, b)]
    tiles.append(create_tma_tile(np.zeros((64, 64), np.float32)[:, :62], (64, 64)))
    kernel = Kernel(
        TEXT, "defects", types=dict(zip(("ATile", "BTile", "CTile"), tiles, strict=True))
    )
    out = np.zeros(8192, np.float32)
    kernel(1, threads, (*tiles, out, list(CODES).index(what)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", LEGAL)
@pytest.mark.parametrize("races", [False, True])
def test_what_is_written_where_it_is_used_is_no_fault(what: str, races: bool) -> None:
    for policy in ("round_robin", "adversarial"):
        with scheduled(policy, races=races):
            run(what)
            run(what, fill=0xFFFF)
            run(what, fill=0x7FFF)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("what", "races"),
    [*((what, False) for what in DEFECTS), *((what, True) for what in DEFECTS | RACES)],
)
def test_what_nothing_has_written_is_a_fault(what: str, races: bool) -> None:
    _, match, line, expected = (DEFECTS | RACES)[what]

    with scheduled(races=races), pytest.raises(TMAError, match=match) as caught:
        run(what)

    error = caught.value
    assert type(error) is (expected if races else EmulatedFault)
    if isinstance(error, EmulatedRace):
        places = [error.first.source, error.second.source]
    else:
        assert isinstance(error, EmulatedFault)
        places = [error.source]
    lines = TEXT.splitlines()
    assert any(line in lines[int(str(place).removeprefix("kernel.cu:")) - 1] for place in places)


def test_a_block_that_is_no_whole_warpgroup_cannot_multiply() -> None:
    with (
        scheduled(races=False),
        pytest.raises(EmulatedFault, match=r"a warpgroup of 64 threads; it takes 128"),
    ):
        run("accumulators set to zero", threads=64)
