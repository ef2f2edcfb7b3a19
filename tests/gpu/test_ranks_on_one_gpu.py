"""Tiles passed round and barriers of up to eight ranks on one GPU: each rank has its own stream.

A GPU runs the kernels of all ranks at once, so they signal as they would on several GPUs; only
the links are missing. `test_peers` has a GPU for each rank.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
from gpu import ipc_ring

from tmaasync import HangError, Signals, TMATensorTileArray

cupy: Any = pytest.importorskip("cupy")

ROWS, COLUMNS, BLOCKS = ipc_ring.ROWS, ipc_ring.COLUMNS, ipc_ring.BLOCKS
SECONDS = 120


@pytest.fixture(params=[2, 3, 4, 8])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def pads(ranks: int, count: int) -> list[Any]:
    return [cupy.zeros(count, cupy.uint32) for _ in range(ranks)]


def streams(ranks: int) -> list[Any]:
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(ranks)]


@pytest.mark.parametrize("debug", [False, True])
def test_a_ring_of_ranks_passes_tiles_on(ranks: int, debug: bool) -> None:
    numbers = np.random.default_rng(ranks).integers(-99, 99, (ranks, ROWS, COLUMNS))
    data, rounds, launches = numbers.astype(np.float32), 300, 2
    arrays = [cupy.asarray(one) for one in data]
    tiles = TMATensorTileArray([ipc_ring.tile_of(array) for array in arrays])
    signals = Signals(pads(ranks, 2 * BLOCKS), budget_seconds=5)
    kernel, own_streams = ipc_ring.shift(tiles[0], debug=debug), streams(ranks)
    cupy.cuda.Device().synchronize()
    for number in range(launches):
        first = np.uint32(1 + number * rounds)
        prepared = [
            kernel.prepare(BLOCKS, 1, (own, tiles, first, rounds), stream=stream)
            for own, stream in zip(signals, own_streams, strict=True)
        ]
        for launch in prepared:
            launch()
    signals.synchronize()

    for rank, array in enumerate(arrays):
        assert np.array_equal(array.get(), data[(rank - rounds * launches) % ranks])


def test_a_barrier_over_ranks_orders_ordinary_accesses(ranks: int) -> None:
    blocks, threads, rounds = 8, 96, 1000
    words = [cupy.full(blocks * threads, -1, cupy.int32) for _ in range(ranks)]
    wrong = cupy.zeros(ranks, cupy.int32)
    signals = Signals(pads(ranks, blocks * ranks), budget_seconds=5)
    kernel, own_streams = ipc_ring.kernel_of("barriers"), streams(ranks)
    cupy.cuda.Device().synchronize()
    prepared = [
        kernel.prepare(
            blocks,
            threads,
            (own, words[rank], words[(rank + 1) % ranks], np.uint32(1), rounds, wrong[rank:]),
            stream=own_streams[rank],
        )
        for rank, own in enumerate(signals)
    ]
    for launch in prepared:
        launch()
    signals.synchronize()

    assert not wrong.get().any()


def test_a_rank_that_nobody_signals_is_named(ranks: int) -> None:
    signals = Signals(pads(ranks, 8), budget_seconds=0.3)
    done = cupy.zeros(1, cupy.int32)
    wait_for = ipc_ring.kernel_of("wait_for", debug=True)
    wait_for(1, 1, (signals[ranks - 1], np.uint32(5), np.uint32(2), done))

    with pytest.raises(HangError, match=f"rank {ranks - 1}, block") as caught:
        signals.synchronize()

    (wait,) = caught.value.signals
    assert (wait.rank, wait.signal, wait.epoch, wait.seen) == (ranks - 1, 5, 2, 0)


def test_processes_pass_tiles_on_through_handles_of_cuda_ipc() -> None:
    """On one GPU a process runs for some milliseconds at a time, so the ring has few rounds."""
    spawn, processes = multiprocessing.get_context("spawn"), 2
    pipes = [spawn.Pipe() for _ in range(processes)]
    started = [
        spawn.Process(target=ipc_ring.main, args=(rank, processes, pipes[rank][1]), daemon=True)
        for rank in range(processes)
    ]
    for process in started:
        process.start()
    ours = [pipe for pipe, _ in pipes]
    try:
        for _ in ("handles", "ready", "done"):
            messages = []
            for pipe in ours:
                assert pipe.poll(SECONDS), "a process sent nothing"
                messages.append(pipe.recv())
            for pipe in ours:
                pipe.send(messages)
    finally:
        for process in started:
            process.join(SECONDS)
            process.kill()

    assert messages == ["right"] * processes
