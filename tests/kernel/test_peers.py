"""Launches on one of several devices: which device it is, and which arrays of peers it may reach.

The driver is a stand-in with three devices.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays_in_memory import aligned
from fake_arrays import CupyArray
from fake_driver import Driver

from tmaasync import (
    ArgumentError,
    HangError,
    Kernel,
    LaunchError,
    Signals,
    StaleTileError,
    TMATensorTileArray,
    create_tma_tile,
    emulate,
    enable_peer_access,
)

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"
ROWS, COLUMNS = 64, 64


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, use_driver: Callable[[object], None]) -> Driver:
    found = Driver(devices=3, argument_sizes=(16, 128, 4))
    use_driver(found)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)  # the driver loads modules then
    return found


def tile(device: int) -> Any:
    return create_tma_tile(CupyArray(aligned((ROWS, COLUMNS), np.float32), device), (32, COLUMNS))


def pull() -> Kernel:
    return Kernel(SOURCE, "pull", types={"Tile": tile(0)})


# --- tiles of several devices ---------------------------------------------------------------------


def test_every_device_of_the_tiles_has_a_copy_of_the_maps(driver: Driver) -> None:
    made = [tile(device) for device in (0, 1, 1)]
    array = TMATensorTileArray(made)

    arguments = [array.argument_on(device) for device in (0, 1, 0)]

    assert array.devices == (0, 1)
    assert arguments[0] == arguments[2] == array.argument != arguments[1]
    assert [one[8:] for one in arguments] == [(3).to_bytes(8, "little")] * 3
    addresses = [int.from_bytes(one[:8], "little") for one in arguments]
    maps = b"".join(one.descriptor for one in made)
    assert [ctypes.string_at(address, len(maps)) for address in addresses] == [maps] * 3
    assert array.descriptors == tuple(one.descriptor for one in made)


def test_a_replaced_tile_is_replaced_in_every_copy(driver: Driver) -> None:
    array, other = TMATensorTileArray([tile(0), tile(1)]), tile(2)
    array[1] = other

    for device in (0, 1, 2):
        address = int.from_bytes(array.argument_on(device)[:8], "little")
        assert ctypes.string_at(address + 128, 128) == other.descriptor


def test_host_memory_and_devices_do_not_mix(driver: Driver) -> None:
    on_host = create_tma_tile(np.zeros((ROWS, COLUMNS), np.float32), (32, COLUMNS))
    with pytest.raises(ArgumentError, match=r"tiles\[1\].device is None; tiles\[0\] has 0"):
        TMATensorTileArray([tile(0), on_host])


# --- the device of a launch -----------------------------------------------------------------------


@pytest.mark.parametrize("device", [0, 1, 2])
def test_a_launch_runs_where_its_own_array_lies(driver: Driver, device: int) -> None:
    enable_peer_access([0, 1, 2])
    sources = TMATensorTileArray([tile(0), tile(1), tile(2)])

    pull()(2, 1, (sources, tile(device), 1))

    (_, launched_on, arguments) = driver.launched[-1]
    assert launched_on == device
    assert arguments[0] == sources.argument_on(device)


def test_a_launch_runs_on_the_device_that_is_named(driver: Driver) -> None:
    enable_peer_access([0, 1, 2])
    sources = TMATensorTileArray([tile(0), tile(1)])

    pull()(2, 1, (sources, tile(1), 1), device=2)

    assert driver.launched[-1][1] == 2


def test_arrays_on_one_device_need_no_peer_access(driver: Driver) -> None:
    pull()(2, 1, (TMATensorTileArray([tile(1)]), tile(1), 0))

    assert driver.launched[-1][1] == 1


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (None, r"args lie on device 0, device 1; one launch runs on one device. Pass device="),
        (3, "device is 3; this process sees 3 devices. Pass 0 to 2"),
        (-1, "device is -1"),
        ("cuda:1", "device is 'cuda:1'; it is a device's ordinal. Pass an int"),
    ],
)
def test_a_launch_without_a_device_is_refused(driver: Driver, device: Any, words: str) -> None:
    push = Kernel(SOURCE, "push", types={"Tile": tile(0)})
    sources = TMATensorTileArray([tile(0)])
    other = TMATensorTileArray([tile(1)])
    with pytest.raises(LaunchError, match=words):
        push(2, 1, (sources, other, 0, True), device=device)


def test_arrays_of_the_host_run_on_no_device(driver: Driver) -> None:
    on_host = create_tma_tile(np.zeros((ROWS, COLUMNS), np.float32), (32, COLUMNS))
    with pytest.raises(LaunchError, match="device is 1; the arguments lie in host memory"):
        pull()(2, 1, (TMATensorTileArray([on_host]), on_host, 0), device=1)


# --- peer access ----------------------------------------------------------------------------------


def test_access_is_enabled_once_and_both_ways(driver: Driver) -> None:
    enable_peer_access([0, 2])
    driver.peers.add((0, 1))  # by a library
    enable_peer_access(range(3))

    assert len(driver.peers) == 6


def test_access_outlives_the_contexts_that_it_was_enabled_in(driver: Driver) -> None:
    driver.contexts.clear()  # nothing has used a GPU yet
    enable_peer_access([0, 1])

    assert driver.peers == {(0, 1), (1, 0)}


def test_a_launch_without_access_is_refused(driver: Driver) -> None:
    enable_peer_access([0, 1])
    sources = TMATensorTileArray([tile(0), tile(1), tile(2)])

    with pytest.raises(LaunchError) as caught:
        pull()(2, 1, (sources, tile(0), 1))

    assert str(caught.value) == (
        "args[0][2] is on device 2; device 0 has no access to its memory. Call "
        "tmaasync.enable_peer_access([0, 2]) once, before the first launch."
    )
    assert not driver.launched


@pytest.mark.parametrize("kind", ["pools", "mapped"])
def test_memory_with_rights_of_its_own_is_looked_at(driver: Driver, kind: str) -> None:
    enable_peer_access([0, 1])
    peers = tile(1)
    allowed: set[int] = {1}
    getattr(driver, kind)[peers.address] = allowed
    args = (TMATensorTileArray([tile(0), peers]), tile(0), 1)

    with pytest.raises(LaunchError, match=r"args\[0\]\[1\] is on device 1, in memory of a pool of"):
        pull()(2, 1, args)
    allowed.add(0)
    pull()(2, 1, args)

    assert len(driver.launched) == 1


def test_devices_without_a_link_are_refused_together(driver: Driver) -> None:
    driver.unlinked = {(0, 2), (2, 1)}

    with pytest.raises(ArgumentError) as caught:
        enable_peer_access([0, 1, 2])

    assert [violation.value for violation in caught.value.violations] == ["[0, 2]", "[2, 1]"]
    assert not driver.peers


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ([0, 3], r"devices\[1\] is 3; this process sees 3 devices"),
        ([1, 1], r"devices is \[1, 1\]; it names a device twice"),
        (2, "devices is 2; it must be a sequence"),
        ([0, "1"], "it must be a sequence of the ordinals"),
    ],
)
def test_what_are_no_devices_is_refused(driver: Driver, devices: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        enable_peer_access(devices)


# --- signals --------------------------------------------------------------------------------------


def pads(count: int = 8, ranks: int = 3) -> list[CupyArray]:
    return [CupyArray(aligned((count,), np.uint32), rank) for rank in range(ranks)]


def signals(**options: Any) -> Signals:
    enable_peer_access([0, 1, 2])
    return Signals(pads(), **options)


def test_the_argument_has_the_pads_and_the_rank(driver: Driver) -> None:
    mine = pads()
    all_ranks = Signals(mine, budget_seconds=0.25)

    words = np.frombuffer(all_ranks[2].argument, np.uint64)

    assert words[:3].tolist() == [pad.data.ptr for pad in mine]
    assert not words[3:16].any()
    assert words[16] == driver.pinned[-1]
    assert words[17] == 250_000_000
    assert words[18:].view(np.uint32).tolist() == [3, 2, 8, 0]
    assert all_ranks[2].device == 2


def test_streams_of_a_rank_write_to_peers_and_wait_for_their_own(driver: Driver) -> None:
    mine = pads()
    enable_peer_access([0, 1, 2])
    all_ranks = Signals(mine)
    all_ranks.stream_write(np.uint8(0), np.int64(2), 3, np.uint32(7))  # type: ignore[arg-type]
    mine[1].array[5] = 4
    all_ranks.stream_wait(1, 5, 4, stream=12)
    all_ranks.synchronize()

    assert ("write", 0, 0, mine[2].data.ptr + 12, 7) in driver.done
    assert ("wait", 1, 12, mine[1].data.ptr + 20, 4) in driver.done
    assert [what for what in driver.done if what[0] == "cuCtxSynchronize"] == [
        ("cuCtxSynchronize", device) for device in range(3)
    ]


@pytest.mark.parametrize(("seen", "epoch"), [(3, 3), (9, 3), (2, 2**32 - 5)])
def test_an_epoch_is_reached_modulo_two_to_32(driver: Driver, seen: int, epoch: int) -> None:
    mine = pads()
    all_ranks = Signals(mine, budget_seconds=0.05)
    mine[0].array[0] = seen
    all_ranks.stream_wait(0, 0, epoch)
    all_ranks.synchronize()


def test_a_stream_that_waits_in_vain_is_released_and_reported(driver: Driver) -> None:
    mine = pads()
    all_ranks = Signals(mine, budget_seconds=0.02)
    mine[1].array[6] = 2
    all_ranks.stream_wait(1, 6, 3)

    with pytest.raises(HangError, match="rank 1, a stream: signal 6 has epoch 2, and the wait"):
        all_ranks.synchronize()

    assert mine[1].array[6] == 3
    for call in (all_ranks.check, lambda: all_ranks.stream_write(0, 1, 6, 4)):
        with pytest.raises(HangError, match="signal 6 has epoch 2"):
            call()


def test_synchronize_looks_for_the_latest_epoch_of_each_signal_that_a_stream_waits_for(
    driver: Driver,
) -> None:
    mine = pads()
    all_ranks = Signals(mine, budget_seconds=0.02)
    for epoch in (1, 3, 2):
        all_ranks.stream_wait(1, 6, epoch)
    mine[1].array[6] = 2

    with pytest.raises(HangError, match="signal 6 has epoch 2, and the wait is for 3"):
        all_ranks.synchronize()
    with pytest.raises(HangError) as again:
        all_ranks.synchronize()
    assert len(again.value.signals) == 1


def test_a_kernel_that_trapped_is_reported_although_a_stream_still_waits(driver: Driver) -> None:
    all_ranks = signals(budget_seconds=0.5)
    all_ranks.stream_wait(0, 0, 1)
    write_record(driver.pinned[-1], 8, rank=1, signal=3, epoch=9, seen=8, waited_ns=600_000_000)
    driver.has_died = True

    with pytest.raises(HangError, match="signal 3 has epoch 8"):
        all_ranks.synchronize()


RECORD = np.dtype(
    [
        ("state", "<u4"),
        ("rank", "<u4"),
        ("signal", "<u4"),
        ("epoch", "<u4"),
        ("seen", "<u4"),
        ("block", "<u4", 3),
        ("thread", "<u4"),
        ("line", "<u4"),
        ("waited_ns", "<u8"),
        ("file", "S96"),
    ]
)


def write_record(address: int, place: int, **fields: Any) -> None:
    """What a kernel writes when its wait has taken too long."""
    record = np.zeros(1, RECORD)
    for name, value in {"state": 2, **fields}.items():
        record[name] = value
    ctypes.memmove(address + 16 + place * RECORD.itemsize, record.tobytes(), RECORD.itemsize)
    ctypes.memset(address, 1, 1)  # has_hung


def test_a_reported_wait_is_raised_by_every_later_launch(driver: Driver) -> None:
    all_ranks = signals(budget_seconds=0.5)
    driver._argument_sizes = (160, 4, 4, 8)
    kernel = Kernel(SOURCE, "wait_for", types={"Tile": tile(0)}, debug=False)
    args = (all_ranks[1], np.uint32(3), np.uint32(9), CupyArray(aligned((1,), np.int32), 1))
    kernel(1, 1, args)
    where = {"file": b"/home/peers.cu", "line": 77, "block": (4, 0, 0), "thread": 5}
    write_record(
        driver.pinned[-1], 8, rank=1, signal=3, epoch=9, seen=8, waited_ns=600_000_000, **where
    )

    with pytest.raises(HangError) as caught:
        kernel(1, 1, args)

    assert str(caught.value) == (
        "Signals of 3 ranks: a wait took longer than budget_seconds=0.5, and the kernel was "
        "stopped:\n  rank 1, block (4, 0, 0), thread 5 at peers.cu:77: signal 3 has epoch 8, and "
        "the wait is for 9, after 0.60 s; no rank has posted it\nCheck that every rank "
        "was launched before the host waited, and that ranks and epochs of post() and wait() agree."
    )
    driver.has_died = True
    with pytest.raises(HangError, match="signal 3 has epoch 8"):
        all_ranks.synchronize()


def test_a_prepared_launch_keeps_its_stream_alive(driver: Driver) -> None:
    driver._argument_sizes = (160, 4, 4, 8)

    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 77

    stream = Stream()
    is_alive = weakref.ref(stream)
    kernel = Kernel(SOURCE, "wait_for", types={"Tile": tile(0)}, debug=False)
    done = CupyArray(aligned((1,), np.int32), 1)
    launch = kernel.prepare(1, 1, (signals()[1], np.uint32(3), np.uint32(9), done), stream=stream)
    del stream
    gc.collect()
    assert is_alive() is not None
    launch()
    assert driver.launched[-1][0] == 77

    del launch
    gc.collect()
    assert is_alive() is None


def test_a_debug_build_with_signals_does_not_wait_for_its_end(driver: Driver) -> None:
    driver._argument_sizes = (160, 4, 4, 8)
    driver.variables["tmaasync_hang_state"] = 48
    driver.busy_looks = 1 << 30  # it waits for a rank that is launched later
    all_ranks = signals()
    kernel = Kernel(SOURCE, "wait_for", types={"Tile": tile(0)}, debug=True)

    kernel(1, 1, (all_ranks[1], np.uint32(3), np.uint32(9), CupyArray(aligned((1,), np.int32), 1)))

    assert driver.launched[-1][1] == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "pads is 0 arrays; it must be a list of 1 to 16"),
        ([np.zeros(4, np.uint32)] * 17, "pads is 17 arrays"),
        ([np.zeros(4, np.float32)], r"pads\[0\] is an array of float32; a signal is a 32-bit"),
        ([np.zeros((2, 2), np.int32)], r"pads\[0\] is an array of shape \(2, 2\); it must be"),
        ([np.zeros(8, np.int32)[::2]], "it must be one-dimensional and contiguous"),
        ([np.zeros(4, np.int32), np.zeros(5, np.int32)], r"pads\[1\] is an array of 5; "),
    ],
)
def test_unfit_pads_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Signals(given)


@pytest.mark.parametrize("seconds", [0, -1, 1e-12, float("nan"), float("inf"), 2e10, 1e300, "soon"])
def test_a_budget_is_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(ArgumentError, match=r"budget_seconds is .* a number of seconds above 0"):
        Signals([np.zeros(4, np.uint32)], budget_seconds=seconds)


def test_a_rank_is_an_index() -> None:
    both = Signals([np.zeros(4, np.uint32) for _ in range(2)])

    assert [both[np.int64(1)].rank, both[-1].rank] == [1, 1]
    with pytest.raises(IndexError, match="rank is 2; there are 2 ranks, from 0 on"):
        both[2]
    with pytest.raises(TypeError, match=r"rank is slice.*; it must be an integer, 0 to 1"):
        both[0:1]  # type: ignore[index]


def test_a_launch_takes_the_signals_of_one_rank(driver: Driver) -> None:
    kernel = Kernel(SOURCE, "wait_for", types={"Tile": tile(0)})
    with pytest.raises(TypeError, match=r"args\[0\] is .*Signals; .* Pass signals\[rank\]"):
        kernel(1, 1, (signals(), np.uint32(0), np.uint32(1), np.zeros(1, np.int32)))


def test_pads_lie_in_one_kind_of_memory() -> None:
    with emulate.devices(2) as world:
        given = [world[0].array(np.zeros(4, np.uint32)), np.zeros(4, np.uint32)]
        with pytest.raises(ArgumentError, match=r"in host memory; pads\[0\] is on an emulated"):
            Signals(given)


def test_two_ranks_do_not_share_a_pad() -> None:
    pad = np.zeros(4, np.uint32)
    for own, other in ((pad, pad), (pad[:3], pad[1:])):
        with pytest.raises(ArgumentError, match=r"pads\[1\] is at .*; it overlaps pads\[0\]"):
            Signals([own, other])


def test_indices_of_streams_are_checked(driver: Driver) -> None:
    all_ranks = signals()
    with pytest.raises(ArgumentError) as caught:
        all_ranks.stream_write(3, -1, 8, 1 << 32)
    assert [one.argument for one in caught.value.violations] == ["rank", "to", "signal", "epoch"]
    with pytest.raises(ArgumentError, match=r"epoch is -1; epochs have 32 bits\. Pass 0 to"):
        all_ranks.stream_wait(0, 0, -1)
    assert not [what for what in driver.done if what[0] == "write"]


def test_signals_in_host_memory_have_no_streams() -> None:
    with pytest.raises(ArgumentError, match="in host memory, which has no streams"):
        Signals([np.zeros(4, np.uint32)]).stream_wait(0, 1, 1)


def test_a_stream_copies_between_devices(driver: Driver) -> None:
    source, target = (CupyArray(aligned((8, 4), np.float32), device) for device in (0, 1))
    source.array[...] = 7

    signals().stream_copy(1, target, source, stream=12)

    copied = ("cuMemcpyDtoDAsync", target.data.ptr, source.data.ptr, 128, 12)
    assert copied in driver.done


def test_what_no_copy_engine_copies_is_refused(driver: Driver) -> None:
    source, target = (CupyArray(aligned((8, 4), np.float32), device) for device in (0, 1))
    with pytest.raises(ArgumentError) as caught:
        signals().stream_copy(0, CupyArray(target.array[:, ::2], 1), source)
    assert [one.argument for one in caught.value.violations] == ["target", "target"]
    with pytest.raises(ArgumentError, match="rank is 3; there are 3 ranks"):
        signals().stream_copy(3, target, source)


def test_a_pad_that_was_freed_is_noticed() -> None:
    gone = np.zeros(4, np.uint32)
    all_ranks = Signals([np.zeros(4, np.uint32), gone])
    gone.resize((0,), refcheck=False)

    with pytest.raises(StaleTileError, match=r"pad 1 of args\[0\]"):
        all_ranks[0].check_alive("args[0]")
