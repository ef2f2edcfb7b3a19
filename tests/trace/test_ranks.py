"""Traces of launches that ran together on several chips: posts of signals, waits, and timers."""

from __future__ import annotations

import random

from chip_notes import Chip

from tmaasync.trace import Activity, EventKind, Trace, find_lanes
from tmaasync.trace.chip import decode

SIGNAL = 7


def chip(rank: int, *, device: int | None = None, late_ns: int = 0, warps: int = 1) -> Chip:
    """A launch of a rank whose device's global timer shows an earlier time than it should."""
    where = rank if device is None else device
    timer_ns = 1_700_000_000_000_000_000 - late_ns
    return Chip(warps=warps, room=256, rank=rank, device=where, timer_ns=timer_ns)


def post(of: Chip, at_ns: float, to: int, epoch: int, *, adds: bool = False) -> None:
    of(at_ns, "signal_add" if adds else "signal_post", 0, barrier=SIGNAL, home=to, amount=epoch)


def wait(of: Chip, begin_ns: float, end_ns: float, epoch: int, *, thread: int = 0) -> None:
    for time, kind in ((begin_ns, "signal_wait_begin"), (end_ns, "signal_wait")):
        of(time, kind, thread, barrier=SIGNAL, home=of.rank, amount=epoch)


def decoded(*chips: Chip) -> list[Trace]:
    return decode([one.raw() for one in chips])


def times(trace: Trace, kind: str) -> list[int]:
    return [event.time for event in trace.of(kind=kind)]


def ping_pong(late_ns: int) -> list[Trace]:
    """Two ranks post to each other ten times; a signal takes 1000 ns."""
    first, second = chip(0), chip(1, late_ns=late_ns)
    for epoch in range(1, 11):
        begin = 5000 * epoch
        post(first, begin, 1, epoch)
        wait(second, begin - 500, begin + 1000, epoch)
        post(second, begin + 1500, 0, epoch)
        wait(first, begin + 100, begin + 2500, epoch)
    return decoded(first, second)


def test_a_wait_has_seen_the_post_of_its_epoch_and_ends_after_it() -> None:
    first, second = ping_pong(late_ns=0)

    assert [(one.rank, one.device) for one in (first, second)] == [(0, 0), (1, 1)]
    for poster, waiter, taken in ((first, second, 1000), (second, first, 1000)):
        posts = {event.sequence: event for event in poster.of(kind="signal_posted")}
        waits = list(waiter.of(kind="signal_wait_end"))
        assert len(posts) == len(waits) == 10
        for event in waits:
            seen = posts[event.sequence]
            assert (seen.barrier, seen.phase) == (event.barrier, event.phase)
            assert event.time - seen.time == taken
        assert waiter.of(kind="signal_wait_end").events["other"].tolist() == [waiter.rank] * 10
    # The earliest event of both is the second rank's first wait.
    assert times(second, "wait_begin")[0] == 0
    assert times(first, "signal_posted")[0] == 500


def test_a_device_whose_timer_is_late_is_set_right_by_its_waits() -> None:
    """Its waits would end before their posts: it is moved until none does, and no further."""
    for late_ns in (50_000, -50_000):
        first, second = ping_pong(late_ns)

        posted = dict(
            zip(times(first, "signal_posted"), times(second, "signal_wait_end"), strict=True)
        )
        replied = dict(
            zip(times(second, "signal_posted"), times(first, "signal_wait_end"), strict=True)
        )
        taken = {end - begin for begin, end in (*posted.items(), *replied.items())}
        assert taken == {0, 2000}  # a signal there and back takes 2000


def test_timers_that_agree_with_all_signals_are_left_alone() -> None:
    exact, near = ping_pong(late_ns=0), ping_pong(late_ns=900)

    assert times(exact[1], "signal_wait_end")[0] - times(exact[0], "signal_posted")[0] == 1000
    assert times(near[1], "signal_wait_end")[0] - times(near[0], "signal_posted")[0] == 100


def test_delays_pass_on_from_device_to_device() -> None:
    chips = [chip(rank, late_ns=10_000 * rank) for rank in (0, 1, 2)]
    for rank in range(2):
        post(chips[rank], 1000 + 3000 * rank, rank + 1, 1)
        wait(chips[rank + 1], 100, 2000 + 3000 * rank, 1)

    traces = decoded(*chips)

    for rank in range(2):
        assert times(traces[rank], "signal_posted") == times(traces[rank + 1], "signal_wait_end")


