"""What the chip's notes are read as, against the emulator: its events as notes, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from chip_notes import Chip
from parity.backends import Emulate
from parity.test_matmul import multiply, small_integers

from tmaasync import emulate, ops, trace
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.trace import NOBODY, NOTHING, EventKind, Trace, find_pipelines

STEP_NS = 1000
CLUSTER, CONSUMERS = 2, 1


def product() -> None:
    a, b = small_integers(256, 320, 1), small_integers(320, 256, 2)
    multiply(Emulate(), a, b, TileConfig(CONSUMERS, 128, CLUSTER), "nn")


def copy() -> None:
    ops.copy(np.zeros((600, 300), np.float32)[:, :288])


def recorded(launch: Callable[[], None]) -> Trace:
    with emulate.scheduled("random", seed=3, races=False), trace.record() as kept:
        launch()
    (only,) = kept.launches
    return only


def noted(told: Trace, counts: Mapping[str, int]) -> Trace:
    """The same launch as warps of the chip would note it.

    ``counts`` are what barriers are initialised with, by the array's name.
    """
    blocks = told.grid[0] * told.grid[1] * told.grid[2]
    chip = Chip(
        blocks=blocks,
        warps=told.block[0] // 32,
        room=4096,
        cluster=told.cluster[0],
        shared_bytes=1 << 17,
    )
    barriers = {
        (int(event["cluster"]), int(event["other"]), int(event["barrier"]))
        for event in told.of(kind=("arrive", "expect")).events
    }
    for cluster, rank, offset in sorted(barriers):
        block = told.block_index(told.block_at(cluster, rank))
        count = counts[told.name_of(offset).partition("[")[0]]
        chip(0, "init", 0, barrier=offset, amount=count, number=1, block=block)
    for of_cluster in told.by_cluster():
        note_cluster(chip, of_cluster)
    return chip.trace()


def note_cluster(chip: Chip, told: Trace) -> None:
    begun: dict[tuple[int, int], int] = {}
    kinds = EventKind.EXPECT, EventKind.ARRIVE, EventKind.LOAD_ISSUED
    targets = masks(told)
    last: dict[tuple[int, int], EventKind] = {}
    for event in told.events[told.events["thread"] != NOBODY]:
        thread, kind = (int(event["rank"]), int(event["thread"])), EventKind(event["kind"])
        if kind is EventKind.WAIT_BEGIN:
            begun[thread] = time_of(event)
        elif kind is EventKind.WAIT_END and event["barrier"] != NOTHING:
            note_wait(chip, told, event, begun.pop(thread))
        elif kind is EventKind.ARRIVE and last.get(thread) is EventKind.EXPECT:
            pass  # the same instruction
        elif kind in kinds:
            note_deed(chip, told, event, targets)
        last[thread] = kind


def time_of(event: Any) -> int:
    return STEP_NS * (1 + int(event["time"]))


def block_of(told: Trace, event: Any) -> int:
    return told.block_index(told.block_at(int(event["cluster"]), int(event["rank"])))


def note_wait(chip: Chip, told: Trace, event: Any, began: int) -> None:
    chip(
        time_of(event),
        "wait",
        int(event["thread"]),
        began_ns=began,
        block=block_of(told, event),
        barrier=int(event["barrier"]),
        home=int(event["other"]),
        parity=1 if event["phase"] == NOTHING else int(event["phase"]) % 2,
        ready=began == time_of(event),
    )


def note_deed(chip: Chip, told: Trace, event: Any, targets: Mapping[int, int]) -> None:
    is_load = event["kind"] == EventKind.LOAD_ISSUED
    chip(
        time_of(event),
        "load" if is_load else EventKind(event["kind"]).name.lower(),
        int(event["thread"]),
        block=block_of(told, event),
        barrier=int(event["barrier"]),
        home=int(event["other"]),
        shared=int(event["shared"]) if is_load else 0,
        number=targets[int(event["sequence"])] if is_load else 1,
        amount=int(event["bytes"]) if event["kind"] != EventKind.ARRIVE else 1,
    )


def masks(told: Trace) -> dict[int, int]:
    """Of each load which blocks of the cluster receive it."""
    found: dict[int, int] = {}
    for landing in told.of(kind="load_landed").events:
        sequence = int(landing["sequence"])
        found[sequence] = found.get(sequence, 0) | 1 << int(landing["other"])
    return found


def deeds(told: Trace, *kinds: str) -> list[tuple[Any, ...]]:
    """What threads did, on which barrier, in which phase."""
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
        for event in told.of(kind=kinds)
        if event.barrier is not None
    )


CASES: dict[str, tuple[Callable[[], None], dict[str, int]]] = {
    "a product in pairs of blocks": (product, {"full": 1, "empty": 4 * CONSUMERS * CLUSTER}),
    "a copy": (copy, {"full": 1}),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest) -> tuple[Trace, Trace]:
    launch, counts = CASES[request.param]
    told = recorded(launch)
    return told, noted(told, counts)


@pytest.mark.parametrize("kind", ["expect", "arrive", "load_issued", "wait_end"])
def test_threads_do_the_same_in_the_same_phases(pair: tuple[Trace, Trace], kind: str) -> None:
    told, read = pair

    assert len(deeds(told, kind)) > 0
    assert deeds(read, kind) == deeds(told, kind)


def test_rings_have_the_same_barriers_buffers_and_phases(pair: tuple[Trace, Trace]) -> None:
    told, read = pair

    for block in told.blocks:
        (wanted,), (found,) = (find_pipelines(one, block=block) for one in (told, read))
        for theirs, ours in zip(wanted.stages, found.stages, strict=True):
            assert (ours.full, ours.empty) == (theirs.full, theirs.empty)
            assert set(ours.buffers) == set(theirs.buffers)
            assert {span.phase for span in ours.spans} == {span.phase for span in theirs.spans}


def test_no_load_is_said_to_have_landed_before_it_did(pair: tuple[Trace, Trace]) -> None:
    told, read = pair

    def landings(launch: Trace) -> dict[tuple[Any, ...], float]:
        last: dict[tuple[Any, ...], float] = {}
        for event in launch.of(kind="load_landed"):
            key = event.block, event.barrier, event.phase
            last[key] = max(last.get(key, 0), event.time)
        return last

    wanted, found = landings(told), landings(read)
    assert found.keys() <= wanted.keys()
    assert len(found) > len(wanted) / 2
    for key, time in found.items():
        assert time >= STEP_NS * (1 + wanted[key]) - 1
