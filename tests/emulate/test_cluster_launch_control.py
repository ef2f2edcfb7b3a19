"""Cluster launch control: every tile once, whatever the chip cancels, and the defects of its users.

Compiled by nvcc and emulated; not run on a chip.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, Kernel
from tmaasync.emulate import scheduled, verify

pytestmark = pytest.mark.slow

BLACKWELL = ("sm_100a", "sm_103a", "sm_120a")

# A dynamic persistent scheduler: each cluster works on its own tile, then on the tiles of
# clusters that it cancels. visits counts the work of each block of the grid, and by says which one
# did it.
SCHEDULER = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/cluster_launch_control.cuh>
using namespace tmaasync;

__shared__ ClusterRequest request;
extern "C" __global__ void visit(int* visits, int* by, int3* seen) {
    const unsigned rank = block_rank_in_cluster(), ctas = blocks_in_cluster();
    const bool is_leader = threadIdx.x == 0;
    if (is_leader) {
        request.init();
        fence_barrier_init();
    }
    SYNC
    ptx::Ctaid tile{blockIdx.x, blockIdx.y, blockIdx.z};
    for (unsigned phase = 0;; phase ^= 1) {
        ASK
        if (is_leader) {
            const unsigned number = tile.x + gridDim.x * (tile.y + gridDim.y * tile.z);
            atomicAdd(&visits[number], 1);
            by[number] = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
            seen[number] = {int(tile.x), int(tile.y), int(tile.z)};
        }
        const CanceledCluster next = request.wait(phase);
        END
        if (!next.exists) break;
        tile = {next.first.x + RANK, next.first.y, next.first.z};
    }
    LEAVE
}
"""
ONE = {
    "SYNC": "__syncthreads();",
    "ASK": "if (is_leader) request.ask();",
    "END": "__syncthreads();",
    "RANK": "rank",
    "LEAVE": "",
}
SEVERAL = ONE | {
    "SYNC": "cluster_sync();",
    "ASK": """
        if (is_leader) request.expect();
        cluster_sync();
        if (is_leader && rank == 0) request.ask_for_all();""",
    "END": "cluster_sync();",
    "LEAVE": "cluster_sync();",
}


def source_of(places: dict[str, str], **changed: str) -> str:
    text = SCHEDULER
    for name, code in (places | changed).items():
        text = text.replace(f"        {name}\n", f"        {code}\n")
        text = text.replace(f"    {name}\n", f"    {code}\n").replace(name, code)
    return text


def visit(source: str, grid: Any, cluster: int, arch: str = "sm_100a") -> Any:
    shape = np.array(grid)[::-1]
    visits, by = np.zeros((2, *shape), np.int32)
    seen = np.zeros((*shape, 3), np.int32)
    Kernel(source, "visit", arch=arch)(grid, 32, (visits, by, seen), cluster=(cluster, 1, 1))
    return visits, by, seen


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_every_tile_is_visited_once(cluster: int) -> None:
    source, splits = source_of(ONE if cluster == 1 else SEVERAL), set()
    for seed in range(24):
        with scheduled(policy="random" if seed % 2 else "adversarial", seed=seed, races=True):
            visits, by, seen = visit(source, (8, 3, 2), cluster)
        assert (visits == 1).all(), seed
        positions = np.moveaxis(np.indices(visits.shape)[::-1], 0, -1)
        assert (seen == positions).all()
        splits.add(len(np.unique(by)))
    # Launched clusters, by blocks: some runs cancel many and some few.
    assert min(splits) <= 32
    assert max(splits) - min(splits) >= 2 * cluster


def test_verify_refuses_every_request() -> None:
    sound = verify(visit, source_of(ONE), (3, 1, 1), 1)
    assert sound.status == "clean"
    _, by, _ = visit(source_of(ONE), (3, 1, 1), 1)
    busiest = np.bincount(by.ravel()).argmax()
    fails = f"!next.exists && tile.x == {busiest} && blockIdx.x == {busiest}"
    expects = f"if ({fails}) while (*(volatile int*)visits < 9) {{}}"
    hopeful = verify(visit, source_of(ONE, END=f"__syncthreads(); {expects}"), (3, 1, 1), 1)
    assert isinstance(hopeful.error, EmulatedDeadlock)
    assert "for a cluster fails" in hopeful.launches[0].order[-1]


@pytest.mark.parametrize("arch", BLACKWELL)
def test_without_races_and_on_every_chip(arch: str) -> None:
    for policy in ("round_robin", "random"):
        with scheduled(policy=policy, seed=3):
            visits, _, _ = visit(source_of(ONE), (40, 1, 1), 1, arch)
        assert (visits == 1).all()


ASM = """
        asm volatile(
            "{\\n.reg .pred p;\\n.reg .b128 r;\\nld.shared.b128 r, [%4];\\n"
            "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r;\\n"
            "selp.u32 %3, 1, 0, p;\\n@p clusterlaunchcontrol.query_cancel.get_first_ctaid"
            "::x.b32.b128 %0, r;\\n@p clusterlaunchcontrol.query_cancel.get_first_ctaid"
            "::y.b32.b128 %1, r;\\n@p clusterlaunchcontrol.query_cancel.get_first_ctaid"
            "::z.b32.b128 %2, r;\\n}"
            : "=r"(x), "=r"(y), "=r"(z), "=r"(exists)
            : "r"(ptx::shared_address(&request.response)) : "memory");
"""


