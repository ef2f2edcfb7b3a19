"""Each report names the class of the defect, the line, and the step that is missing."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.errors import TMAError

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tiles[3];
    alignas(128) float plain[128];
    SharedMemBarrier full[3], credit, empty[3];
};
extern "C" __device__ const int texts_shared_bytes = sizeof(SharedMemory);

__device__ void fill(SharedMemory& s) {
    for (int i = threadIdx.x; i < 128; i += blockDim.x) s.tiles[0].data()[i] = s.plain[i] = 1;
    fence_async_view_proxy();
}

__device__ __forceinline__ void push(SharedMemory& s, const void* to) {
    const u32 peer = 1 - block_rank_in_cluster();
    ptx::cp_async_bulk_push(
        ptx::mapa(ptx::shared_address(to), peer), ptx::shared_address(&s.tiles[0]), 512,
        ptx::mapa(s.credit.address(), peer)
    );
}

__device__ void wait_for(int* flag) {
    while (atomicAdd(flag, 0) == 0) {}
    __threadfence();
}

extern "C" __global__ void texts(
    const __grid_constant__ Tile tile, float* array, float* total, int* flags, int what
) {
    auto& s = dynamic_shared<SharedMemory>();
    const u32 thread = threadIdx.x, lane = thread % 32, block = blockIdx.x;
    if (thread == 0) {
        for (auto& barrier : s.full) barrier.init(1);
        for (int stage = 0; stage < 2; ++stage) s.empty[stage].init(1);
        s.credit.init(1);
        fence_barrier_init();
    }
    if (blocks_in_cluster() > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
CODE
}
"""
LOAD = """
if (thread == 0) {
    s.full[1].expect_bytes(Tile::kBytes);
    tile.async_copy(s.tiles[1], s.full[1], {0, 0});  //@load
}
"""
TWO_LOADS = """
if (thread == 0) {
    s.full[1].expect_bytes(Tile::kBytes);
    tile.async_copy(s.tiles[2], s.full[1], {0, 0});
    tile.async_copy(s.tiles[1], s.full[1], {0, 0});  //@late
}
"""
COPY = "if (thread < 32) cp_async_gs<16>(s.plain + 4 * thread, array + 4 * thread);  //@copy\n"
STORE = """if (thread == 0) {
    tile.async_store(s.tiles[0], {0, 0});  //@store
    commit_group();
    wait_group<0>();
}
"""
FLAG = "if (thread == 0) atomicExch(flags, 1);\n"
SHUFFLE = "total[thread] = __shfl_xor_sync(mask, thread, 8);  //@shuffle\n"


class Text(NamedTuple):
    """A defect; ``{at:load}`` in the text is the place of the line marked ``//@load``."""

    code: str
    text: str
    line: str = ""  # the mark of the line that a fault is at
    error: type[TMAError] = EmulatedFault
    plain: bool = False  # whether a launch without races reports the same, at the same line
    blocks: int = 1
    cluster: int | None = None


# --- a read of what is in flight ----------------------------------------------------------------

