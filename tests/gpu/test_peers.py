"""Several GPUs in one process: tiles of a peer's memory, signals, and what is refused."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import (
    HangError,
    Kernel,
    Signals,
    TMATensorTileArray,
    create_tma_tile,
    enable_peer_access,
    trace,
)

cupy: Any = pytest.importorskip("cupy")

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"
SCRIPT = Path(__file__).with_name("peer_refusals.py")
ROWS, COLUMNS, TILE_ROWS = 200, 64, 32  # the last tile is partly out of bounds
BLOCKS = -(-ROWS // TILE_ROWS)


@pytest.fixture(scope="module", autouse=True)
def ranks() -> int:
    count = int(cupy.cuda.runtime.getDeviceCount())
    if count < 2:
        pytest.skip(f"peers need two GPUs, and this process sees {count}")
    enable_peer_access(range(count))
    return count


def on(device: int, host: Any) -> Any:
    with cupy.cuda.Device(device):
        return cupy.asarray(host)


def host(array: Any) -> Any:
    with array.device:
        return cupy.asnumpy(array)


@pytest.fixture(autouse=True)
def rest(ranks: int) -> Iterator[None]:
    yield
    for device in range(ranks):
        cupy.cuda.Device(device).synchronize()


def values(ranks: int) -> list[Any]:
    numbers = np.random.default_rng(7).integers(-99, 99, (ranks, ROWS, COLUMNS))
    return list(numbers.astype(np.float32))


def tile_of(array: Any) -> Any:
    return create_tma_tile(array, (TILE_ROWS, COLUMNS))


@functools.cache
def kernel(name: str, *, debug: bool = False) -> Kernel:
    tile = tile_of(on(0, np.zeros((ROWS, COLUMNS), np.float32)))
    return Kernel(SOURCE, name, types={"Tile": tile}, debug=debug)


def pads(ranks: int, count: int = 64) -> list[Any]:
    return [on(rank, np.zeros(count, np.uint32)) for rank in range(ranks)]


def test_every_device_loads_from_every_peer(ranks: int) -> None:
    data = values(ranks)
    sources = TMATensorTileArray([tile_of(on(rank, data[rank])) for rank in range(ranks)])
    for device in range(ranks):
        for peer in range(ranks):
            target = on(device, np.full((ROWS, COLUMNS), np.nan, np.float32))
            kernel("pull")(BLOCKS, 1, (sources, tile_of(target), peer))
            assert np.array_equal(host(target), data[peer])


@pytest.mark.parametrize("adds", [False, True])
def test_every_device_stores_and_adds_to_every_peer(ranks: int, adds: bool) -> None:
    data, start = values(ranks), 1000.0
    for device in range(ranks):
        for peer in range(ranks):
            arrays = [on(one, np.full((ROWS, COLUMNS), start, np.float32)) for one in range(ranks)]
            targets = TMATensorTileArray([tile_of(array) for array in arrays])
            kernel("push")(BLOCKS, 1, (tile_of(on(device, data[device])), targets, peer, adds))
            cupy.cuda.Device(device).synchronize()
            expected = data[device] + (start if adds else 0)
            assert np.array_equal(host(arrays[peer]), expected)
            assert all(
                (host(array) == start).all() for one, array in enumerate(arrays) if one != peer
            )


def test_a_ring_has_a_timeline_of_all_devices(ranks: int) -> None:
    data, rounds = values(ranks), 20
    arrays = [on(rank, data[rank]) for rank in range(ranks)]
    tiles = TMATensorTileArray([tile_of(array) for array in arrays])
    signals = Signals(pads(ranks), budget_seconds=5)
    with trace.record() as kept:
        prepared = [
            kernel("shift").prepare(BLOCKS, 1, (own, tiles, np.uint32(1), rounds))
            for own in signals
        ]
        for launch in prepared:
            launch()
        signals.synchronize()

    for rank, array in enumerate(arrays):
        assert np.array_equal(host(array), data[(rank - rounds) % ranks])
    assert [(one.rank, one.device) for one in kept.launches] == [(one, one) for one in range(ranks)]
    posts = {event.sequence: event for event in kept if event.kind is trace.EventKind.SIGNAL_POSTED}
    waits = [event for one in kept.launches for event in one.of(kind="signal_wait_end")]
    assert len(posts) == len(waits) == ranks * BLOCKS * rounds * 2
    for wait in waits:
        post = posts[wait.sequence]
        assert (post.barrier, post.phase) == (wait.barrier, wait.phase)
        assert post.time <= wait.time  # whatever the timers of the GPUs show


def test_a_barrier_over_ranks_orders_ordinary_accesses(ranks: int) -> None:
    blocks, threads, rounds = 8, 96, 2000
    words = [on(rank, np.full(blocks * threads, -1, np.int32)) for rank in range(ranks)]
    wrong = [on(rank, np.zeros(1, np.int32)) for rank in range(ranks)]
    signals = Signals(pads(ranks, blocks * ranks), budget_seconds=5)
    prepared = [
        kernel("barriers").prepare(
            blocks,
            threads,
            (own, words[rank], words[(rank + 1) % ranks], np.uint32(1), rounds, wrong[rank]),
            device=rank,
        )
        for rank, own in enumerate(signals)
    ]
    for launch in prepared:
        launch()
    signals.synchronize()

    assert [int(host(one)[0]) for one in wrong] == [0] * ranks


def test_streams_and_kernels_signal_each_other(ranks: int) -> None:
    signals, done = Signals(pads(ranks), budget_seconds=5), on(1, np.zeros(1, np.int32))
    streams = []
    for rank in range(2):
        with cupy.cuda.Device(rank):
            streams.append(cupy.cuda.Stream(non_blocking=True))
    wait = kernel("wait_for").prepare(
        1, 1, (signals[1], np.uint32(3), np.uint32(8), done), stream=streams[1]
    )
    post = kernel("post_to").prepare(
        1, 1, (signals[1], np.uint32(0), np.uint32(5), np.uint32(2)), stream=streams[1]
    )
    with cupy.cuda.Device(0):
        source = cupy.arange(1 << 20, dtype=cupy.int32)
        target = cupy.zeros_like(source)
    cupy.cuda.Device(0).synchronize()
    wait()
    post()
    signals.stream_wait(0, 5, 2, stream=streams[0])
    with cupy.cuda.Device(0), streams[0]:
        target[:] = source
    assert not done.get()[0]
    # Another stream of device 0 posts what the kernel waits for.
    with cupy.cuda.Device(0):
        third = cupy.cuda.Stream(non_blocking=True)
    signals.stream_write(0, 1, 3, 8, stream=third)
    signals.synchronize()

    assert host(done)[0] == 1
    assert np.array_equal(host(target), np.arange(1 << 20))


def test_a_hang_of_a_debug_build_names_the_signal_and_leaves_the_contexts(ranks: int) -> None:
    signals, done = Signals(pads(ranks), budget_seconds=0.3), on(1, np.zeros(1, np.int32))
    args = (signals[1], np.uint32(7), np.uint32(2), done)
    kernel("wait_for", debug=True)(1, 1, args)

    with pytest.raises(HangError, match="rank 1, block") as caught:
        signals.synchronize()

    (wait,) = caught.value.signals
    assert (wait.rank, wait.signal, wait.epoch, wait.seen) == (1, 7, 2, 0)
    assert wait.source is not None
    assert wait.source.startswith("peers.cu:")
    with pytest.raises(HangError, match="signal 7 has epoch 0"):
        kernel("wait_for", debug=True)(1, 1, args)
    test_a_barrier_over_ranks_orders_ordinary_accesses(ranks)


def test_a_stream_that_waits_in_vain_is_released(ranks: int) -> None:
    signals = Signals(pads(ranks), budget_seconds=0.3)
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream(non_blocking=True)
    signals.stream_wait(1, 9, 4, stream=stream)

    with pytest.raises(HangError, match="rank 1, a stream: signal 9 has epoch 0"):
        signals.synchronize()

    with cupy.cuda.Device(1):
        stream.synchronize()


@pytest.fixture(scope="module")
def refusals(ranks: int) -> dict[str, str]:
    """The errors of a process of its own: its peers have no access, or its contexts die."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=180, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(json.loads(line).popitem() for line in lines)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no access", "device 0 has no access to its memory. Call tmaasync.enable_peer_access"),
        ("a pool", "the pool gives device 0 no access"),
        ("a release build hangs", "rank 0, block (0, 0, 0), thread 0 at peers.cu:"),
        ("its next launch", "signal 7 has epoch 0, and the wait is for 2"),
    ],
)
def test_what_goes_wrong_is_named(refusals: dict[str, str], case: str, words: str) -> None:
    assert words in refusals[case]
