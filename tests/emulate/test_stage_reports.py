"""Reports on the stages of a pipeline name the barrier, both numbers and the remedy."""

from __future__ import annotations

import re

import numpy as np
import pytest
from bodies import chosen
from emulate.planted.kernels import KERNELS, text_of
from emulate.planted.outcomes import schedules
from planted import DEADLOCK, EVERY, FAULT, RACE, Defect, Edit, before, lines_named, without
from planted_choices import choices

from tmaasync import EmulatedFault, EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.errors import TMAError

LOAD = "source.async_copy(shared.in[state.index], full, {0, tile * Tile::side(0)});"
MORE = LOAD.replace("shared.in", "shared.more")
STAGE = "auto& in = shared.in[state.index];"
WAIT = "shared.full[state.index].wait(state.phase);"
READ = "for (int i = threadIdx.x; i < Tile::kElements; i += kConsumers) {"
RELEASE = "shared.empty[state.index].arrive();"
RELEASE_CLUSTER = (
    "for (int rank = 0; rank < kCtas; ++rank) shared.empty[consumer.index].arrive_cluster(rank);"
)
ZERO_STAGES = before(
    "__syncthreads();\n    if (warpgroup_index()",
    "for (int i = threadIdx.x; i < int(sizeof(shared.stages) / 4); i += 384) "
    "reinterpret_cast<int*>(shared.stages)[i] = 0; fence_async_view_proxy();",
)


def two_loads(copies: str) -> tuple[Edit, ...]:
    """Return the edits that load two tiles in each phase and expect the bytes of one."""
    return (
        Edit(LOAD, copies),
        Edit("Tile::Shared in[kStages];", "Tile::Shared in[kStages], more[kStages];"),
        Edit(STAGE, f"{STAGE} auto& more = shared.more[state.index];"),
        Edit("2 * in.data()[i]", "in.data()[i] + more.data()[i]"),
    )


TOO_FEW_BYTES = (
    r"full\[\d\] completed phase \d with 2048 bytes expected, and its copies deliver 4096"
)
LAST_WAIT = (
    r"last waited (for a load )?on full\[\d\].*if the (read|access) is meant for .* correct "
    r"the index"
)
PARITY = r"a consumer's first wait names parity 0, a producer's 1"
TOO_FEW_ARRIVALS = (
    r"init\(\) counts (64 arrivals|1 arrival), and \d+ threads arrive"
    r"|after 64 arrivals, as init\(\) counts, and 128 threads arrive"
    r"|had not arrived\. .*; init\(\) counts 64 arrivals"
)
NO_PEER = (
    r"the load waited on empty\[\d\] of CTA (?P<own>\d) of the cluster, whose phase \d completed "
    r"by the arrivals of warps 0, 1 of CTA (?P=own) of the cluster; no thread of CTA "
    r"(?!(?P=own))\d, .*arrive_cluster\((?P=own)\); init\(\) counts {count} arrivals"
)
DEFECTS = (
    # Too few bytes are expected, and a phase ends before its last copy has landed.
    Defect("pipe", "the bytes of one load of two", two_loads(LOAD + MORE), RACE + FAULT,
           TOO_FEW_BYTES),
    # A stage is read that the last wait does not belong to.
    Defect("pipe", "stage 0 is read always", (Edit(STAGE, "auto& in = shared.in[0];"),),
           RACE + FAULT, LAST_WAIT, "in.data()[i]"),
    # A wait names the wrong parity.
    Defect("pipe", "the consumer starts as a producer",
           (Edit("State::for_consumer()", "State::for_producer()"),), DEADLOCK + FAULT, PARITY),
    Defect("wsgemm", "the consumer starts as a producer, with tiles of zeros",
           (Edit("State::for_consumer()", "State::for_producer()"), ZERO_STAGES),
           RACE + DEADLOCK + FAULT, PARITY),
    Defect("pipe", "the producer starts as a consumer, on barriers of other names",
           (Edit("State::for_producer()", "State::for_consumer()"),
            Edit("empty", "vacant", nth=EVERY), Edit("full", "ready", nth=EVERY)), DEADLOCK,
           r"vacant\[0\], phase 0: .*nothing has arrived on it: " + PARITY),
    Defect("pipe", "the consumer does not step its phase",
           (Edit(WAIT, WAIT.replace("state.phase", "0")),), DEADLOCK + FAULT,
           r"no wait has seen its phase 1, which is complete: the parity alternates"
           r"|empty\[0\] completed phase 1 while|full\[0\] gets 1 arrival in phase 1"),
    Defect("pipe", "the consumer waits for the first load of each stage",
           (Edit(WAIT, f"if (state.phase == 0) {WAIT}"),), RACE + FAULT,
           r"empty\[0\], whose phase 1 completed by the arrivals of warps 0, 1, 2, 3, and none of "
           r"them waited for this phase of full\[0\]|last waited on full\[\d\]"
           r"|empty\[0\] completed phase 1 while .*, a consumer on the full one"),
    Defect("pipe", "the producer does not step its phase",
           (Edit("empty[state.index].wait(state.phase)", "empty[state.index].wait(1)"),),
           RACE + FAULT, r"no phase of empty\[0\] had completed|gets 1 arrival in phase \d"),
    # init() counts other arrivals than come.
    Defect("pipe", "empty counts half of the threads",
           (Edit("empty[stage].init(kConsumers)", "empty[stage].init(kConsumers / 2)"),),
           RACE + FAULT, TOO_FEW_ARRIVALS),
    Defect("pipe", "full counts the consumers",
           (Edit("full[stage].init(1)", "full[stage].init(kConsumers)"),), DEADLOCK,
           r"only warp 4 filled stage 0, with 1 of the 128 arrivals that init\(\) counts"),
    # A stage is filled again before its readers have released it.
    Defect("pipe", "released before it is read", (before(READ, RELEASE), without(RELEASE, nth=1)),
           RACE, r"thread \d+ had arrived on empty\[\d\] before this access\. Arrive after"),
    Defect("multicast", "only the own CTA is released",
           (Edit(RELEASE_CLUSTER, "shared.empty[consumer.index].arrive(kCtas);"),), RACE,
           NO_PEER.format(count=128)),
    Defect("multicast", "empty counts one CTA",
           (Edit("empty[stage].init(kCtas * kThreads)", "empty[stage].init(kThreads)"),), RACE,
           TOO_FEW_ARRIVALS + "|" + NO_PEER.format(count=64)),
)  # fmt: skip