UNWRITTEN = r", which nothing has written\. "
LOAD_IN_FLIGHT = (
    UNWRITTEN + r"A TMA load to these bytes is in flight, issued by thread 0 at {at:load}, "
    r"512 bytes to tiles\[1\]: wait for its phase of full\[1\] first\."
)
COPY_IN_FLIGHT = (
    UNWRITTEN + r"A cp.async to these bytes is in flight, issued by thread \d+ at {at:copy}, "
    r"16 bytes to plain\[\d+\]: that thread "
)
READS = {
    "no wait on the full barrier": Text(
        LOAD + "total[thread] = s.tiles[1].data()[thread];  //@read\ns.full[1].wait(0);",
        r"a read of 4 bytes at shared offset \d+ \(tiles\[1\]\)" + LOAD_IN_FLIGHT,
        "read",
    ),
    "a wait for the wrong phase": Text(
        LOAD + "s.full[1].wait(1);  //@wait\ntotal[thread] = s.tiles[1].data()[thread];  //@read",
        LOAD_IN_FLIGHT + r" The wait of thread \d+ at {at:wait} names parity 1, for which a new "
        r"barrier does not wait: a consumer's first wait names parity 0, a producer's 1\.",
        "read",
    ),
    "a wait that is not repeated": Text(
        LOAD + "if (thread == 0) {\n    s.full[1].try_wait(0);  //@wait\n"
        "    total[0] = s.tiles[1].data()[0];  //@read\n}\ns.full[1].wait(0);",
        LOAD_IN_FLIGHT + r" The mbarrier.try_wait of thread 0 at {at:wait} returned false, as it "
        r"may at any time: repeat it until it returns true\.",
        "read",
    ),
    "cp.async without a wait": Text(
        COPY + "cp_async_commit();\ntotal[thread] = s.plain[thread];  //@read\ncp_async_wait<0>();",
        COPY_IN_FLIGHT + r"waits with cp_async_wait<0>\(\), and then all threads synchronise: "
        r"__syncthreads\(\)\.",
        "read",
    ),
    "cp.async that is not committed": Text(
        COPY + "cp_async_wait<0>();\n__syncthreads();\n"
        "total[thread] = s.plain[thread];  //@read\ncp_async_wait_all();",
        COPY_IN_FLIGHT + r"calls cp_async_commit\(\) and cp_async_wait<0>\(\), and then",
        "read",
    ),
    "cp.async that arrives on a barrier": Text(
        COPY + "if (thread < 32) mbarrier_cp_async_arrive(s.full[2]);\n__syncthreads();\n"
        "total[thread] = s.plain[thread];  //@read\n"
        "if (thread == 0) s.full[2].arrive();\ns.full[2].wait(0);",
        UNWRITTEN + r"A cp.async .* at {at:copy}, .*: wait for the phase of full\[2\] that it "
        r"arrives on\.",
        "read",
    ),
    "a load into the memory of a peer": Text(
        LOAD + "cluster_sync();\n"
        "auto* peer = map_shared_rank(s.tiles[1].data(), 1 - block_rank_in_cluster());\n"
        "if (block == 1) total[thread] = peer[thread];  //@read\n"
        "s.full[1].wait(0);\ncluster_sync();",
        r"a read of 4 bytes at shared offset \d+ \(tiles\[1\]\) of CTA 0 of the cluster, which "
        r"nothing has written\. A TMA load to these bytes is in flight, issued by thread 0 at "
        r"{at:load} of CTA 0 of the cluster, 512 bytes to tiles\[1\]: a thread of that CTA waits "
        r"for its phase of full\[1\], and then cluster_sync\(\)",
        "read",
        blocks=2,
        cluster=2,
    ),
    "a push of a peer": Text(
        "fill(s);\nif (thread == 0) s.credit.expect_bytes(512);\ncluster_sync();\n"
        "if (thread == 0) push(s, &s.tiles[2]);\n"
        "if (block == 1) total[thread] = s.tiles[2].data()[thread];  //@read\n"
        "s.credit.wait(0);\ncluster_sync();",
        UNWRITTEN + r"A TMA copy between CTAs to these bytes is in flight, issued by thread 0 at "
        r"kernel.cu:\d+ of CTA 0 of the cluster, 512 bytes to tiles\[2\]: wait for its phase of "
        r"credit first",
        "read",
        blocks=2,
        cluster=2,
    ),
    "a write to a peer without a barrier of the cluster": Text(
        "if (thread == 0) s.plain[0] = 1;\ncluster_sync();\n"
        "if (block == 1 && thread == 0) map_shared_rank(s.plain, 0)[0] = 5;\n__syncthreads();\n"
        "if (block == 0 && thread == 1) total[0] = s.plain[0];\ncluster_sync();",
        r"no barrier orders the two, which belong to two CTAs of a cluster\. Put cluster_sync\(\)",
        error=EmulatedRace,
        blocks=2,
        cluster=2,
    ),
    **{
        f"no barrier between threads of {what}": Text(
            "s.plain[thread] = 1;\n__syncthreads();\nif (thread == 0) s.plain[0] = 5;\n"
            f"if (thread == {reader}) total[0] = s.plain[0];\n__syncthreads();",
            f"no barrier orders the two{remedy}",
            error=EmulatedRace,
        )
        for what, reader, remedy in (
            ("a warp", 31, r", threads of one warp\. Let them synchronise: __syncwarp\(\), or"),
            ("two warps", 32, r"\. Put __syncthreads\(\)"),
        )
    },
    "a read of what a lane of the warp adds to": Text(
        "if (thread == 0) s.plain[0] = 1;\n__syncthreads();\n"
        "if (thread == 0) atomicAdd(s.plain, 1.0f);\n"
        "if (thread == 1) total[0] = s.plain[0];\n__syncthreads();",
        r"changes by an atomic operation\..* the two synchronise: __syncwarp\(\), or",
        error=EmulatedRace,
    ),
    "a stage that is loaded again while it is read": Text(
        "for (int i = 0; i < 2; ++i) {" + LOAD + "s.full[1].wait(i);\n"
        "if (thread == 40) total[i] = s.tiles[1].data()[0];\n}",
        r"may not have landed\. Wait on full\[1\] before the other access, or let its readers "
        r"synchronise before the next load is issued",
        error=EmulatedRace,
    ),
}

