"""From what the GPU writes about waits to the report, without a GPU."""

from __future__ import annotations

import ctypes
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import Driver
from parity.backends import Emulate
from parity.planted_hangs import (
    AT_EMPTY,
    AT_FULL,
    BARRIERS,
    MEASURED,
    SOURCE,
    TILE_BYTES,
    PlantedHangs,
    line_of,
)

from tmaasync import ArgumentError, DriverError, HangError, HungThreads, Kernel
from tmaasync._driver import LaunchConfig
from tmaasync._emulated.backend import current_backend
from tmaasync._source.compile import Source
from tmaasync.kernel.hangs import (
    HANG_STATE,
    RECORDS,
    WAIT_RECORD,
    BarrierWord,
    hung_threads,
    unrecorded,
)
from tmaasync.kernel.watch import HangWatch, WatchedLaunch, budget_of

KERNEL = Source(text=SOURCE, name="kernel.cu")
DYNAMIC = 0x400
FULL = 3 * TILE_BYTES


def word_of(arrivals: int, missing_arrivals: int, missing_bytes: int, phase: int) -> int:
    """The bits, as `MEASURED` has them."""
    counted = (1 << 20) - missing_arrivals & 0xFFFFF
    return (
        (1 << 20) - arrivals << 1 | (-missing_bytes & 0x1FFFFF) << 21 | counted << 43 | phase << 63
    )


def record(**changed: Any) -> Any:
    """Of warp 1, all of which waits for full[1]."""
    one = np.zeros((), WAIT_RECORD)
    fields = {
        "is_written": 1,
        "block": (3, 1, 0),
        "cta_rank": 1,
        "warp": 1,
        "lanes": 0xFFFFFFFF,
        "barrier": DYNAMIC + FULL + 8,
        "dynamic": DYNAMIC,
        "phase": 1,
        "line": line_of(AT_FULL),
        "word": word_of(1, 0, 512, 1),
        "waited_ns": 250_000_000,
        "file": b"kernel.cu",
        "function": b"read_tiles",
    }
    for name, value in (fields | changed).items():
        one[name] = value
    return one


def read(*records: Any, name: str | None = "full[1]") -> tuple[HungThreads, ...]:
    whole = np.zeros(RECORDS, WAIT_RECORD)
    for place, one in enumerate(records):
        whole[place] = one
    return tuple(hung_threads(whole.tobytes(), KERNEL, lambda offset: name))


# --- records ----------------------------------------------------------------------------------


def test_a_record_becomes_who_waits_for_what() -> None:
    (wait,) = read(record())

    assert (wait.block, wait.cta_rank, wait.threads) == ((3, 1, 0), 1, tuple(range(32, 64)))
    assert wait.source == f"kernel.cu:{line_of(AT_FULL)}"
    assert wait.code == "shared.full[place.index].wait(place.phase);"
    assert (wait.function, wait.barrier_name, wait.phase) == ("read_tiles", "full[1]", 1)
    assert (wait.arrivals, wait.missing_arrivals, wait.missing_bytes) == (1, 0, 512)
    assert wait.waited_seconds == 0.25


def test_the_role_the_ring_and_the_stage_are_named() -> None:
    waiting = record(role=b"consumer", role_number=1, word=word_of(1, 1, 0, 1))
    producer = record(role=b"producer", role_number=0xFFFFFFFF, warp=0, lanes=1)

    (consumer,) = read(waiting, name="pipes.ring_k.full[2]")
    (loader,) = read(producer, name="pipes.ring_k.empty[2]")

    assert (consumer.role, consumer.ring, consumer.stage) == ("consumer 1", "pipes.ring_k", 2)
    assert str(consumer).startswith("consumer 1 (warp 1 of block (3, 1, 0)) in read_tiles at ")
    assert (
        "\n    pipes.ring_k.full[2], phase 1: 1 of 1 arrivals and 0 bytes are missing after 0.25 "
        "s; the producer has not filled stage 2 of pipes.ring_k: the arriving threads never "
        "reached it"
    ) in str(consumer)
    assert str(loader).startswith("producer (thread 0 of block (3, 1, 0)) in read_tiles at ")


def test_warps_of_different_roles_are_reported_apart() -> None:
    first, second = (record(role=b"consumer", role_number=i, warp=i) for i in range(2))

    assert [wait.role for wait in read(first, second)] == ["consumer 0", "consumer 1"]


def test_surplus_bytes_are_named_as_surplus() -> None:
    (wait,) = read(record(word=word_of(1, 0, -8, 1)))

    assert "0 of 1 arrivals are missing, and 8 bytes more than expected had arrived after" in str(
        wait
    )


