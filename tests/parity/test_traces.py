"""The chip's notes, read back, against the emulator: its events as notes, and as events again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from chip_notes import Chip
from parity.backends import Emulate
from parity.exact_matmul import integers
from parity.test_matmul import multiply

from tmaasync import emulate, ops, trace
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.trace import NOBODY, NOTHING, EventKind, Trace, find_pipelines

STEP_NS = 1000
CLUSTER, CONSUMERS = 2, 1


def matmul() -> None:
    a, b = integers(256, 320, seed=1), integers(320, 256, seed=2)
    multiply(Emulate(), a, b, TileConfig(CONSUMERS, 128, CLUSTER), "nn")


def copy() -> None:
    ops.copy(np.zeros((600, 300), np.float32)[:, :288])


def recorded(launch: Callable[[], None]) -> Trace:
    with emulate.scheduled("random", seed=3, races=False), trace.record() as kept:
        launch()
    (only,) = kept.launches
    return only


def noted(emulated: Trace, counts: Mapping[str, int]) -> Trace:
    """The same launch as warps of the chip would note it.

    ``counts`` are what barriers are initialised with, by the array's name.
    """
    blocks = emulated.grid[0] * emulated.grid[1] * emulated.grid[2]
    chip = Chip(
        blocks=blocks,
        warps=emulated.block[0] // 32,
        room=4096,
        cluster=emulated.cluster[0],
        shared_bytes=1 << 17,
    )
    barriers = {
        (int(event["cluster"]), int(event["other"]), int(event["barrier"]))
        for event in emulated.of(kind=("arrive", "expect")).events
    }
    for cluster, rank, offset in sorted(barriers):
        block = emulated.block_index(emulated.block_at(cluster, rank))
        count = counts[emulated.name_of(offset).partition("[")[0]]
        chip(0, "init", 0, barrier=offset, amount=count, number=1, block=block)
    for of_cluster in emulated.by_cluster():
        note_cluster(chip, of_cluster)
    return chip.trace()


def note_cluster(chip: Chip, emulated: Trace) -> None:
    begun: dict[tuple[int, int], int] = {}
    kinds = EventKind.EXPECT, EventKind.ARRIVE, EventKind.LOAD_ISSUED
    targets = masks(emulated)
    last: dict[tuple[int, int], EventKind] = {}
    for event in emulated.events[emulated.events["thread"] != NOBODY]:
        thread, kind = (int(event["rank"]), int(event["thread"])), EventKind(event["kind"])
        if kind is EventKind.WAIT_BEGIN:
            begun[thread] = time_of(event)
        elif kind is EventKind.WAIT_END and event["barrier"] != NOTHING:
            note_wait(chip, emulated, event, begun.pop(thread))
        elif kind is EventKind.ARRIVE and last.get(thread) is EventKind.EXPECT:
            pass  # the same instruction
        elif kind in kinds:
            note_deed(chip, emulated, event, targets)
        last[thread] = kind


def time_of(event: Any) -> int:
    return STEP_NS * (1 + int(event["time"]))


def block_of(emulated: Trace, event: Any) -> int:
    return emulated.block_index(emulated.block_at(int(event["cluster"]), int(event["rank"])))


def note_wait(chip: Chip, emulated: Trace, event: Any, began: int) -> None:
    chip(
        time_of(event),
        "wait",
        int(event["thread"]),
        began_ns=began,
        block=block_of(emulated, event),
        barrier=int(event["barrier"]),
        home=int(event["other"]),
        parity=1 if event["phase"] == NOTHING else int(event["phase"]) % 2,
        ready=began == time_of(event),
    )


def note_deed(chip: Chip, emulated: Trace, event: Any, targets: Mapping[int, int]) -> None:
    is_load = event["kind"] == EventKind.LOAD_ISSUED
    chip(
        time_of(event),
        "load" if is_load else EventKind(event["kind"]).name.lower(),
        int(event["thread"]),
        block=block_of(emulated, event),
        barrier=int(event["barrier"]),
        home=int(event["other"]),
        shared=int(event["shared"]) if is_load else 0,
        number=targets[int(event["sequence"])] if is_load else 1,
        amount=int(event["bytes"]) if event["kind"] != EventKind.ARRIVE else 1,
    )


def masks(emulated: Trace) -> dict[int, int]:
    """Return for each load the mask of blocks of the cluster that receive it."""
    found: dict[int, int] = {}
    for landing in emulated.of(kind="load_landed").events:
        sequence = int(landing["sequence"])
        found[sequence] = found.get(sequence, 0) | 1 << int(landing["other"])
    return found


def deeds(emulated: Trace, *kinds: str) -> list[tuple[Any, ...]]:
    """Return the actions of threads: on which barrier, in which phase."""
    return sorted(
        (
            event.block,
            event.thread,
            event.kind.name,
            event.barrier,
            event.barrier_block,
            event.phase,
            event.bytes if event.kind is EventKind.EXPECT else 0,
        )
        for event in emulated.of(kind=kinds)
        if event.barrier is not None
    )


CASES: dict[str, tuple[Callable[[], None], dict[str, int]]] = {
    "a matmul in clusters of two": (
        matmul,
        {"ring.full": 1, "ring.empty": 4 * CONSUMERS * CLUSTER},
    ),
    "a copy": (copy, {"ring.full": 1}),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest) -> tuple[Trace, Trace]:
    launch, counts = CASES[request.param]
    emulated = recorded(launch)
    return emulated, noted(emulated, counts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["expect", "arrive", "load_issued", "wait_end"])
def test_threads_do_the_same_in_the_same_phases(pair: tuple[Trace, Trace], kind: str) -> None:
    emulated, read = pair

    assert len(deeds(emulated, kind)) > 0
    assert deeds(read, kind) == deeds(emulated, kind)


def test_rings_have_the_same_barriers_buffers_and_phases(pair: tuple[Trace, Trace]) -> None:
    emulated, read = pair

    for block in emulated.blocks:
        (wanted,), (found,) = (find_pipelines(one, block=block) for one in (emulated, read))
        for theirs, ours in zip(wanted.stages, found.stages, strict=True):
            assert (ours.full, ours.empty) == (theirs.full, theirs.empty)
            assert set(ours.buffers) == set(theirs.buffers)
            assert {span.phase for span in ours.spans} == {span.phase for span in theirs.spans}


def test_no_load_is_said_to_have_landed_before_it_did(pair: tuple[Trace, Trace]) -> None:
    emulated, read = pair

    def landings(launch: Trace) -> dict[tuple[Any, ...], float]:
        last: dict[tuple[Any, ...], float] = {}
        for event in launch.of(kind="load_landed"):
            key = event.block, event.barrier, event.phase
            last[key] = max(last.get(key, 0), event.time)
        return last

    wanted, found = landings(emulated), landings(read)
    assert found.keys() <= wanted.keys()
    assert len(found) > len(wanted) / 2
    for key, time in found.items():
        assert time >= STEP_NS * (1 + wanted[key]) - 1
