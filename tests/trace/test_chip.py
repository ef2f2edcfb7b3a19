"""From device memory written by hand to the events that the emulator writes too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chip_notes import Chip

from tmaasync import ArgumentError
from tmaasync.trace import (
    NOBODY,
    Activity,
    Event,
    StageState,
    Trace,
    find_lanes,
    find_pipelines,
    plot,
)
from tmaasync.trace.chip import WARP_DTYPE

FULL, EMPTY, BUFFER, BYTES = 4096, 4128, 0, 1024
PRODUCER, CONSUMER = 0, 32


def pipeline(chip: Chip, laps: int = 3, stages: int = 2, block: int = 0) -> Chip:
    """A producer and a consumer warp; the consumer is the slower one after the first tile."""
    for stage in range(stages):
        for barrier in (FULL + 8 * stage, EMPTY + 8 * stage):
            chip(10, "init", PRODUCER, barrier=barrier, amount=1, number=1, block=block)
    for tile in range(laps * stages):
        produce(chip, tile, stages, block)
    for tile in range(laps * stages):
        consume(chip, tile, stages, block)
    return chip


def produce(chip: Chip, tile: int, stages: int, block: int) -> None:
    lap, stage = divmod(tile, stages)
    full, empty, issue = FULL + 8 * stage, EMPTY + 8 * stage, 100 + 100 * tile
    chip(
        issue - 20,
        "wait",
        PRODUCER,
        began_ns=issue - 60,
        parity=1 - lap % 2,
        barrier=empty,
        block=block,
        ready=lap == 0,
    )
    chip(issue - 10, "expect", PRODUCER, number=1, amount=BYTES, barrier=full, block=block)
    chip(issue, "load", PRODUCER, shared=BUFFER + BYTES * stage, barrier=full, block=block)


def consume(chip: Chip, tile: int, stages: int, block: int) -> None:
    lap, stage = divmod(tile, stages)
    seen = 130 + 100 * tile
    chip(
        seen,
        "wait",
        CONSUMER + 5,
        began_ns=seen - 30 if tile == 0 else seen,
        parity=lap % 2,
        ready=tile > 0,
        barrier=FULL + 8 * stage,
        block=block,
    )
    empty = EMPTY + 8 * stage
    chip(seen + 20, "arrive", CONSUMER + 5, amount=1, number=1, barrier=empty, block=block)


def values(trace: Trace, kind: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(event, name) for name in names) for event in trace.of(kind=kind)]


# --- a pipeline -----------------------------------------------------------------------------------


def test_a_pipeline_has_its_events_with_times_from_the_first_on() -> None:
    trace = pipeline(Chip()).trace()

    assert (trace.unit, trace.dropped, trace.blocks_left_out) == ("ns", 0, 0)
    assert len(trace.of(kind="load_issued")) == 6
    assert values(trace, "load_issued", "time", "thread", "barrier", "shared", "phase")[:3] == [
        (90, 0, FULL, BUFFER, 0),
        (190, 0, FULL + 8, BUFFER + BYTES, 0),
        (290, 0, FULL, BUFFER, 1),
    ]
    assert values(trace, "expect", "bytes", "phase") == [(BYTES, lap) for lap in (0, 0, 1, 1, 2, 2)]
    first: Event = next(iter(trace.of(kind="wait_end", warp=1)))
    assert (first.time, first.thread, first.barrier, first.phase) == (120, 37, FULL, 0)


def test_parities_become_phases() -> None:
    trace = pipeline(Chip(room=256), laps=20).trace()

    for warp, barrier, first in ((0, EMPTY, -1), (1, FULL, 0), (0, EMPTY + 8, -1)):
        waits = trace.of(kind="wait_end", warp=warp)
        phases = [event.phase for event in waits if event.barrier == barrier]
        assert phases == list(range(first, first + 20))


def test_arrivals_of_several_lanes_and_warps_complete_a_phase_together() -> None:
    chip = Chip()
    chip(10, "init", 0, barrier=EMPTY, amount=5, number=1)
    for time in (100, 200, 300):
        chip(time, "arrive", 32, barrier=EMPTY, amount=1, number=4)  # four lanes, once each
        chip(time + 10, "arrive", 64, barrier=EMPTY, amount=1, number=1)

    trace = chip.trace()

    assert values(trace, "phase_completed", "time", "phase") == [(100, 0), (200, 1), (300, 2)]
    assert [phase for (phase,) in values(trace, "arrive", "phase")] == [0, 0, 1, 1, 2, 2]


def test_what_a_wait_found_done_at_once_is_not_said_to_have_ended_then() -> None:
    trace = pipeline(Chip()).trace()

    completed = [
        event for event in trace.of(kind="phase_completed") if event.barrier in (FULL, FULL + 8)
    ]
    assert [(event.time, event.barrier, event.phase) for event in completed] == [(120, FULL, 0)]
    # Loads have landed at the latest when their wait began.
    assert values(trace, "load_landed", "time", "thread")[:2] == [(120, None), (220, None)]
    assert len(trace.of(kind="load_landed")) == 6


def test_stages_that_were_waited_for_fill_and_the_others_are_loaded_unseen() -> None:
    (found,) = find_pipelines(pipeline(Chip()).trace())

    spans = found.stages[0].spans
    assert [(span.state, span.begin, span.end) for span in spans[:4]] == [
        (StageState.FILLING, 80, 120),
        (StageState.READING, 120, 140),
        (StageState.LOADED, 280, 320),
        (StageState.READING, 320, 340),
    ]
    assert (found.stages[0].full, found.stages[0].empty) == (FULL, EMPTY)


def test_lanes_know_producer_and_consumer() -> None:
    producer, consumer = find_lanes(pipeline(Chip()).trace(), block=0)

    assert (producer.warps, consumer.warps) == ((0,), (1,))
    assert len(producer.loads) == 6
    assert {span.activity for span in producer.spans} == {Activity.WAITING_EMPTY}
    assert [(span.activity, span.begin, span.end) for span in consumer.spans] == [
        (Activity.WAITING_FULL, 90, 120)
    ]


# --- clocks -----------------------------------------------------------------------------------


def test_blocks_share_a_clock_though_sms_begin_to_count_apart() -> None:
    starts = (7, 2**63 - 10**6, 2**32 - 150)  # the last wraps its low half on the way
    chip = Chip(blocks=3, starts=starts, room=256)
    for block in range(3):
        pipeline(chip, laps=10, block=block)

    trace = chip.trace()

    issued = [
        [event.time for event in trace.of(block=block, kind="load_issued")] for block in range(3)
    ]
    assert issued[0] == [90 + 100 * tile for tile in range(20)]
    assert np.abs(np.array(issued[1:]) - issued[0]).max() <= 1


def test_the_length_of_a_cycle_is_read_off_both_clocks() -> None:
    """One wave of blocks, on a clock that ticks every 32 ns, with cycles of an unusual length."""
    chip = Chip(blocks=8, cycle_ns=0.6, step_ns=32, starts=tuple(range(0, 8000, 1000)), room=2048)
    for block in range(8):
        pipeline(chip, laps=200, block=block)

    trace = chip.trace(usual_cycle_ns=0.5)

    times = [event.time for event in trace.of(block=3, kind="load_issued")]
    assert abs((times[-1] - times[0]) / (100 * (len(times) - 1)) - 1) < 2e-3
    # Between blocks they agree to a part of the clock's step.
    firsts = [one.of(kind="load_issued").events["time"].min() for one in trace.by_cluster()]
    assert np.ptp(np.array(firsts, float)) < 32


def test_a_launch_too_short_for_the_clock_has_the_usual_cycle() -> None:
    chip = Chip(cycle_ns=0.5, step_ns=1000)
    pipeline(chip)

    times = [event.time for event in chip.trace(usual_cycle_ns=0.5).of(kind="load_issued")]

    assert times == [90, 190, 290, 390, 490, 590]


# --- room -------------------------------------------------------------------------------------


def test_a_full_warp_ends_the_trace_of_its_cluster_and_all_notes_are_counted() -> None:
    whole = pipeline(Chip(), laps=8).trace()
    trace = pipeline(Chip(room=20), laps=8).trace()

    # The producer's 20th note is the wait for its sixth stage, which ended at 580 ns.
    end = 570
    assert trace.end == end
    names = ["time", "kind", "thread", "barrier", "phase", "bytes", "shared"]
    kept, all_of_them = (
        one.events[names][(one.events["time"] <= end) & (one.events["thread"] != NOBODY)]
        for one in (trace, whole)
    )
    assert kept.tolist() == all_of_them.tolist()
    consumer = [trace.of(kind=kind, warp=1) for kind in ("wait_end", "arrive")]
    assert trace.dropped == 4 + 3 * 16 + 2 * 16 - 20 - sum(map(len, consumer))


def test_other_clusters_keep_theirs() -> None:
    chip = Chip(blocks=2, starts=(0, 50), room=60)
    pipeline(chip, laps=20)
    pipeline(chip, laps=3, block=1)

    trace = chip.trace()

    assert trace.dropped > 0
    assert len(trace.of(block=1, kind="load_issued")) == 6


def test_warps_have_the_roles_that_the_kernel_named() -> None:
    chip = Chip(blocks=4, warps=2, cluster=2)
    for block in range(4):
        pipeline(chip, block=block)
        chip.set_role(2 * block, b"producer")
    chip.set_role(2 * 3 + 1, b"consumer", 1)

    trace = chip.trace()

    assert trace.role_of((3, 0, 0), 0) == "producer"
    assert trace.role_of((3, 0, 0), 1) == "consumer 1"
    assert trace.role_of((2, 0, 0), 1) is None
    assert trace.roles[1, 1, 1] == "consumer 1"
    assert [lane.name for lane in find_lanes(trace, block=2)] == ["producer (warp 0)", "warp 1"]


def test_blocks_beyond_the_memory_are_counted() -> None:
    chip = Chip(blocks=100, warps=3, room=64, max_bytes=20_000)
    pipeline(chip)

    trace = chip.trace()

    kept = 20_000 // (3 * (WARP_DTYPE.itemsize + 65 * 16))
    assert trace.blocks_left_out == 100 - kept
    assert trace.blocks == ((0, 0, 0),)


def test_a_kernel_that_notes_nothing_has_no_events() -> None:
    trace = Chip().trace()

    assert (len(trace), trace.end, trace.dropped) == (0, 0, 0)


# --- clusters, stores, wgmma, meetings ----------------------------------------------------------


def test_a_multicast_lands_in_every_block_of_its_mask_when_that_one_sees_it() -> None:
    chip = Chip(blocks=2, cluster=2, starts=(0, 999))
    for block in (0, 1):
        chip(10, "init", 0, barrier=FULL, amount=1, number=1, block=block)
        chip(20, "expect", 0, barrier=FULL, amount=BYTES, number=1, block=block)
    chip(30, "load", 0, barrier=FULL, shared=BUFFER, number=0b11)
    chip(100, "wait", 32, began_ns=40, barrier=FULL, block=0)
    chip(150, "wait", 32, began_ns=40, barrier=FULL, block=1)

    trace = chip.trace()

    assert values(trace, "load_landed", "time", "block") == [(90, (0, 0, 0)), (140, (1, 0, 0))]
    assert len({sequence for (sequence,) in values(trace, "load_landed", "sequence")}) == 1


def test_arrivals_on_a_peer_s_barrier_count_there() -> None:
    chip = Chip(blocks=2, cluster=2, starts=(0, 999))
    chip(10, "init", 0, barrier=EMPTY, amount=2, number=1, block=1)
    chip(50, "arrive", 32, barrier=EMPTY, home=1, amount=1, number=1, block=0)
    chip(70, "arrive", 32, barrier=EMPTY, home=1, amount=1, number=1, block=1)

    trace = chip.trace()

    assert values(trace, "phase_completed", "time", "block", "phase") == [(60, (1, 0, 0), 0)]
    assert values(trace, "arrive", "block", "barrier_block") == [
        ((0, 0, 0), (1, 0, 0)),
        ((1, 0, 0), (1, 0, 0)),
    ]


def test_a_wait_for_stores_is_for_all_but_the_latest_groups() -> None:
    chip = Chip()
    for index in range(3):
        chip(100 * index, "store", 4, shared=1024 * index, amount=512)
        chip(100 * index + 10, "store_commit", 4)
    chip(300, "store_wait_read", 4, began_ns=230, number=1)
    chip(400, "store_wait", 4, began_ns=380, number=0)

    trace = chip.trace()

    assert values(trace, "store_issued", "shared", "bytes") == [(0, 512), (1024, 512), (2048, 512)]
    # The first wait took 70 ns, the second 20: it may have found the third store read.
    assert values(trace, "store_read", "time", "shared") == [(300, 0), (300, 1024)]
    assert values(trace, "store_written", "time", "shared") == [(400, 0), (400, 1024), (400, 2048)]
    issued = [sequence for (sequence,) in values(trace, "store_issued", "sequence")]
    assert values(trace, "wait_end", "time", "sequence") == [(300, issued[1]), (400, issued[2])]
    (lane,) = find_lanes(trace, block=0)
    spans = [(span.activity, span.begin, span.end) for span in lane.spans]
    assert spans == [
        (Activity.STORING, 0, 300),
        (Activity.STORING, 100, 300),
        (Activity.WAITING_STORES, 230, 300),
        (Activity.WAITING_STORES, 380, 400),
    ]


def test_addresses_of_a_block_of_a_cluster_tell_its_rank_and_are_offsets_all_the_same() -> None:
    chip = Chip(blocks=2, cluster=2)
    for block in (0, 1):
        chip(50, "arrive", 0, barrier=64, amount=1, number=1, block=block)
    chip._warps["dynamic_shared"][3:] |= 1 << 24

    assert values(chip.trace(), "arrive", "barrier") == [(64,), (64,)]


def test_a_wait_for_no_store_at_all_leaves_nothing() -> None:
    chip = Chip()
    chip(100, "store_wait_read", 4, began_ns=50, number=0)
    chip(200, "mma_wait", 4, began_ns=150, number=1)

    assert len(chip.trace()) == 0


def test_wgmma_of_four_warps_is_one_and_over_when_its_wait_ends() -> None:
    chip = Chip(warps=8)
    for warp in range(4, 8):
        for group, time in enumerate((100, 200)):
            chip(time + warp, "mma_commit", 32 * warp)
            chip(time + 80 + warp, "mma_wait", 32 * warp, began_ns=time + 10 + warp, number=1)
            del group
        chip(400 + warp, "mma_wait", 32 * warp, began_ns=300, number=0)

    trace = chip.trace()

    assert values(trace, "mma_issued", "time", "warp") == [(0, 4), (100, 4)]
    assert values(trace, "mma_executed", "time") == [(180,), (300,)]
    lanes = find_lanes(trace, block=0)
    assert [lane.warps for lane in lanes] == [(4, 5, 6, 7)]
    assert {span.activity for span in lanes[0].spans} == {Activity.COMPUTING}


def test_named_barriers_and_cluster_barriers_are_waits_too() -> None:
    chip = Chip()
    chip(50, "arrive", 0, barrier=FULL, amount=1, number=1)
    chip(100, "named_arrive", 0, barrier=3)
    chip(200, "named_wait", 0, began_ns=150, barrier=2)
    chip(300, "cluster_arrive", 0)
    chip(400, "cluster_wait", 0, began_ns=301)

    trace = chip.trace()

    assert values(trace, "named_arrive", "time", "barrier_name") == [
        (50, "named barrier 3"),
        (100, "named barrier 2"),
    ]
    (lane,) = find_lanes(trace, block=0)
    assert [(span.activity, span.begin, span.end) for span in lane.spans] == [
        (Activity.WAITING_NAMED, 100, 150),
        (Activity.WAITING_CLUSTER, 250, 350),
    ]


def test_static_variables_lie_after_the_dynamic_ones_as_on_the_emulator() -> None:
    chip = Chip(shared_bytes=5000)
    chip(50, "arrive", 0, barrier=64, amount=1, number=1)
    plain = chip.trace()
    chip._warps["dynamic_shared"] = 2048  # 1 KiB of static variables below
    moved = chip.trace()

    assert values(plain, "arrive", "barrier") == [(64,)]
    assert values(moved, "arrive", "barrier") == [(5120 + 64,)]


# --- pictures ---------------------------------------------------------------------------------


def edges(figure: Any) -> Any:
    """How wide the edges of the bars of warps are."""
    return np.concatenate([bars.get_linewidths() for bars in figure.axes[0].collections])


def test_a_picture_may_show_a_part_of_the_time_and_counts_nanoseconds() -> None:
    pytest.importorskip("matplotlib")
    chip = pipeline(Chip(room=1024), laps=100)

    whole, part = plot(chip.trace()), plot(chip.trace(), between=(100, 900))

    for figure, extent in ((whole, (30, 20_040)), (part, (100, 900))):
        warps, stages = figure.axes
        assert stages.get_xlim() == warps.get_xlim() == extent
        assert stages.get_xlabel() == "time in nanoseconds"
    # An edge would cover what is thin: of 200 waits in 1400 pixels none has one.
    thin, wide = map(edges, (whole, part))
    assert not thin.any()
    assert wide.any()


@pytest.mark.parametrize("between", [(5, 5), (-1, 5), (9, 3)])
def test_an_empty_time_is_refused(between: tuple[int, int]) -> None:
    pytest.importorskip("matplotlib")

    with pytest.raises(ArgumentError, match=r"between is .* Pass"):
        plot(pipeline(Chip()).trace(), between=between)
