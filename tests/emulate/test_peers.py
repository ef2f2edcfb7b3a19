"""Several emulated devices: their results, and the errors between them."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import pickle
import re
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import (
    ArgumentError,
    ArrayTypeError,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    HangError,
    HungSignal,
    Kernel,
    LaunchError,
    Signals,
    TMATensorTileArray,
    create_tma_tile,
    emulate,
    enable_peer_access,
    ops,
)

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"
EXAMPLE = Path(__file__).parents[2] / "examples" / "09_peers.py"
ROWS, COLUMNS, TILE_ROWS = 40, 32, 16
BLOCKS = -(-ROWS // TILE_ROWS)
EPOCH = np.uint32(1)


def tile_of(array: Any) -> Any:
    return create_tma_tile(array, (TILE_ROWS, COLUMNS))


@functools.cache
def kernel(name: str) -> Kernel:
    return Kernel(SOURCE, name, types={"Tile": tile_of(np.zeros((ROWS, COLUMNS), np.float32))})


def values(ranks: int) -> list[Any]:
    numbers = np.random.default_rng(7).integers(-99, 99, (ranks, ROWS, COLUMNS))
    return list(numbers.astype(np.float32))


def signals_of(world: emulate.World, count: int = 32) -> Signals:
    return Signals([device.array(np.zeros(count, np.uint32)) for device in world])


@pytest.mark.parametrize(
    ("ranks", "policy"), [(2, "round_robin"), (3, "random"), (4, "adversarial")]
)
def test_a_ring_passes_tiles_on(ranks: int, policy: Any) -> None:
    data, rounds = values(ranks), 3
    with emulate.scheduled(policy, seed=ranks, races=True), emulate.devices(ranks) as world:
        enable_peer_access(range(ranks))
        arrays = [device.array(one) for device, one in zip(world, data, strict=True)]
        tiles = TMATensorTileArray(list(map(tile_of, arrays)))
        signals = signals_of(world)
        for number in range(2):  # launches of each device
            for own in signals:
                epoch = np.uint32(1 + number * rounds)
                kernel("shift")(BLOCKS, 1, (own, tiles, epoch, rounds))

    for rank in range(ranks):
        assert np.array_equal(arrays[rank], data[(rank - 2 * rounds) % ranks])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (3, 3)])
def test_epochs_that_the_next_launch_uses_again_are_reported(
    ranks: int, seed: int, rounds: int
) -> None:
    """The same epoch again is a race; a smaller one is a fault, unless a race comes first."""
    with emulate.scheduled("random", seed=seed, races=True), emulate.devices(ranks) as world:
        enable_peer_access(range(ranks))
        arrays = [device.array(one) for device, one in zip(world, values(ranks), strict=True)]
        tiles = TMATensorTileArray(list(map(tile_of, arrays)))
        signals = signals_of(world)
        for _ in range(2):
            for own in signals:
                kernel("shift")(BLOCKS, 1, (own, tiles, EPOCH, rounds))
        said = r"peers\.cu:\d+: TMA" + ("" if rounds == 1 else "|Epochs only increase")
        with pytest.raises((EmulatedRace, EmulatedFault), match=said):
            signals.synchronize()


@pytest.mark.parametrize("ranks", [3, 8])
def test_a_barrier_over_ranks_orders_ordinary_accesses(ranks: int) -> None:
    blocks, threads, rounds = 2, 32, 3
    with emulate.scheduled("random", seed=ranks, races=True), emulate.devices(ranks) as world:
        enable_peer_access(range(ranks))
        words = [device.array(np.full(blocks * threads, -1, np.int32)) for device in world]
        wrong = [device.array(np.zeros(1, np.int32)) for device in world]
        for rank, own in enumerate(signals_of(world, blocks * ranks)):
            args = (own, words[rank], words[(rank + 1) % ranks], EPOCH, rounds, wrong[rank])
            kernel("barriers")(blocks, threads, args, device=rank)

    assert [int(one[0]) for one in wrong] == [0] * ranks


@pytest.mark.parametrize(("ranks", "policy"), [(1, "random"), (3, "adversarial")])
def test_the_tutorial_adds_over_any_number_of_ranks(ranks: int, policy: Any) -> None:
    example = runpy.run_path(str(EXAMPLE))
    with emulate.scheduled(policy, seed=ranks, races=True):
        example["main"](ranks)  # which compares the totals


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_hang_names_all_sides(ranks: int) -> None:
    with emulate.devices(ranks) as world:
        enable_peer_access(range(ranks))
        signals = signals_of(world)
        for rank, own in enumerate(signals):
            done = world[rank].array(np.zeros(1, np.int32))
            kernel("wait_for")(1, 1, (own, np.uint32(4 + rank), np.uint32(2), done))
        with pytest.raises(EmulatedDeadlock) as caught:
            signals.synchronize()

    waits = caught.value.waits
    assert [wait.device for wait in waits] == list(range(ranks))
    assert [(wait.signal.number, wait.signal.seen) for wait in waits if wait.signal] == [
        (4 + rank, 0) for rank in range(ranks)
    ]
    line = 1 + SOURCE.read_text().splitlines().index("    signals.wait(signal, epoch);")
    for rank in range(ranks):
        assert (
            f"device {rank}, block (0, 0, 0), thread 0 at peers.cu:{line}: Signals::wait: "
            f"rank {rank} waits for epoch 2 of signal {4 + rank}, which has epoch 0"
        ) in str(caught.value)


@pytest.mark.parametrize("seed", range(2))
def test_streams_and_kernels_signal_each_other(seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
    with emulate.scheduled("random", seed=seed, races=True), emulate.devices(2) as world:
        enable_peer_access([0, 1])
        signals = signals_of(world)
        source, far = world[0].array(values), world[1].array(np.zeros_like(values))
        done = world[1].array(np.zeros(1, np.int32))
        kernel("wait_for")(1, 1, (signals[1], np.uint32(3), np.uint32(8), done))
        kernel("post_to")(1, 1, (signals[1], np.uint32(0), np.uint32(5), np.uint32(2)))
        # Device 0 pushes once device 1 is ready; the kernel there began by waiting for the push.
        signals.stream_copy(0, far[1:], source[:-1], stream="copies")
        signals.stream_write(0, 1, 3, 8, stream="copies")
        signals.stream_wait(0, 5, 2, stream="back")
        back = world[0].array(np.zeros_like(values))
        signals.stream_copy(0, back, far, stream="back")
        assert not far.any()
        signals.synchronize()

    assert done[0] == 1
    assert np.array_equal(far, [0, *values[:-1]])
    assert np.array_equal(back, far)


def test_launches_on_two_streams_of_a_device_run_together() -> None:
    def run(stream: object) -> int:
        with emulate.devices(1) as world:
            signals, done = signals_of(world), world[0].array(np.zeros(1, np.int32))
            kernel("wait_for")(1, 1, (signals[0], np.uint32(3), EPOCH, done))
            post = (signals[0], np.uint32(0), np.uint32(3), EPOCH)
            kernel("post_to")(1, 1, post, stream=stream)
        return int(done[0])

    assert run("another") == 1
    for default in (None, 0):
        with pytest.raises(EmulatedDeadlock, match="rank 0 waits for epoch 1 of signal 3"):
            run(default)


def test_a_stream_without_a_hash_is_refused() -> None:
    with emulate.devices(1) as world:
        pad, array = (world[0].array(np.ones((8, 8), dtype)) for dtype in (np.uint32, np.float16))
        for call in (
            lambda: Signals([pad[0]]).stream_write(0, 0, 0, 1, stream=[1]),
            lambda: ops.matmul(array, array, stream=[1]),
            lambda: ops.all_reduce([array], streams=[[1]]),
        ):
            with pytest.raises(ArrayTypeError, match=r"stream is \[1\]; .*a value with a hash"):
                call()


@pytest.mark.parametrize(
    ("to", "signal", "words"),
    [(2, 0, "rank is 2; it must be below 2"), (1, 32, "signal is 32; it must be below 32")],
)
def test_a_post_beyond_the_ranks_or_the_signals_is_named(to: int, signal: int, words: str) -> None:
    with emulate.devices(2) as world:
        enable_peer_access([0, 1])
        signals = signals_of(world)
        kernel("post_to")(1, 1, (signals[0], np.uint32(to), np.uint32(signal), EPOCH))
        with pytest.raises(EmulatedFault, match=words):
            signals.synchronize()


def test_a_copy_that_no_signal_orders_is_a_race() -> None:
    with emulate.scheduled(races=True), emulate.devices(2) as world:
        enable_peer_access([0, 1])
        signals, data = signals_of(world), values(2)
        arrays = [device.array(one) for device, one in zip(world, data, strict=True)]
        tiles = TMATensorTileArray(list(map(tile_of, arrays)))
        kernel("push")(BLOCKS, 1, (tile_of(arrays[0]), tiles, 1, False))
        signals.stream_copy(1, world[1].array(np.zeros_like(data[1])), arrays[1])
        with pytest.raises(EmulatedRace) as caught:
            signals.synchronize()

    assert re.search(r"device 1, .* at copy_engine\.cu:\d+: ordinary read", str(caught.value))
    assert re.search(r"device 0, .* at peers\.cu:\d+: TMA store", str(caught.value))


def test_a_stream_that_waits_in_vain_is_named_next_to_the_kernel() -> None:
    with emulate.devices(3) as world:
        enable_peer_access([0, 1, 2])
        signals = signals_of(world)
        done = world[0].array(np.zeros(1, np.int32))
        kernel("wait_for")(1, 1, (signals[0], np.uint32(4), np.uint32(2), done))
        signals.stream_wait(1, 9, 4)
        signals.stream_write(1, 0, 4, 2)  # after the wait
        signals.stream_write(2, 1, 9, 3)
        with pytest.raises(HangError) as caught:  # as on a GPU
            signals.synchronize()

    assert isinstance(caught.value, EmulatedDeadlock)
    assert "rank 0 waits for epoch 2 of signal 4, which has epoch 0" in str(caught.value)
    assert (
        "\n  device 1, a stream: Signals.stream_wait: rank 1 waits for epoch 4 of signal 9, which "
        "has epoch 3"
    ) in str(caught.value)
    assert {wait.device for wait in caught.value.waits} == {0, 1}
    assert caught.value.budget_seconds is None
    of_kernel, of_stream = caught.value.signals
    assert (of_kernel.block, of_kernel.thread) == ((0, 0, 0), 0)
    assert of_kernel.source is not None
    assert of_stream == HungSignal(rank=1, signal=9, epoch=4, seen=3)
    assert "rank 1, a stream: signal 9 has epoch 3, and the wait is for 4; " in str(of_stream)
    assert pickle.loads(pickle.dumps(caught.value)).signals == caught.value.signals


def test_memory_of_a_peer_needs_access() -> None:
    with emulate.devices(2) as world:
        arrays = [device.array(one) for device, one in zip(world, values(2), strict=True)]
        args = (TMATensorTileArray(list(map(tile_of, arrays))), tile_of(arrays[0]), 1)
        with pytest.raises(LaunchError) as caught:
            kernel("pull")(BLOCKS, 1, args)
        enable_peer_access([0, 1])
        kernel("pull")(BLOCKS, 1, args)

    assert str(caught.value) == (
        "args[0][1] is on device 1; device 0 has no access to its memory. Call "
        "tmaasync.enable_peer_access([0, 1]) once, before the first launch."
    )
    assert np.array_equal(arrays[0], arrays[1])


def test_a_fault_names_its_device() -> None:
    source = '\nextern "C" __global__ void stop(int* words) { if (words[0]) __trap(); }\n'
    stop = Kernel(source, "stop")
    with emulate.devices(3) as world:
        for rank, device in enumerate(world):
            stop(1, 1, (device.array(np.full(1, rank == 2, np.int32)),))
        with pytest.raises(EmulatedFault, match=r"stop: device 2, block \(0, 0, 0\), thread 0"):
            world.synchronize()


@pytest.mark.parametrize("count", [0, 17, 1.5, "2"])
def test_a_world_has_one_to_sixteen_devices(count: Any) -> None:
    with pytest.raises(ArgumentError, match="a world has 1 to 16 devices"), emulate.devices(count):
        pass


def test_worlds_do_not_nest_and_launches_belong_to_one() -> None:
    with emulate.devices(1) as world:
        with pytest.raises(ArgumentError, match="another world"), emulate.devices(1):
            pass
        mine = tile_of(world[0].array(np.zeros((ROWS, COLUMNS), np.float32)))
        launch = kernel("pull").prepare(BLOCKS, 1, (TMATensorTileArray([mine]), mine, 0))
    with pytest.raises(LaunchError, match="its world has ended"):
        launch()
    with emulate.devices(1), pytest.raises(LaunchError, match="its world has ended"):
        launch()


@pytest.mark.parametrize("opens_its_own", [False, True])
def test_another_thread_cannot_launch_on_the_arrays_of_a_world(*, opens_its_own: bool) -> None:
    def launch_in_thread() -> None:
        with emulate.devices(1) if opens_its_own else contextlib.nullcontext():
            kernel("pull")(BLOCKS, 1, (TMATensorTileArray([mine]), mine, 0))

    with emulate.devices(2) as world, ThreadPoolExecutor(1) as pool:
        mine = tile_of(world[1].array(np.zeros((ROWS, COLUMNS), np.float32)))
        with pytest.raises(LaunchError, match=r"args\[1\] is on device 1 of emulate.devices\(2\)"):
            pool.submit(launch_in_thread).result()
        if not opens_its_own:
            pool.submit(contextvars.copy_context().run, launch_in_thread).result()


THROUGH_A_TABLE = """
extern "C" __global__ void fill(float* const* tables, int of, int first, int count) {
    for (int i = 0; i < count; ++i) tables[of][first + i] = 1;
}
"""


@pytest.mark.parametrize(
    ("first", "where"),
    [(127, ""), (128, r"\[128\], right after the end"), (-1, r"\[-1\], 4 bytes")],
)
def test_an_array_of_a_peer_that_only_a_pointer_names_has_its_bounds(
    first: int, where: str
) -> None:
    fill = Kernel(THROUGH_A_TABLE, "fill")
    with emulate.devices(2) as world:
        enable_peer_access([0, 1])
        arrays = [device.array(np.zeros(128, np.float32)) for device in world]
        table = world[0].array(np.array([array.ctypes.data for array in arrays], np.uint64))
        fill(1, 1, (table, 1, first, 1), device=0)
        if where:
            with pytest.raises(EmulatedFault, match=rf"\(array 0 of device 1\){where}"):
                world.synchronize()
        else:
            world.synchronize()
            assert arrays[1][127] == 1


POSTS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void posts(const Signals signals, u32 first, u32 second) {
    signals.post(0, 3, first);
    signals.post(0, 3, second);
}
"""