# --- stores --------------------------------------------------------------------------------------

STORES = {
    "no barrier before the store": Text(
        "fill(s);\n" + STORE,
        r"a TMA store takes \d+ bytes at shared offset \d+ \(tiles\[0\]\)"
        + UNWRITTEN
        + "Write the "
        r"whole tile, by threads that each call fence_async_view_proxy\(\) after it and then "
        r"synchronise with the one that issues the copy: __syncthreads\(\)",
        "store",
        plain=True,
    ),
    "wait_group<0> and no __threadfence": Text(
        "if (block == 0) {\nfill(s);\n__syncthreads();\n" + STORE + FLAG + "} else if (thread == 0)"
        " {\n    wait_for(flags);\n    total[0] = array[0];  //@read\n}",
        r"a race on \w+\[0\].*\n.*{at:store}: TMA store\n.*{at:read}: ordinary read\nthe store has "
        r"completed, and nothing orders the other access after it\. After wait_group<0>\(\) the "
        r"storing thread calls __threadfence\(\) and then sets a flag",
        error=EmulatedRace,
        blocks=2,
    ),
    "wait_group_read<0> before another block reads": Text(
        "if (block == 0) {\nfill(s);\n__syncthreads();\n"
        + STORE.replace("wait_group<0>", "wait_group_read<0>")
        + "__threadfence();\n"
        + FLAG
        + "} else if (thread == 0) {\n    wait_for(flags);\n    total[0] = array[0];  //@read\n}",
        r"the store may not have reached global memory\. Wait with wait_group<0>\(\) before the "
        r"other access; wait_group_read is not enough\. A thread of another block needs a flag too",
        error=EmulatedRace,
        blocks=2,
    ),
    "two blocks store one tile": Text(
        "fill(s);\n__syncthreads();\n" + STORE,
        r"a race on tile\[0\]\[0\] .*\n.*block \(0, .*{at:store}.*\n.*block \(1, .*{at:store}.*\n"
        r"two stores write the same bytes\. Let one thread of one block store each tile",
        error=EmulatedRace,
        blocks=2,
    ),
    "a buffer that another thread writes again": Text(
        "fill(s);\n__syncthreads();\n" + STORE + "if (thread == 32) s.tiles[0].data()[5] = 2;",
        r"the store may still be reading its buffer\. Wait with wait_group_read in the storing "
        r"thread; then it and the threads that write the buffer again "
        r"synchronise: __syncthreads\(\)",
        error=EmulatedRace,
    ),
    "a thread that does not commit its store": Text(
        "fill(s);\n__syncthreads();\n"
        + STORE.replace("    wait_group<0>();\n", "").replace("    commit_group();\n", ""),
        r"one of them from tiles\[0\]\. Commit them with commit_group\(\) and call",
        "store",
        plain=True,
    ),
}

# --- global memory -------------------------------------------------------------------------------

WRITE = "array[thread] = 1;  //@write\n"
GLOBAL = {
    "a write and a load of another block": Text(
        "if (block == 0) {\n" + WRITE + "} else {" + LOAD + "s.full[1].wait(0);\n}",
        r"a race on tile\[0\]\[0\] .*\n.*{at:write}: ordinary write\n.*{at:load}: TMA load\n"
        r"nothing orders the write before the load, which another block issues\. After the write, "
        r"each writing thread calls __threadfence\(\) and then sets a flag by an atomic operation; "
        r"the other polls the flag by an atomic operation and then calls __threadfence\(\) and "
        r"ptx::fence_proxy_async_global\(\), and then loads",
        error=EmulatedRace,
        blocks=2,
    ),
    "a write and a load of the same block": Text(
        WRITE + "__syncthreads();\n" + LOAD + "s.full[1].wait(0);",
        r"the write was not made visible to TMA\. Every writing thread calls "
        r"ptx::fence_proxy_async_global\(\) after it",
        error=EmulatedRace,
    ),
    "a relaxed arrival after ordinary reads": Text(
        LOAD + "s.full[1].wait(0);\nif (thread == 32) {\n"
        "    total[0] = s.tiles[1].data()[0];  //@read\n"
        "    s.empty[1].arrive_cluster_relaxed(0);\n}\nif (thread == 0) {\n"
        "    s.empty[1].wait(0);\n    s.full[1].expect_bytes(Tile::kBytes);\n"
        "    tile.async_copy(s.tiles[1], s.full[1], {0, 0});\n}\ns.full[1].wait(1);",
        r"\n.*{at:read}: ordinary read\n.*TMA load\nthe reader arrives on empty\[1\] with a "
        r"relaxed arrival, which orders no ordinary read before it\. Arrive with arrive\(\)",
        error=EmulatedRace,
    ),
    "two threads write one element": Text(
        "total[thread / 2 + 12] = thread;  //@write",
        r"a race on total\[\d+\] \(global address 0x\w+\):\n.*{at:write}.*\n.*{at:write}.*\ntwo "
        r"threads write the same element\. Check the index",
        error=EmulatedRace,
    ),
    "two blocks without a flag": Text(
        "if (thread == 0 && block == 0) total[3] = 1;  //@write\n"
        "if (thread == 0 && block == 1) total[4] = total[3];  //@read",
        r"a race on total\[3\] .*\n.*{at:write}.*\n.*{at:read}.*\nno flag orders the two, and "
        r"__syncthreads\(\) does not reach another block\. The thread that comes first calls "
        r"__threadfence\(\)",
        error=EmulatedRace,
        blocks=2,
    ),
}

