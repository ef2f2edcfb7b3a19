"""Timelines of launches with signals: several ranks on one GPU, each with a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gpu import ipc_ring

from tmaasync import (
    HangError,
    Kernel,
    Signals,
    TMATensorTileArray,
    emulate,
    enable_peer_access,
    trace,
)
from tmaasync.trace import Activity, EventKind, Trace, find_lanes

cupy: Any = pytest.importorskip("cupy")

ROWS, COLUMNS, BLOCKS = ipc_ring.ROWS, ipc_ring.COLUMNS, ipc_ring.BLOCKS
ROUNDS = 20
# By how much the starts of two SMs' counters may be off: the global timer's longest tick.
SKEW_NS = 1000


@pytest.fixture(params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def streams(ranks: int) -> list[Any]:
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(ranks)]


def pads(ranks: int, count: int) -> Signals:
    signals = Signals([cupy.zeros(count, cupy.uint32) for _ in range(ranks)], budget_seconds=5)
    cupy.cuda.Device().synchronize()
    return signals


def values(ranks: int) -> Any:
    numbers = np.random.default_rng(ranks).integers(-99, 99, (ranks, ROWS, COLUMNS))
    return numbers.astype(np.float32)


def ring(data: Any, *, rounds: int = ROUNDS, calls: int = 1, debug: bool = False) -> list[Any]:
    """Shift the arrays of all ranks, each call of the prepared launches by ``rounds`` ranks."""
    ranks = len(data)
    arrays = [cupy.asarray(one) for one in data]
    tiles = TMATensorTileArray([ipc_ring.tile_of(array) for array in arrays])
    kernel = ipc_ring.shift(tiles[0], debug=debug)
    signals = pads(ranks, 2 * BLOCKS)
    own_streams = streams(ranks)
    for call in range(calls):
        first = np.uint32(1 + call * rounds)
        prepared = [
            kernel.prepare(BLOCKS, 1, (own, tiles, first, rounds), stream=stream)
            for own, stream in zip(signals, own_streams, strict=True)
        ]
        for launch in prepared:
            launch()
        signals.synchronize()
    return [array.get() for array in arrays]


def emulated_ring(data: Any, rounds: int) -> None:
    ranks = len(data)
    with emulate.devices(ranks) as world:
        enable_peer_access(range(ranks))
        tiles = TMATensorTileArray(
            [ipc_ring.tile_of(device.array(one)) for device, one in zip(world, data, strict=True)]
        )
        signals = Signals([device.array(np.zeros(2 * BLOCKS, np.uint32)) for device in world])
        for own in signals:
            ipc_ring.shift(tiles[0])(BLOCKS, 1, (own, tiles, np.uint32(1), rounds))
        signals.synchronize()


def assert_waits_follow_their_posts(launches: Sequence[Trace]) -> None:
    """Every wait has seen a post of its epoch and signal, which came before its end."""
    posted = {
        event.sequence: (record, event)
        for launch in launches
        for record, event in zip(
            launch.of(kind="signal_posted").events, launch.of(kind="signal_posted"), strict=True
        )
    }
    for launch in launches:
        waits = launch.of(kind="signal_wait_end")
        for record, wait in zip(waits.events, waits, strict=True):
            assert record["other"] == launch.rank
            post_record, post = posted[wait.sequence]
            assert (post.barrier, post_record["other"]) == (wait.barrier, launch.rank)
            assert (post.phase, post.block) == (wait.phase, wait.block)
            assert post.time < wait.time + SKEW_NS


@pytest.mark.parametrize("debug", [False, True])
def test_a_ring_of_ranks_has_its_timeline(ranks: int, debug: bool) -> None:
    data = values(ranks)

    with trace.record() as kept:
        results = ring(data, calls=2, debug=debug)

    for rank, result in enumerate(results):
        assert np.array_equal(result, data[(rank - 2 * ROUNDS) % ranks])
    assert [one.rank for one in kept.launches] == 2 * [*range(ranks)]
    assert {(one.device, one.unit, one.dropped) for one in kept.launches} == {(0, "ns", 0)}
    for together in (kept.launches[:ranks], kept.launches[ranks:]):
        first = min(int(one.events["time"].min()) for one in together)
        assert first < 10_000  # from the first note on, of an mbarrier's initialisation
        assert_waits_follow_their_posts(together)
        for one in together:
            assert len(one.of(kind="signal_posted")) == 2 * BLOCKS * ROUNDS
            assert len(one.of(kind="signal_wait_end")) == 2 * BLOCKS * ROUNDS
            assert len(one.of(kind="load_landed")) == BLOCKS * ROUNDS
        (lane,) = find_lanes(together[0], block=0)
        assert Activity.WAITING_SIGNAL in {span.activity for span in lane.spans}
    arrivals = [
        (launch.rank, event.barrier, event.phase)
        for launch in kept.launches
        for event in launch.of(kind="signal_wait_end")
    ]
    assert len(set(arrivals)) == len(arrivals) == ranks * 2 * BLOCKS * 2 * ROUNDS


def deeds(kept: Sequence[Trace]) -> list[tuple[Any, ...]]:
    kinds = ("load_issued", "signal_posted", "signal_wait_end")
    return sorted(
        (
            rank,
            event.block,
            event.thread,
            event.kind.name,
            event.barrier,
            event.phase,
            int(record["other"]),
        )
        for rank, launch in enumerate(kept)
        for record, event in zip(launch.of(kind=kinds).events, launch.of(kind=kinds), strict=True)
    )


def test_ranks_do_what_they_do_on_the_emulator(ranks: int) -> None:
    data = values(ranks)
    with trace.record() as chip:
        ring(data, rounds=3)
    with trace.record() as emulator:
        emulated_ring(data, rounds=3)

    assert deeds(chip.launches) == deeds(emulator.launches)


def test_a_barrier_over_ranks_has_the_posts_and_waits_of_every_thread(ranks: int) -> None:
    """Its kernel has no mbarrier, whose initialisation opens the trace elsewhere."""
    blocks, threads, rounds = 3, 64, 10
    words = [cupy.full(blocks * threads, -1, cupy.int32) for _ in range(ranks)]
    wrong = cupy.zeros(ranks, cupy.int32)
    signals, kernel = pads(ranks, blocks * ranks), ipc_ring.kernel_of("barriers")
    # Nobody else keeps the streams.
    with trace.record() as kept:
        prepared = [
            kernel.prepare(
                blocks,
                threads,
                (own, words[rank], words[(rank + 1) % ranks], np.uint32(1), rounds, wrong[rank:]),
                stream=stream,
            )
            for (rank, own), stream in zip(enumerate(signals), streams(ranks), strict=True)
        ]
        for launch in prepared:
            launch()
        signals.synchronize()

    assert not wrong.get().any()
    assert_waits_follow_their_posts(kept.launches)
    for one in kept.launches:
        assert one.dropped == 0
        assert len(one.of(kind="signal_wait_end")) == blocks * 2 * rounds * ranks
        assert {event.thread for event in one.of(kind="signal_posted")} == set(range(ranks))


COUNT = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

extern "C" __global__ void count(const Signals signals) {
    signals.post_reduce(0, 3);
    if (signals.rank == 0) signals.wait(3, signals.ranks);
}
"""


