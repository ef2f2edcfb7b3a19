"""Tiles passed round and barriers of up to eight ranks, several on a GPU, each on its own stream.

A GPU runs the kernels of its ranks at once, so they signal as they would on several GPUs. On one
GPU only the links are missing. `test_peers` has a GPU for each rank.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
from gpu import ipc_ring

from tmaasync import HangError, Kernel, Signals, TMATensorTileArray

cupy: Any = pytest.importorskip("cupy")

ROWS, COLUMNS, BLOCKS = ipc_ring.ROWS, ipc_ring.COLUMNS, ipc_ring.BLOCKS
SECONDS = 120


@pytest.fixture(params=[2, 3, 4, 8])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def on(device: int, host: Any) -> Any:
    with cupy.cuda.Device(device):
        return cupy.asarray(host)


def host(array: Any) -> Any:
    with array.device:
        return array.get()


def pads(devices: list[int], count: int) -> list[Any]:
    return [on(device, np.zeros(count, np.uint32)) for device in devices]


def streams(devices: list[int]) -> list[Any]:
    own = []
    for device in devices:
        with cupy.cuda.Device(device):
            own.append(cupy.cuda.Stream(non_blocking=True))
    return own


def launch_on_all(
    kernel: Kernel, blocks: int, threads: int, arguments: list[Any], streams: list[Any]
) -> None:
    """Launch with the arguments of each rank, of which the first is its signals."""
    prepared = [
        kernel.prepare(blocks, threads, own, device=own[0].device, stream=stream)
        for own, stream in zip(arguments, streams, strict=True)
    ]
    for launch in prepared:
        launch()


def settle(devices: list[int]) -> None:
    for device in set(devices):
        cupy.cuda.Device(device).synchronize()


@pytest.mark.parametrize("debug", [False, True])
def test_a_ring_of_ranks_passes_tiles_on(devices: list[int], debug: bool) -> None:
    ranks = len(devices)
    numbers = np.random.default_rng(ranks).integers(-99, 99, (ranks, ROWS, COLUMNS))
    data, rounds, launches = numbers.astype(np.float32), 300, 2
    arrays = [on(device, one) for device, one in zip(devices, data, strict=True)]
    tiles = TMATensorTileArray([ipc_ring.tile_of(array) for array in arrays])
    signals = Signals(pads(devices, 2 * BLOCKS), budget_seconds=5)
    kernel, own_streams = ipc_ring.shift(tiles[0], debug=debug), streams(devices)
    settle(devices)
    for number in range(launches):
        first = np.uint32(1 + number * rounds)
        arguments = [(own, tiles, first, rounds) for own in signals]
        launch_on_all(kernel, BLOCKS, 1, arguments, own_streams)
    signals.synchronize()

    for rank, array in enumerate(arrays):
        assert np.array_equal(host(array), data[(rank - rounds * launches) % ranks])


def test_a_barrier_over_ranks_orders_ordinary_accesses(devices: list[int]) -> None:
    blocks, threads, rounds, ranks = 8, 96, 1000, len(devices)
    words = [on(device, np.full(blocks * threads, -1, np.int32)) for device in devices]
    wrong = [on(device, np.zeros(1, np.int32)) for device in devices]
    signals = Signals(pads(devices, blocks * ranks), budget_seconds=5)
    kernel, own_streams = ipc_ring.kernel_of("barriers"), streams(devices)
    settle(devices)
    arguments = [
        (own, words[rank], words[(rank + 1) % ranks], np.uint32(1), rounds, wrong[rank])
        for rank, own in enumerate(signals)
    ]
    launch_on_all(kernel, blocks, threads, arguments, own_streams)
    signals.synchronize()

    assert [int(host(one)[0]) for one in wrong] == [0] * ranks


def test_a_rank_that_nobody_signals_is_named(devices: list[int]) -> None:
    ranks = len(devices)
    signals = Signals(pads(devices, 8), budget_seconds=0.3)
    done = on(devices[-1], np.zeros(1, np.int32))
    wait_for = ipc_ring.kernel_of("wait_for", debug=True)
    wait_for(1, 1, (signals[ranks - 1], np.uint32(5), np.uint32(2), done))

    with pytest.raises(HangError, match=f"rank {ranks - 1}, block") as caught:
        signals.synchronize()

    (wait,) = caught.value.signals
    assert (wait.rank, wait.signal, wait.epoch, wait.seen) == (ranks - 1, 5, 2, 0)


WAITS = """
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void %(name)s(const tmaasync::Signals signals, tmaasync::u32 epoch) {
    signals.wait(threadIdx.x, epoch);
}
"""


def test_two_kernels_of_one_rank_report_their_hangs_apart() -> None:
    devices, threads = [0, 0], 3
    signals, own_streams = Signals(pads(devices, threads), budget_seconds=0.3), streams(devices)
    kernels = {name: Kernel(WAITS % {"name": name}, name, debug=True) for name in ("one", "other")}
    settle(devices)
    prepared = [
        kernel.prepare(1, threads, (signals[0], np.uint32(epoch)), stream=stream)
        for epoch, kernel, stream in zip((1, 2), kernels.values(), own_streams, strict=True)
    ]
    for launch in prepared:
        launch()

    with pytest.raises(HangError) as caught:
        signals.synchronize()

    # The kernel that gives up later may end without a report: a peer has given up.
    waits = {(wait.epoch, wait.thread, wait.signal) for wait in caught.value.signals}
    assert len(waits) == len(caught.value.signals) >= threads
    assert waits <= {(epoch, thread, thread) for epoch in (1, 2) for thread in range(threads)}


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