# --- loads and mbarriers -------------------------------------------------------------------------

BARRIERS = {
    "a phase that expects too few bytes": Text(
        TWO_LOADS + "s.full[1].wait(0);",
        r"the CTA ends while a TMA load to .* \(tiles\[[12]\]\) is in flight: full\[1\] completed "
        r"phase 0 with 512 bytes expected, and its copies deliver 1024\. Expect the bytes of all",
        "late",
        plain=True,
    ),
    "an mbarrier overwritten": Text(
        "if (thread == 32) s.plain[130] = 7;  //@write\n__syncthreads();\n"
        "if (thread == 0) s.full[1].arrive();",
        r"a write of 4 bytes at shared offset 2056 overwrites full\[1\], which is in use\. Check",
        "write",
    ),
    "an index beyond the barriers": Text(
        "if (thread == 0) s.empty[3 + flags[9]].arrive();  //@arrive",
        r"empty\[3\] of 3 is used before mbarrier.init",
        "arrive",
        plain=True,
    ),
    "one arrival too many": Text(
        "if (thread == 0) {\n    s.empty[0].expect_tx(16);\n    s.empty[0].arrive();  //@first\n}\n"
        "__syncthreads();\nif (thread == 5) s.empty[0].arrive();  //@arrive",
        r"empty\[0\] gets 1 arrival in phase 0, which counts 1 and waits for no more; thread 0 at "
        r"{at:first} arrived first; the phase lasts until 16 bytes have landed, and until then no "
        r"consumer releases the stage: a consumer's first wait names parity 0, a producer's 1\. "
        r"Wait for the "
        r"empty barrier before a stage is filled again, and let no more threads arrive than "
        r"init\(\) counts",
        "arrive",
        plain=True,
    ),
    "a push that is not waited for": Text(
        "fill(s);\ncluster_sync();\nif (thread == 0) s.credit.expect_bytes(512);\ncluster_sync();\n"
        "if (thread == 0 && block == 1) push(s, &s.tiles[2]);\n"
        "if (block == 1) s.credit.complete_transaction(1, 512, thread == 0);\ncluster_sync();",
        r"the CTA ends while a TMA copy between CTAs to shared offset 1024 \(tiles\[2\]\) of CTA 0 "
        r"of the cluster is in flight\. Wait on credit",
        plain=True,
        blocks=2,
        cluster=2,
    ),
}

# --- masks ---------------------------------------------------------------------------------------

MASKS = {
    "half a warp elects, the others wait": Text(
        "if (lane < 16) {\n    if (elect()) total[0] = 1;  //@elect\n} else {\n"
        "    __syncthreads();  //@wait\n}",
        r"lanes 0 to 15 of warp 0 execute elect.sync with the mask 0xffffffff, and lanes 16 to 31, "
        r"which it names, do not: lane 16 waits in barrier.cta.sync at {at:wait}\. Let all lanes "
        r"that the mask names execute it",
        "elect",
        plain=True,
    ),
    "masks that differ": Text(
        "const unsigned mask = lane < 16 ? 0xffffffffu : 0xffff0000u;\n" + SHUFFLE,
        r"lanes 0 to 15 of warp 0 execute shfl.sync with the mask 0xffffffff, and lanes 16 to 31, "
        r"which it names, with the mask 0xffff0000: the result is undefined\. Pass one mask",
        "shuffle",
        plain=True,
    ),
    "a mask without the own lane": Text(
        "if (__ballot_sync(0xffff0000u, thread == 3)) total[thread] = 1;  //@vote",
        r"lane 0 of warp 0 executes vote.sync with the mask 0xffff0000, which does not name it: "
        r"the result is undefined\. Name every lane that executes it",
        "vote",
        plain=True,
    ),
    "lanes in different instructions": Text(
        "if (lane == 0) __syncwarp();  //@sync\nelect();  //@elect",
        r"the lanes of one warp are at __syncwarp \(lane 0 at {at:sync}\) and at elect.sync \(lane "
        r"1\); all lanes of the mask 0xffffffff execute the same one",
        "elect",
        plain=True,
    ),
    "a lane that waits for an mbarrier": Text(
        "if (lane == 0) s.full[0].wait(0);  //@wait\n__syncwarp();",
        r"{at:wait}: mbarrier.try_wait.parity on full\[0\], phase 0: 1 arrivals",
        error=EmulatedDeadlock,
        plain=True,
    ),
}