def test_warps_that_wait_for_the_same_are_reported_once() -> None:
    other = record(warp=2, lanes=0b101, waited_ns=100_000_000)
    elsewhere = record(warp=0, lanes=1, line=line_of(AT_EMPTY), waited_ns=300_000_000)

    first, second = read(other, record(), elsewhere)

    assert first.threads == (0,)
    assert second.threads == (*range(32, 64), 64, 66)
    assert second.waited_seconds == 0.25


def test_the_first_cluster_comes_first_and_there_the_longest_wait() -> None:
    waited_ms = {0: 200, 1: 210, 47: 205, 48: 900}
    records = [
        record(
            block=(i, 0, 0), waited_ns=waited_ms.get(i, 0) * 1_000_000, is_written=i in waited_ms
        )
        for i in range(49)
    ]

    assert [wait.block[0] for wait in read(*records)] == [1, 47, 0, 48]


def test_what_was_not_written_is_not_read() -> None:
    assert read(record(is_written=0)) == ()


def test_offsets_count_from_dynamic_shared_memory_in_any_cta() -> None:
    rank_1 = 1 << 24

    (near,) = read(record(barrier=rank_1 + DYNAMIC + 16, dynamic=rank_1 + DYNAMIC))
    (static,) = read(record(barrier=DYNAMIC, dynamic=DYNAMIC + 1024))

    assert (near.barrier_offset, near.barrier_name) == (16, "full[1]")
    assert (static.barrier_offset, static.barrier_name) == (-1024, None)
    assert "the mbarrier at shared offset -1024, phase 1" in str(static)


def test_a_line_that_is_not_found_is_left_out() -> None:
    (wait,) = read(record(file=b"/nowhere/mine.cuh"))

    assert (wait.source, wait.code) == (f"mine.cuh:{line_of(AT_FULL)}", None)


@pytest.mark.parametrize(
    ("word", "cause"),
    [
        (word_of(1, 0, 512, 1), "the bytes expected exceed what the copies delivered"),
        (word_of(1, 0, -8, 1), "copies delivered 8 bytes more than were expected"),
        (word_of(1, 1, -1024, 1), "copies delivered 1024 bytes that no thread expected"),
        (word_of(2, 1, 1024, 1), "bytes are expected, and not everybody has arrived"),
        (
            word_of(64, 64, 0, 1),
            "the producer has not filled stage 1: the arriving threads never reached it",
        ),
        (word_of(64, 64, 0, 1), "the waiter means the phase before, whose parity is 0"),
        (word_of(64, 1, 0, 1), "63 of 64 have arrived: init() counts more than arrive"),
        (word_of(64, 64, 0, 0), "the phase has ended since"),
        (0, "these 8 bytes are no mbarrier"),
    ],
)
def test_the_state_of_the_barrier_gives_the_likely_cause(word: int, cause: str) -> None:
    (wait,) = read(record(word=word))

    assert cause in wait.cause


@pytest.mark.parametrize("word", MEASURED, ids=hex)
def test_the_bits_of_a_barrier_mean_what_they_did_on_the_chip(word: int) -> None:
    assert BarrierWord.decode(word) == MEASURED[word]
    assert word_of(*MEASURED[word]) == word


@pytest.mark.parametrize("missing_bytes", [0, 1, -1, 1_048_575, -1_048_575])
@pytest.mark.parametrize(("arrivals", "missing"), [(1, 1), (64, 0), (1_048_575, 7)])
def test_the_bits_of_a_barrier_are_read_back(
    arrivals: int, missing: int, missing_bytes: int
) -> None:
    facts = (arrivals, missing, missing_bytes, 1)

    assert BarrierWord.decode(word_of(*facts)) == facts


def test_waits_beyond_the_records_are_counted() -> None:
    state: Any = np.zeros((), HANG_STATE)
    state["waits_of_cluster"], state["waits_of_others"] = 50, 3
    assert unrecorded(state.tobytes()) == 2

    state["waits_of_others"] = 20
    assert unrecorded(state.tobytes()) == 2 + 4


# --- the error --------------------------------------------------------------------------------


def test_the_message_is_a_table_of_who_waits_for_what() -> None:
    error = HangError("hangs", 0.2, read(record()), others=3)

    assert str(error) == (
        "hangs: a wait took longer than budget_seconds=0.2, and the kernel was stopped:\n"
        f"  block (3, 1, 0), threads 32-63 in read_tiles at kernel.cu:{line_of(AT_FULL)}: "
        "shared.full[place.index].wait(place.phase);\n"
        "    full[1], phase 1: 0 of 1 arrivals and 512 bytes are missing after 0.25 s; the bytes "
        "expected exceed what the copies delivered: a load was not issued, credits another barrier "
        "or other CTAs, or brings less than expected\n"
        "  and 3 more"
    )


