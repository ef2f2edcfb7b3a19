"""Traced launches with signals on made-up devices: what happens when, and what is refused."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chip_notes import Chip
from fake_arrays import CupyArray
from fake_driver import Driver, real
from kernel.test_peers import tile, write_record

from tmaasync import DriverError, HangError, Kernel, LaunchError, Signals, enable_peer_access, trace
from tmaasync.trace.chip import BUFFER_DTYPE

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"
NOTES = 16
RANKS = 3


class Devices(Driver):
    """Three devices whose kernels write what a GPU left there: a post to the next rank."""

    def __init__(self) -> None:
        super().__init__(devices=RANKS, argument_sizes=(160, 4, 4, 4))
        self.variables["tmaasync_trace"] = BUFFER_DTYPE.itemsize

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: int, extra: int) -> Any:  # noqa: N802
        launched = super().cuLaunchKernelEx(config, function, pointers, extra)
        module = int(function) // 100 - 1
        if (module, "tmaasync_trace") in self._addresses:
            chip = Chip(warps=1, room=NOTES)
            chip(100, "signal_post", 0, barrier=5, home=1, amount=len(self.launched))
            left = chip.raw().raw
            home = int(self.variable(module, "tmaasync_trace", BUFFER_DTYPE)["warps"])
            assert ctypes.string_at(home, len(left)) == bytes(len(left))
            ctypes.memmove(home, left, len(left))
        return launched

    def cuMemcpyDtoH(self, target: int, source: int, size: int) -> Any:  # noqa: N802
        if self.has_died:
            return (real.CUresult.CUDA_ERROR_LAUNCH_FAILED,)
        return super().cuMemcpyDtoH(target, source, size)

    def calls(self, *names: str) -> list[str]:
        return [what[0] for what in self.done if what[0] in names]


@pytest.fixture
def driver(
    monkeypatch: pytest.MonkeyPatch, use_driver: Callable[[object], None]
) -> Iterator[Devices]:
    found = Devices()
    use_driver(found)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)  # the driver loads modules then
    enable_peer_access(range(RANKS))
    yield found
    gc.collect()  # what a traceback kept alive frees its memory of this driver


def signals(devices: int = RANKS) -> Signals:
    return Signals([CupyArray(np.zeros(8, np.uint32), rank % devices) for rank in range(RANKS)])


def post_to(**options: Any) -> Kernel:
    return Kernel(SOURCE, "post_to", types={"Tile": tile(0)}, **options)


def args(of: Signals, rank: int) -> tuple[Any, ...]:
    return of[rank], np.uint32(0), np.uint32(5), np.uint32(1)


def test_a_call_allocates_and_waits_for_nothing_and_synchronize_hands_over(driver: Devices) -> None:
    all_ranks, kernel = signals(), post_to()
    with trace.record(notes_per_warp=NOTES) as kept:
        prepared = [kernel.prepare(1, 32, args(all_ranks, rank)) for rank in range(RANKS)]
        before = len(driver.done), len(driver.modules)
        for launch in reversed(prepared):
            launch()
    assert (len(driver.done), len(driver.modules)) == before
    assert len(kept) == 0

    all_ranks.synchronize()

    assert [(one.rank, one.device) for one in kept.launches] == [(2, 2), (1, 1), (0, 0)]
    posts = [event for one in kept.launches for event in one.of(kind="signal_posted")]
    assert [(event.barrier, event.phase, event.sequence) for event in posts] == [
        (5, 1 + number, number) for number in range(RANKS)
    ]
    assert [one.grid for one in kept.launches] == [(1, 1, 1)] * RANKS
    assert all(config.sharedMemBytes == 16 for config in driver.launch_configs)
    allocated = driver.calls("cuMemAlloc").count("cuMemAlloc")
    del prepared, launch
    assert driver.calls("cuMemFree") == ["cuMemFree"] * allocated


def test_every_launch_has_variables_of_its_own_and_they_are_used_again(driver: Devices) -> None:
    all_ranks, kernel = signals(devices=1), post_to()
    for _ in range(2):
        with trace.record(notes_per_warp=NOTES) as kept:
            prepared = [kernel.prepare(1, 32, args(all_ranks, rank)) for rank in range(RANKS)]
            for launch in prepared:
                launch()
        all_ranks.synchronize()
        assert len({int(function) for function in driver.functions[-RANKS:]}) == RANKS  # type: ignore[call-overload]
        assert [one.rank for one in kept.launches] == [0, 1, 2]
        del prepared, launch
    assert len(driver.modules) == 1 + RANKS


def test_a_traced_launch_of_a_debug_build_does_not_wait_for_its_end(driver: Devices) -> None:
    driver.variables["tmaasync_hang_state"] = 48
    all_ranks, kernel = signals(), post_to(debug=True)
    with trace.record(notes_per_warp=NOTES) as kept:
        prepared = [kernel.prepare(1, 32, args(all_ranks, rank)) for rank in range(RANKS)]
        driver.busy_looks = 1 << 30  # each waits for the others
        for launch in prepared:
            launch()
    all_ranks.synchronize()

    assert [one.rank for one in kept.launches] == [0, 1, 2]


def test_a_prepared_launch_is_called_again_after_synchronize(driver: Devices) -> None:
    all_ranks, kernel = signals(), post_to()
    with trace.record(notes_per_warp=NOTES) as kept:
        launch = kernel.prepare(1, 32, args(all_ranks, 0))
        tags = set()
        for _ in range(3):
            launch()
            module = driver.modules.index(0, 1)
            tags.add(int(driver.variable(module, "tmaasync_trace", BUFFER_DTYPE)["launch"]))
            with pytest.raises(LaunchError, match=r"post_to is called again inside trace\.record"):
                launch()
            all_ranks.synchronize()
    assert len(kept.launches) == len(tags) == 3


TAPS = """
#include <tmaasync/tmaasync.cuh>
extern "C" __constant__ int taps = 1;
extern "C" __global__ void filter(const tmaasync::Signals signals, int to, int signal, int epoch) {
    signals.post(to, signal, epoch + taps);
}
"""


def test_variables_that_were_written_have_their_values_in_all_modules(driver: Devices) -> None:
    driver.variables["taps"] = 4
    all_ranks, kernel = signals(), Kernel(TAPS, "filter")
    kernel.variable("taps", device=0).write(np.int32(7))
    with trace.record(notes_per_warp=NOTES):
        first = kernel.prepare(1, 32, args(all_ranks, 0))
        kernel.variable("taps", device=0).write(np.int32(8))
        second = kernel.prepare(1, 32, args(all_ranks, 0))

    values = [int(driver.variable(module, "taps", np.dtype("<i4"))) for module in range(3)]
    assert values == [8, 8, 8]
    del first, second


# --- what is refused ------------------------------------------------------------------------------


def test_a_call_that_is_not_prepared_is_refused(driver: Devices) -> None:
    with trace.record(), pytest.raises(LaunchError, match=r"post_to takes Signals, and is called"):
        post_to()(1, 32, args(signals(), 0))

    assert not driver.launched


def test_a_launch_prepared_outside_of_record_is_refused(driver: Devices) -> None:
    launch = post_to().prepare(1, 32, args(signals(), 0))
    with trace.record(), pytest.raises(LaunchError, match=r"prepared outside of trace\.record"):
        launch()
    assert not driver.launched

    launch()

    assert len(driver.launched) == 1


def test_nothing_is_prepared_while_traced_launches_are_in_flight(driver: Devices) -> None:
    all_ranks, kernel = signals(), post_to()
    with trace.record(notes_per_warp=NOTES):
        kernel.prepare(1, 32, args(all_ranks, 0))()
        with pytest.raises(LaunchError, match=r"Prepare all launches before the first call"):
            kernel.prepare(1, 32, args(all_ranks, 1))
        all_ranks.synchronize()
        kernel.prepare(1, 32, args(all_ranks, 1))


def test_a_launch_into_a_graph_is_refused(driver: Devices) -> None:
    all_ranks, kernel = signals(), post_to()
    with trace.record(notes_per_warp=NOTES):
        launch = kernel.prepare(1, 32, args(all_ranks, 0))
        driver.is_capturing = True
        with pytest.raises(LaunchError, match=r"post_to is launched into a CUDA graph .* Capture"):
            launch()

    assert not driver.launched


def test_a_block_without_room_for_the_slots_is_refused(driver: Devices) -> None:
    all_ranks, kernel = signals(), post_to()
    most = driver._limits.shared_bytes
    with trace.record(), pytest.raises(LaunchError, match=r"to trace post_to, 16 more are needed"):
        kernel.prepare(1, 32, args(all_ranks, 0), shared_mem=most)

    assert not driver.launched


TWO = """
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void two(const tmaasync::Signals one, const tmaasync::Signals other) {
    one.post(0, 0, 1);
    other.post(0, 0, 1);
}
"""


def test_two_signals_are_refused(driver: Devices) -> None:
    with trace.record(), pytest.raises(LaunchError, match=r"two takes 2 Signals; a trace knows"):
        Kernel(TWO, "two").prepare(1, 32, (signals()[0], signals()[0]))


# --- launches that end badly ----------------------------------------------------------------------


def test_a_hang_is_raised_after_the_traces_were_handed_over(driver: Devices) -> None:
    all_ranks, kernel = signals(), post_to()
    with trace.record(notes_per_warp=NOTES) as kept:
        kernel.prepare(1, 32, args(all_ranks, 1))()
    write_record(driver.pinned[-1], 8, rank=1, signal=3, epoch=9, seen=8, waited_ns=10**9)

    with pytest.raises(HangError, match="signal 3 has epoch 8"):
        all_ranks.synchronize()

    assert [one.rank for one in kept.launches] == [1]


def test_a_kernel_that_died_takes_its_trace_along(driver: Devices) -> None:
    all_ranks, kernel = signals(), post_to()
    with trace.record(notes_per_warp=NOTES) as kept:
        launch = kernel.prepare(1, 32, args(all_ranks, 0))
        launch()
    driver.has_died = True

    with pytest.raises(DriverError):
        all_ranks.synchronize()

    assert kept.launches == ()
    driver.has_died = False


def test_a_launch_outside_of_record_is_the_plain_one(driver: Devices) -> None:
    all_ranks, kernel = signals(), post_to()
    with trace.record(notes_per_warp=NOTES) as kept:
        launch = kernel.prepare(1, 32, args(all_ranks, 0))
    launch()
    all_ranks.synchronize()

    assert kept.launches == ()
    assert driver.launch_configs[-1].sharedMemBytes == 0