TEXTS = READS | STORES | GLOBAL | BARRIERS | MASKS

# Uses that the rules of masks allow.
LEGAL = {
    "shuffles of half-warps": "const unsigned mask = lane < 16 ? 0x0000ffffu : 0xffff0000u;\n"
    + SHUFFLE,
    "groups that grow": "for (int i = 0; i < 2; ++i) {\n"
    "    const unsigned mask = i ? 0xffffffffu : 0xffff0000u;\n    if (mask >> lane & 1) {\n"
    + SHUFFLE
    + "    }\n}\n",
    "a branch of its own": "if (lane >= 16) __syncwarp(0xffff0000u);\n__syncwarp();\n",
    # PTX ISA, shfl.sync: "all non-exited threads corresponding to membermask".
    "a full mask after lanes have ended": "const unsigned mask = 0xffffffff;\n"
    "if (lane >= 16) return;\n" + SHUFFLE + "__syncwarp();\n"
    "if (__ballot_sync(mask, thread == 3)) total[100 + thread] = 1;\n",
}
CODES = [*(text.code for text in TEXTS.values()), *LEGAL.values()]


def marked(number: int, code: str) -> str:
    body = code.replace("//@", f"//@{number}.")
    return f"    if (what == {number}) {{\n{body}\n    }}"


CUDA = SOURCE.replace("CODE", "\n".join(marked(*case) for case in enumerate(CODES)))
LINES = CUDA.splitlines()


def place(number: int, marks: str) -> str:
    """Return a pattern of the lines that bear one of these marks."""
    names = marks.strip("()").split("|")
    ends = tuple(f"//@{number}.{name}" for name in names)
    found = [str(line) for line, text in enumerate(LINES, 1) if text.endswith(ends)]
    assert found, marks
    return rf"kernel\.cu:({'|'.join(found)})\b"


def pattern(number: int, text: str) -> str:
    return re.sub(r"\{at:([^}]*)\}", lambda found: place(number, found[1]), text)


@functools.cache
def kernel() -> Kernel:
    tile = create_tma_tile(np.zeros((16, 64), np.float32), (8, 16))
    return Kernel(CUDA, "texts", types={"Tile": tile})


def run(number: int, blocks: int, cluster: int | None) -> Any:
    array, total = np.zeros((16, 64), np.float32), np.zeros(512, np.float32)
    arguments = (create_tma_tile(array, (8, 16)), array, total, np.zeros(16, np.int32), number)
    kernel()(blocks, 64, arguments, cluster=cluster)
    return total


CASES = [(name, races) for name, one in TEXTS.items() for races in (True, False)[: 1 + one.plain]]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "races"), CASES)
def test_a_report_names_the_line_and_the_missing_step(name: str, races: bool) -> None:
    defect, number = TEXTS[name], list(TEXTS).index(name)

    with (
        scheduled(races=races),
        pytest.raises(TMAError, match=pattern(number, defect.text)) as caught,
    ):
        run(number, defect.blocks, defect.cluster)

    assert type(caught.value) is defect.error
    if defect.line:
        assert isinstance(caught.value, EmulatedFault)
        assert re.fullmatch(place(number, defect.line), str(caught.value.source))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LEGAL)
@pytest.mark.parametrize("races", [True, False])
def test_masks_of_lanes_that_take_part_are_no_fault(name: str, races: bool) -> None:
    number = len(TEXTS) + list(LEGAL).index(name)

    for policy in ("round_robin", "random", "adversarial"):
        with scheduled(policy, races=races):
            total = run(number, 1, None)

    if SHUFFLE in LEGAL[name]:
        assert list(total[:16]) == [lane ^ 8 for lane in range(16)]