def test_a_hang_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(HangError("hangs", 0.2, read(record()), has_ended=False)))

    assert (error.waits, error.has_ended) == (read(record()), False)
    assert "Start a new process" in str(error)


def test_names_come_from_the_same_source_on_the_cpu() -> None:
    planted = PlantedHangs(Emulate(), debug=True)
    names = current_backend().barrier_names(planted.kernel._recipe.source, "hangs")

    assert tuple(names(FULL + 8 * index) for index in range(6)) == BARRIERS


def test_a_source_that_the_cpu_cannot_run_has_no_names() -> None:
    source = Source(
        text='extern "C" __global__ void k() { asm volatile("exit;"); }', name="kernel.cu"
    )

    assert current_backend().barrier_names(source, "k")(0) is None


# --- the budget -------------------------------------------------------------------------------


def test_the_budget_is_asked_for_or_in_the_environment_or_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TMAASYNC_BUDGET_SECONDS", raising=False)
    assert budget_of(None) == 1

    monkeypatch.setenv("TMAASYNC_BUDGET_SECONDS", "2.5")
    assert (budget_of(None), budget_of(0.2)) == (2.5, 0.2)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "soon", "1", True, 10**400])
def test_a_budget_that_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="it must be a number of seconds above 0"):
        Kernel(SOURCE, "hangs", debug=True, budget_seconds=value)
    with pytest.raises(ArgumentError, match="budget_seconds is"):
        Kernel(SOURCE, "hangs", budget_seconds=value)


# --- the watch --------------------------------------------------------------------------------


class Device(Driver):
    """A driver whose kernel has its state in ``state``."""

    def __init__(self) -> None:
        super().__init__(argument_sizes=(8, 8))
        self.state: Any = np.zeros((), HANG_STATE)

    def hang(self) -> None:
        """What the kernel does then."""
        data = record().tobytes()
        ctypes.memmove(int(self.state["records"]), data, len(data))

    def watch(self, **more: float) -> HangWatch:
        address = self.state.ctypes.data
        return HangWatch(KERNEL, "hangs", lambda _: "full[1]", address, 0, 0.2, **more)


@pytest.fixture
def device(use_driver: Callable[[object], None]) -> Device:
    device = Device()
    use_driver(device)
    return device


def test_a_launch_that_ends_raises_nothing(device: Device) -> None:
    device.busy_looks = 3

    with device.watch().watching(5):
        pass

    assert (int(device.state["budget_ns"]), int(device.state["is_draining"])) == (200_000_000, 0)
    assert device.busy_looks == -1
    assert ("cuStreamSynchronize", 5) in device.done


def test_a_kernel_that_died_is_named(device: Device) -> None:
    watch = device.watch()
    device.has_died = True

    died = "hangs died, and the CUDA context with it"
    with pytest.raises(DriverError, match=died), watch.watching(5):
        pass


def test_a_hang_is_raised_at_its_launch_and_forgotten_by_the_next(device: Device) -> None:
    watch = device.watch()

    with pytest.raises(HangError) as caught, watch.watching(5):
        device.hang()

    assert caught.value.waits == read(record())
    assert caught.value.has_ended
    with watch.watching(5):
        pass


def test_kernels_of_one_source_share_a_variable_and_report_their_own_hangs(device: Device) -> None:
    first, second = device.watch(), device.watch()
    for watch in (first, second, first, first):
        with pytest.raises(HangError, match="full"), watch.watching(5):
            device.hang()
        with watch.watching(5):
            pass


def test_a_launch_that_is_bound_once_and_called_often_is_watched_each_time(device: Device) -> None:
    config = LaunchConfig((1, 1, 1), (32, 1, 1), None, 0, False, 3)
    launch = WatchedLaunch(device.watch(), "function", config, [bytes(8)] * 2, None, 0)
    again = launch.bind((1, 2), 5)

    again()
    device.hang()
    with pytest.raises(HangError):
        again()

    assert device.launched == [(5, 0, [struct.pack("<Q", 1), struct.pack("<Q", 2)])]


def test_a_captured_launch_is_not_waited_for_and_its_hang_raised_by_the_next(
    device: Device,
) -> None:
    watch = device.watch()
    device.is_capturing = True
    with watch.watching(5):
        device.hang()
    device.is_capturing = False
    launched = []

    with pytest.raises(HangError), watch.watching(5):
        launched.append(1)

    assert launched == []


def test_a_kernel_that_does_not_end_is_reported_all_the_same(device: Device) -> None:
    device.busy_looks = 1_000_000

    with pytest.raises(HangError) as caught, device.watch(drain_seconds=0.01).watching(5):
        device.hang()

    assert not caught.value.has_ended