def test_launches_of_one_device_have_one_timer() -> None:
    """However wrong their times look, one device's are not moved apart."""
    first, second = chip(0, device=0), chip(1, device=0)
    post(first, 1000, 1, 1)
    wait(second, 0, 900, 1)

    traces = decoded(first, second)

    assert (times(traces[0], "signal_posted"), times(traces[1], "signal_wait_end")) == (
        [1000],
        [900],
    )


def test_a_post_may_be_of_a_later_epoch_and_epochs_wrap() -> None:
    first, second = chip(0), chip(1)
    epochs = [2**32 - 3, 2**32 - 1, 1, 4]
    for at, epoch in enumerate(epochs):
        post(first, 1000 * (1 + at), 1, epoch)
    for wanted in (2**32 - 3, 2**32 - 2, 0, 1, 2, 4):
        wait(second, 10_000, 10_100, wanted)
    wait(second, 10_200, 10_300, 5)  # a stream's or another process's

    posted, waited = decoded(first, second)

    numbers = [event.sequence for event in posted.of(kind="signal_posted")]
    seen = [event.sequence for event in waited.of(kind="signal_wait_end")]
    assert seen == [*(numbers[i] for i in (0, 1, 2, 2, 3, 3)), None]


def test_of_adds_a_wait_has_seen_the_last_before_its_end() -> None:
    chips = [chip(rank) for rank in range(3)]
    for rank, at in ((1, 500), (2, 300), (0, 100)):
        post(chips[rank], at, 0, 1, adds=True)
    wait(chips[0], 150, 400, 2)
    wait(chips[0], 420, 700, 3)

    traces = decoded(*chips)

    number = {
        trace.rank: event.sequence for trace in traces for event in trace.of(kind="signal_posted")
    }
    seen = [event.sequence for event in traces[0].of(kind="signal_wait_end")]
    assert seen == [number[2], number[1]]


def test_a_wait_that_was_given_up_has_no_end() -> None:
    (late,) = [chip(1, warps=2)]
    late(100, "arrive", 32, barrier=64, amount=1, number=1)
    late(200, "signal_wait_begin", 0, barrier=SIGNAL, home=1, amount=2)
    late(10_000_000_200, "signal_given_up", 0, barrier=SIGNAL, home=1, amount=2)
    late(10_000_000_300, "arrive", 0, barrier=64, amount=1, number=1)

    (trace,) = decoded(late)

    kinds = [EventKind(kind) for kind in trace.of(warp=0).events["kind"].tolist()]
    assert kinds == [EventKind.WAIT_BEGIN, EventKind.ARRIVE]
    assert times(trace, "wait_begin") == [100]
    assert times(trace, "arrive") == [0, 10_000_000_200]


def test_waits_longer_than_32_bits_count_keep_all_times() -> None:
    """2^32 cycles of 0.5 ns are 2.1 s; some waits of other warps begin before a turn of them."""
    numbers = random.Random(0)
    made = chip(0, warps=2)
    expected: list[list[int]] = [[], []]
    at = [100.0, 200.0]
    for epoch in range(20):
        for warp in (0, 1):
            end = at[warp] + numbers.choice([600, 1_500_000_000, 7_000_000_000])
            if warp:
                made(end, "wait", 32, began_ns=end - 50, barrier=64, parity=epoch % 2)
            else:
                wait(made, at[warp] + 50, end, epoch)
            made(end + 40, "arrive", 32 * warp, barrier=128, amount=1, number=1)
            expected[warp].append(round(end + 40))
            at[warp] = end + 80

    (trace,) = decoded(made)

    for warp in (0, 1):
        found = trace.of(warp=warp, kind="arrive").events["time"].tolist()
        assert found == [time - 150 for time in expected[warp]]


def test_lanes_show_waits_for_signals() -> None:
    _, second = ping_pong(late_ns=0)

    (lane,) = find_lanes(second, block=0)

    spans = [span for span in lane.spans if span.activity is Activity.WAITING_SIGNAL]
    assert {span.name for span in spans} == {f"signal {SIGNAL}"}
    assert [span.end - span.begin for span in spans] == [1500] * 10
