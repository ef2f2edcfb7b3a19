"""Who waits for whom, against numbers worked out by hand; and traces in files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from chip_notes import Chip

from tmaasync import ArgumentError
from tmaasync.trace import (
    EVENT_DTYPE,
    Activity,
    Collector,
    EventKind,
    Role,
    Share,
    Trace,
    load,
    record,
)

FULL, EMPTY, OTHER = 4096, 4128, 4160
NAMES = {FULL: "full[0]", FULL + 8: "full[1]", EMPTY: "empty[0]", OTHER: "done"}


def name_of(offset: int) -> str:
    return NAMES.get(offset, f"offset {offset}")


def work(chip: Chip, *, block: int, begin: int, scale: int) -> None:
    """A block of 500 times the scale, in nanoseconds."""

    def at(time: int) -> int:
        return begin + scale * time

    for barrier in (FULL, FULL + 8, EMPTY):
        chip(at(0), "init", 0, barrier=barrier, amount=1, number=1, block=block)
    for stage in (0, 1):
        full = FULL + 8 * stage
        chip(at(20 * stage), "expect", 0, barrier=full, amount=64, number=1, block=block)
        chip(at(20 * stage + 10), "load", 0, barrier=full, block=block)
    chip(at(400), "wait", 0, began_ns=at(300), barrier=EMPTY, parity=0, block=block)
    for thread in (128, 160):
        chip(at(100), "wait", thread, began_ns=at(50), barrier=FULL, block=block)
        chip(at(300), "wait", thread, began_ns=at(150), barrier=FULL + 8, block=block)
    chip(at(310), "arrive", 160, barrier=EMPTY, amount=1, number=1, block=block)
    chip(at(320), "store", 160, shared=0, amount=64, block=block)
    chip(at(330), "store_commit", 160, block=block)
    chip(at(445), "store_wait_read", 160, began_ns=at(420), number=0, block=block)
    chip(at(500), "named_wait", 128, began_ns=at(480), barrier=1, block=block)


def worked_out() -> Trace:
    """Two blocks of 1000 and 500 ns: one warp loads, two consume, one of which stores."""
    chip = Chip(blocks=2, warps=8, cycle_ns=1.0, starts=(0, 77))
    work(chip, block=0, begin=0, scale=2)
    work(chip, block=1, begin=1000, scale=1)
    plain = chip.trace(usual_cycle_ns=1.0)
    return Trace(
        kernel_name="worked_out",
        grid=plain.grid,
        block=plain.block,
        cluster=plain.cluster,
        events=plain.events,
        name_of=name_of,
        unit="ns",
        dropped=3,
        blocks_left_out=4,
    )


def shares(role: Role) -> dict[Activity, Share]:
    return {share.activity: share for share in role.shares}


def test_shares_are_those_worked_out_by_hand() -> None:
    summary = worked_out().summary()

    assert (summary.time, summary.block_time, summary.blocks) == (1500, 750, 2)
    assert (summary.unit, summary.dropped, summary.blocks_left_out) == ("ns", 3, 4)
    loader, first, second = summary.roles
    assert [role.name for role in summary.roles] == ["warp 0", "warp 4", "warp 5"]
    assert [role.deeds for role in summary.roles] == [("loads",), (), ("stores",)]

    (waits,) = loader.shares
    assert (waits.activity, waits.on, waits.whom) == (Activity.WAITING_EMPTY, "empty", ("warp 5",))
    assert waits.share == pytest.approx(100 / 500)
    assert (waits.count, waits.mean, waits.longest) == (2, 150, 200)

    found = shares(first)
    full = found[Activity.WAITING_FULL]
    assert (full.on, full.whom, full.count) == ("full", ("warp 0",), 4)
    assert full.share == pytest.approx((50 + 150) / 500)
    assert (full.mean, full.longest) == (150, 300)
    named = found[Activity.WAITING_NAMED]
    assert (named.on, named.whom) == ("named barrier 1", ())
    assert named.share == pytest.approx(20 / 500)

    found = shares(second)
    assert found[Activity.WAITING_STORES].share == pytest.approx(25 / 500)
    # Under way from its issue to the end of the wait for it.
    # The wait of the second block, 25 ns, may have found its store read.
    assert found[Activity.STORING].share == pytest.approx((445 - 320) * 2 / 1500)


def log(*rows: tuple[int, str, int, dict[str, int]]) -> Trace:
    """An emulator's trace."""
    nothing = 0xFFFFFFFF
    events = np.zeros(len(rows), EVENT_DTYPE)
    for event, (time, kind, thread, more) in zip(events, rows, strict=True):
        fields = {"barrier": nothing, "shared": nothing, "sequence": nothing} | more
        for name, value in {
            "time": time,
            "kind": EventKind.of(kind),
            "thread": thread,
            **fields,
        }.items():
            event[name] = value
    one = (1, 1, 1)
    return Trace(kernel_name="k", grid=one, block=(256, 1, 1), cluster=one, events=events)