def test_stale_words_that_look_like_pointers_do_not_cut_a_part_of_an_array() -> None:
    text = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void move(const int* from, unsigned long long to) {
    __shared__ __align__(128) int row[32];
    row[threadIdx.x] = from[threadIdx.x];
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x) return;
    tma_store_1d(reinterpret_cast<void*>(to), row, sizeof(row));
    commit_group();
    wait_group<0>();
}
"""
    values = np.arange(128, dtype=np.int32)
    with emulate.devices(1) as (device,):
        array = device.array(values)
        part = array[64:96]
        device.array(part.ctypes.data + 8 * np.arange(32, dtype=np.uint64))
        Kernel(text, "move")(1, 32, (array[:32], np.uint64(part.ctypes.data)))

    assert np.array_equal(array, np.r_[values[:64], values[:32], values[96:]])


def test_an_epoch_that_decreases_is_a_fault() -> None:
    posts = Kernel(POSTS, "posts")
    with emulate.devices(2) as world:
        enable_peer_access([0, 1])
        signals = Signals([device.array(np.zeros(4, np.uint32)) for device in world])
        for first, second in ((1, 1), (1, 7), (2**31, 2**32 - 1), (2**32 - 1, 2)):
            posts(1, 1, (signals[1], np.uint32(first), np.uint32(second)))
            world.synchronize()
        posts(1, 1, (signals[1], np.uint32(3), np.uint32(2)))
        with pytest.raises(
            EmulatedFault, match="epoch 2 for signal 3 of rank 0, which has epoch 3"
        ):
            world.synchronize()


MIXED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void sets(const Signals signals) { signals.post(1, 0, 5); }
extern "C" __global__ void adds(const Signals signals) { signals.post_reduce(1, 0); }
"""