def test_a_response_is_read_by_inline_ptx() -> None:
    read = f"""
        request.answered.wait(phase);
        unsigned x, y, z, exists;
        {ASM}
        const CanceledCluster next{{exists != 0, {{x, y, z}}}};
        fence_async_view_proxy();"""
    source = source_of(ONE).replace("const CanceledCluster next = request.wait(phase);", read)
    ask = (
        'request.expect(); asm volatile("clusterlaunchcontrol.try_cancel.async.mbarrier'
        '::complete_tx::bytes.b128 [%0], [%1];" :: "l"(&request.response), '
        '"l"(&request.answered) : "memory");'
    )
    source = source.replace("request.ask();", f"{{ {ask} }}")
    with scheduled(races=True, policy="random", seed=5):
        visits, _, _ = visit(source, (24, 2, 1), 1)
    assert (visits == 1).all()


# --- defects --------------------------------------------------------------------------------------

WAIT = "const CanceledCluster next = request.wait(phase);"
READ = "ptx::ld_shared_v2(ptx::shared_address(&request.response), read.low, read.high);"
OWN = f"""
        request.answered.wait(phase);
        ptx::ClusterResponse read;
        {READ}
        CanceledCluster next{{ptx::clusterlaunchcontrol_is_canceled(read), {{}}}};
        if (next.exists) next.first = ptx::clusterlaunchcontrol_first_ctaid(read);"""
ADDRESS = "ptx::shared_address(&request)"
FENCED = f"{OWN}\n        fence_async_view_proxy();"
DEFECTS: dict[str, tuple[dict[str, str], tuple[str, str], type[Exception], str]] = {
    "a request after a failure": (
        ONE,
        ("if (!next.exists) break;", "if (!next.exists && phase) break;"),
        EmulatedFault,
        r"another try_cancel follows one whose failure is known: .* End the loop when is_canceled",
    ),
    "the block of a failure": (
        ONE,
        (WAIT, FENCED.replace("if (next.exists) ", "")),
        EmulatedFault,
        r"get_first_ctaid reads a response without a cluster.*\[rule: ctaid-of-failure\]",
    ),
    "no proxy fence before the next request": (
        ONE,
        (WAIT, OWN),
        EmulatedRace,
        r"of try_cancel\n.*Every reading thread(.|\n)*\[rule: response-without-proxy-fence\]",
    ),
    "no barrier before the next request": (
        ONE,
        (f"{WAIT}\n        __syncthreads();", WAIT),
        EmulatedRace,
        r"response of try_cancel",
    ),
    "four loads of a buffer that the next request takes": (
        ONE,
        (
            f"{WAIT}\n        __syncthreads();",
            OWN.replace(
                READ,
                """const auto* words = (const volatile unsigned*)&request.response;
        read.low = words[0] | u64{words[1]} << 32;
        fence_async_view_proxy();
        __syncthreads();
        if (is_leader && (words[2] & 1)) { request.ask(); }
        read.high = words[2] | u64{words[3]} << 32;""",
            ),
        ),
        EmulatedRace,
        r"response of try_cancel",
    ),
    "only the first block expects the answer": (
        SEVERAL,
        ("if (is_leader) request.expect();", "if (is_leader && rank == 0) request.expect();"),
        EmulatedFault,
        r"mbarrier|expects",
    ),
    "a block leaves before the answer lands": (
        SEVERAL,
        (WAIT, f"if (rank == 1) return;\n        {WAIT}"),
        EmulatedFault,
        r"the CTA ends.* request\.answered",
    ),
    "a block waits for another answer than its cluster": (
        SEVERAL,
        (WAIT, WAIT.replace("(phase)", "(phase ^ (rank & 1))")),
        EmulatedFault,
        r"wait for its phase of request\.answered first",
    ),
    "all lanes ask": (
        ONE,
        ("if (is_leader) request.ask();", "request.ask();"),
        EmulatedFault,
        r"mbarrier|arriv",
    ),
    "a response off its alignment": (
        ONE,
        (
            "request.ask();",
            f"ptx::clusterlaunchcontrol_try_cancel({ADDRESS} + 8, request.answered.address());",
        ),
        EmulatedFault,
        r"the shared address is .*; it must be a multiple of 16",
    ),
}


def search(source: str, cluster: int) -> None:
    for seed in range(6):
        with scheduled(races=True, policy="random", seed=seed):
            visit(source, (16, 1, 1), cluster)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    places, (right, wrong), kind, words = DEFECTS[name]
    source = source_of(places)
    assert right in source
    source = source.replace(right, wrong)
    cluster = 1 if places is ONE else 2
    with pytest.raises((kind, EmulatedDeadlock), match=words):
        search(source, cluster)


def test_other_chips_have_a_counter_instead() -> None:
    source = source_of(ONE)
    with pytest.raises(Exception, match=r"a counter of tiles and atomicAdd\(\)"):
        visit(source, (4, 1, 1), 1, "sm_90a")