def reports(defect: Defect) -> list[TMAError]:
    """Return the errors of a defect in a few schedules."""
    every = tuple(one for one in DEFECTS if one.kernel == defect.kernel)
    found, errors = choices(text_of(defect.kernel), every), list[TMAError]()
    for schedule in schedules():
        try:
            with scheduled(**schedule):
                KERNELS[defect.kernel]().run(
                    lambda name, types: found.kernel(
                        defect, name, {one: tile.cuda_type for one, tile in types.items()}, {}
                    )
                )
        except TMAError as error:
            errors.append(error)
    return errors


@pytest.mark.sampled(4)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.key)
def test_every_schedule_names_the_barrier_and_the_remedy(defect: Defect) -> None:
    found = reports(defect)

    assert found
    text = defect.plant(text_of(defect.kernel))
    for error in found:
        assert isinstance(error, defect.reported), error
        assert re.search(defect.says, str(error), re.DOTALL), error
        assert any(defect.line in line for line in lines_named(text, str(error))), error


# --- one CTA loads for all of a cluster ---------------------------------------------------------

# Statements after the reads of a stage, the arrivals that init() counts, and the report.
RELEASES = {
    "sound": ("arrive(drained[at], 0);", 4, None, ""),
    "each at its own CTA": (
        "drained[at].arrive();", 1, EmulatedRace, r"no thread of CTA [123], .*arrive_cluster\(0\)"
    ),
    "not the last peer": (
        "if (rank != 3) arrive(drained[at], 0);", 3, EmulatedRace, "no thread of CTA 3, "
    ),
    "at the next CTA": (
        "arrive(drained[at], (rank + 1) % 4);", 1, EmulatedRace, r"no thread of CTA [012], "
    ),
    "two arrivals counted": (
        "arrive(drained[at], 0);", 2, EmulatedFault, r"after 2 arrivals, .* 4 threads arrive"
    ),
}  # fmt: skip
LEADER = f"""
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
__device__ void arrive(SharedMemBarrier& barrier, u32 rank) {{
    asm volatile(
        "{{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1;"
        " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r]; }}" ::
        "r"(ptx::shared_address(&barrier)), "r"(rank) : "memory");
}}
extern "C" __global__ void add(
    const __grid_constant__ Tile source, float* sums, int count, int what
) {{
    __shared__ Tile::Shared tiles[2];
    __shared__ SharedMemBarrier filled[2], drained[2];
    const u32 rank = block_rank_in_cluster();
    if (threadIdx.x == 0) {{
        for (int at = 0; at < 2; ++at) filled[at].init(1), drained[at].init(count);
        fence_barrier_init();
    }}
    cluster_sync();
    for (int tile = 0; tile < 8; ++tile) {{
        const int at = tile % 2, phase = tile / 2 % 2;
        if (threadIdx.x == 32) {{
            if (rank == 0) drained[at].wait_acquire<Scope::kCluster>(phase ^ 1);
            if (rank != 0 && tile > 1) filled[at].wait(phase ^ 1);
            filled[at].expect_bytes(Tile::kBytes);
            if (rank == 0) {{
                source.async_multicast_load(tiles[at], filled[at], {{0, tile * 8}}, 0b1111);
            }}
        }}
        if (threadIdx.x >= 32) continue;
        filled[at].wait(phase);
        float sum = 0;
        for (int i = threadIdx.x; i < Tile::kElements; i += 32) sum += tiles[at].data()[i];
        atomicAdd(sums + rank, sum);
        __syncwarp();
        if (threadIdx.x == 0) {{ {chosen(one[0] for one in RELEASES.values())} }}
    }}
    cluster_sync();
}}
"""


@pytest.mark.parametrize("name", RELEASES)
def test_a_leader_s_report_names_the_peer_that_did_not_release(name: str) -> None:
    _, count, reported, words = RELEASES[name]
    source, sums = np.ones((64, 32), np.float32), np.zeros(4, np.float32)
    tile = create_tma_tile(source, (8, 32))
    kernel = Kernel(LEADER, "add", types={"Tile": tile})

    def run() -> None:
        kernel(4, 64, (tile, sums, count, list(RELEASES).index(name)), cluster=4)

    if reported is None:
        run()
        assert (sums == source.sum()).all()
        return
    with pytest.raises(reported, match=f"(?s){words}"):
        run()