def test_wgmma_under_way_counts_once_where_groups_overlap_and_for_all_four_warps() -> None:
    trace = log(
        (0, "arrive", 128, {"barrier": 64}),
        (100, "mma_issued", 128, {"sequence": 1}),
        (200, "mma_issued", 128, {"sequence": 2}),
        (300, "mma_executed", 0xFFFF, {"sequence": 1}),
        (400, "mma_executed", 0xFFFF, {"sequence": 2}),
        (500, "mma_issued", 128, {"sequence": 3}),
        (600, "mma_executed", 0xFFFF, {"sequence": 3}),
        (1000, "arrive", 128, {"barrier": 64}),
    )

    role, others = trace.summary().roles

    assert (role.name, role.deeds) == ("warp 4", ("multiplies",))
    assert (others.name, others.deeds) == ("warps 5-7", ("multiplies",))
    assert others.shares[0].share == role.shares[0].share
    (share,) = role.shares
    assert (share.activity, share.on) == (Activity.COMPUTING, "wgmma")
    assert share.share == pytest.approx((300 + 100) / 1000)
    assert share.count == 3


def test_a_wait_that_never_ended_lasts_to_the_end() -> None:
    trace = log(
        (0, "load_issued", 0, {"barrier": 8, "sequence": 0}),
        (250, "wait_begin", 32, {"barrier": 8}),
        (1000, "arrive", 0, {"barrier": 16}),
    )

    _, waiting = trace.summary().roles

    (share,) = waiting.shares
    assert share.activity is Activity.WAITING_FULL
    assert share.share == pytest.approx(0.75)


def test_warps_that_only_meet_the_others_have_no_role() -> None:
    trace = log(
        (0, "arrive", 0, {"barrier": 64}),
        (0, "wait_begin", 0, {"barrier": 72}),
        (5, "wait_end", 0, {"barrier": 72}),
        (5, "named_arrive", 64, {"barrier": 0}),
        (9, "named_wait_end", 64, {"barrier": 0}),
    )

    assert [role.name for role in trace.summary().roles] == ["warp 0"]


def test_a_trace_without_events_has_no_summary() -> None:
    with pytest.raises(ArgumentError, match="trace of k has no events"):
        log().summary()


# --- files ------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    trace, kept = worked_out(), Collector()
    kept.take(trace)
    kept.take(log((0, "arrive", 0, {"barrier": 64})))

    kept.save(tmp_path / "both.json")
    first, second = load(tmp_path / "both.json").launches

    assert first.events.tobytes() == trace.events.tobytes()
    for name in ("kernel_name", "grid", "block", "cluster", "unit", "dropped", "blocks_left_out"):
        assert getattr(first, name) == getattr(trace, name)
    assert [first.name_of(offset) for offset in (FULL, EMPTY, 123)] == [
        "full[0]",
        "empty[0]",
        "offset 123",
    ]
    assert first.summary() == trace.summary()
    assert (second.kernel_name, second.unit) == ("k", "step")


def test_nanoseconds_are_a_thousandth_of_perfetto_s_unit() -> None:
    document = json.loads(worked_out().to_json())

    ends = [record["ts"] for record in document["traceEvents"] if record["ph"] == "E"]
    assert max(ends) == pytest.approx(1.5)
    assert document["displayTimeUnit"] == "ns"


def test_perfetto_may_get_the_first_blocks_only(tmp_path: Path) -> None:
    trace = worked_out()

    trace.save(tmp_path / "one.json", blocks=1)

    document = json.loads((tmp_path / "one.json").read_text())
    assert {record["pid"] for record in document["traceEvents"]} == {1}
    assert len(load(tmp_path / "one.json")) == len(trace)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "{}",
        '{"otherData": {"tmaasync": [{}]}}',
        '{"otherData": {"tmaasync": [{"names": {}, "events": "####"}]}}',
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)

    with pytest.raises(ArgumentError, match="holds no trace of this library"):
        load(tmp_path / "other.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        load(tmp_path / "none.json")


# --- recording --------------------------------------------------------------------------------


@pytest.mark.parametrize("notes", [0, -1])
def test_room_for_nothing_is_refused(notes: int) -> None:
    with (
        pytest.raises(ArgumentError, match=f"notes_per_warp is {notes}"),
        record(notes_per_warp=notes),
    ):
        pass


def test_a_collector_may_keep_the_latest_only() -> None:
    kept, traces = Collector(latest=1), [log(), log()]
    for trace in traces:
        kept.take(trace)

    assert kept.launches == (traces[1],)