@pytest.mark.parametrize("second", [0, 1])
def test_a_signal_that_is_set_and_added_to_is_a_fault(second: int) -> None:
    with emulate.scheduled("random", seed=second), emulate.devices(2) as world:
        enable_peer_access([0, 1])
        signals = Signals([device.array(np.zeros(1, np.uint32)) for device in world])
        for rank, name in ((0, "sets"), (second, "adds")):
            Kernel(MIXED, name)(1, 1, (signals[rank],))
        words = r"(post|post_reduce)\(\): signal 0 of rank 1 was changed by (?!\1\()post"
        with pytest.raises(EmulatedFault, match=words):
            world.synchronize()


REUSED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void produce(const Signals signals, int* sent, u32 rounds) {
    for (u32 round = 1; round <= rounds; ++round) {
        *sent = round;
        signals.post(0, 0, round);
    }
}
extern "C" __global__ void take(const Signals signals, const int* sent, int* out, u32 rounds) {
    for (u32 round = 1; round <= rounds; ++round) {
        signals.wait(0, round);
        out[round - 1] = *sent;
    }
}
"""


def reuse(policy: Any, seed: int, poster: int, *, by_stream: bool) -> None:
    produce, take = (Kernel(REUSED, name) for name in ("produce", "take"))
    rounds = np.uint32(3)
    with emulate.scheduled(policy, seed=seed), emulate.devices(2) as world:
        enable_peer_access([0, 1])
        signals = Signals([device.array(np.zeros(1, np.uint32)) for device in world])
        sent = world[0].array(np.zeros(1, np.int32))
        out = world[0].array(np.zeros(3, np.int32))
        produce(1, 1, (signals[poster], sent, rounds), device=poster, stream="producer")
        if by_stream:
            for number in range(3):
                signals.stream_wait(0, 0, number + 1, stream="copies")
                signals.stream_copy(0, out[number : number + 1], sent, stream="copies")
        else:
            take(1, 1, (signals[0], sent, out, rounds), device=0, stream="consumer")


@pytest.mark.parametrize("poster", [0, 1])
@pytest.mark.parametrize("by_stream", [False, True])
def test_a_buffer_that_is_reused_too_early_is_a_race_in_every_order(
    poster: int, by_stream: bool
) -> None:
    """A wait relies on the first post of its epoch, of another device or of its own."""
    for policy in ("round_robin", "random", "adversarial"):
        with pytest.raises(EmulatedRace) as caught:
            reuse(policy, 0, poster, by_stream=by_stream)
        assert caught.value.memory == "global"
        assert ("in different streams of one device" in caught.value.cause) == (poster == 0)


def test_a_launch_in_a_world_takes_arrays_of_its_devices() -> None:
    with emulate.devices(2) as world:
        stranger = np.zeros((ROWS, COLUMNS), np.float32)
        mine = tile_of(world[1].array(stranger))
        with pytest.raises(LaunchError, match=r"args\[1\] is at 0x\w+ in host memory; inside emul"):
            kernel("pull")(BLOCKS, 1, (TMATensorTileArray([mine]), tile_of(stranger), 0))
        with pytest.raises(LaunchError, match="device is 2; this process sees 2 devices"):
            kernel("pull")(BLOCKS, 1, (TMATensorTileArray([mine]), mine, 0), device=2)
        other = TMATensorTileArray([tile_of(world[0].array(stranger))])
        with pytest.raises(LaunchError, match="args lie on device 0, device 1; one launch runs on"):
            kernel("push")(BLOCKS, 1, (TMATensorTileArray([mine]), other, 0, True))