def test_a_wait_for_adds_of_all_ranks_has_seen_the_last_one(ranks: int) -> None:
    signals, kernel = pads(ranks, 4), Kernel(COUNT, "count")
    with trace.record() as kept:
        prepared = [
            kernel.prepare(1, 1, (own,), stream=stream)
            for own, stream in zip(signals, streams(ranks), strict=True)
        ]
        for launch in prepared:
            launch()
        signals.synchronize()

    adds = [event for one in kept.launches for event in one.of(kind="signal_posted")]
    (wait,) = kept.launches[0].of(kind="signal_wait_end")
    assert (len(adds), wait.barrier, wait.phase) == (ranks, 3, ranks)
    assert wait.sequence in {add.sequence for add in adds}


@pytest.mark.parametrize("budget_seconds", [0.2, 2.5])
def test_a_wait_that_hangs_is_in_the_timeline_without_an_end(budget_seconds: float) -> None:
    """2.5 s are more than 32 bits count of cycles."""
    arrays = [cupy.zeros(8, cupy.uint32) for _ in range(2)]
    signals = Signals(arrays, budget_seconds=budget_seconds)
    done = cupy.zeros(1, cupy.int32)
    wait_for = ipc_ring.kernel_of("wait_for", debug=True)
    with trace.record() as kept:
        launch = wait_for.prepare(1, 1, (signals[1], np.uint32(5), np.uint32(2), done))
        launch()
        with pytest.raises(HangError, match="rank 1, block"):
            signals.synchronize()

    (hung,) = kept.launches
    assert [event.kind for event in hung] == [EventKind.WAIT_BEGIN]
    assert hung.rank == 1
