"""Reports on the stages of a pipeline name the barrier, both numbers and the remedy."""

from __future__ import annotations

import re

import pytest
from emulate.planted.kernels import KERNELS, text_of
from emulate.planted.outcomes import schedules
from planted import DEADLOCK, EVERY, FAULT, RACE, Defect, Edit, before, lines_named, without
from planted_choices import choices

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
