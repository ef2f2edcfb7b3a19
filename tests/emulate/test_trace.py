"""Traces of the emulator: logs written by hand, whose pipelines, lanes and pictures are known."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync.errors import ArgumentError
from tmaasync.trace import (
    EVENT_DTYPE,
    NOBODY,
    NOTHING,
    Activity,
    EventKind,
    Trace,
    current_collector,
    find_lanes,
    find_pipelines,
    plot,
    record,
)

FULL, EMPTY, A, B = 4096, 4128, 0, 512
NAMES = {
    **{FULL + 8 * stage: f"full[{stage}]" for stage in range(4)},
    **{EMPTY + 8 * stage: f"empty[{stage}]" for stage in range(4)},
}


def name_of(offset: int) -> str:
    return NAMES.get(offset, f"offset {offset}")


@dataclass
class Log:
    """Records, as the runtime writes them."""

    rows: list[tuple[int, ...]] = field(default_factory=list)

    def __call__(self, time: int, kind: str, thread: int = NOBODY, **more: int) -> None:
        rank = more.get("rank", 0)
        fields = {
            "time": time,
            "address": 0,
            "cluster": 0,
            "shared": NOTHING,
            "barrier": NOTHING,
            "phase": 0,
            "bytes": 0,
            "rank": rank,
            "thread": thread,
            "kind": EventKind.of(kind),
            "other": rank,
            "sequence": NOTHING,
        } | more
        self.rows.append(tuple(fields[name] for name in EVENT_DTYPE.names or ()))

    def wait(self, begin: int, end: int, thread: int, **more: int) -> None:
        self(begin, "wait_begin", thread, **more)
        self(end, "wait_end", thread, **more)

    def load(self, issue: int, landing: int, thread: int, **more: int) -> None:
        self(issue, "load_issued", thread, **more)
        self(landing, "load_landed", **more)

    @property
    def raw(self) -> bytes:
        return np.array(self.rows, EVENT_DTYPE).tobytes()

    def trace(
        self,
        *,
        named: bool = True,
        grid: tuple[int, int, int] = (1, 1, 1),
        cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> Trace:
        return Trace(
            kernel_name="gemm",
            grid=grid,
            block=(384, 1, 1),
            cluster=cluster,
            events=np.frombuffer(self.raw, EVENT_DTYPE),
            name_of=name_of if named else "offset {}".format,
        )

    def in_cluster(self) -> Trace:
        """Return the trace of two clusters of two CTAs."""
        return self.trace(grid=(4, 1, 1), cluster=(2, 1, 1))


def copy_log(tiles: int = 4, stages: int = 2) -> Log:
    """Return the log of a thread that loads two stages and stores them in bulk groups."""
    log = Log()

    def load(time: int, tile: int) -> None:
        stage, phase = tile % stages, tile // stages
        full = {"barrier": 2048 + 8 * stage, "phase": phase}
        log(time, "expect", 0, bytes=512, **full)
        log.load(time + 1, time + 20, 0, shared=512 * stage, bytes=512, sequence=tile, **full)
        log(time + 20, "phase_completed", **full)

    load(0, 0)
    load(2, 1)
    for tile in range(tiles):
        begin, stage, phase = 10 + 40 * tile, tile % stages, tile // stages
        log.wait(begin, begin + 15, 0, barrier=2048 + 8 * stage, phase=phase)
        store = {"shared": 512 * stage, "sequence": 100 + tile}
        log(begin + 16, "store_issued", 0, bytes=512, **store)
        log(begin + 24, "store_read", **store)
        log.wait(begin + 17, begin + 25, 0, sequence=100 + tile)
        if tile + stages < tiles:
            load(begin + 26, tile + stages)
    log(10 + 40 * tiles, "thread_end", 0)
    return log


def multicast_log() -> Log:
    """Return a log in which rank 0 loads into both CTAs, and rank 1 expects the bytes later."""
    log = Log()
    full = {"barrier": 2048, "phase": 0}
    log(1, "expect", 0, bytes=512, **full)
    log(2, "load_issued", 0, shared=0, bytes=512, sequence=0, **full)
    log(5, "expect", 0, bytes=512, rank=1, **full)
    for rank, time in ((0, 20), (1, 24)):
        log(time, "load_landed", shared=0, bytes=512, sequence=0, rank=rank, **full)
        log(time, "phase_completed", rank=rank, **full)
        log.wait(6, time + 3, 32, rank=rank, **full)
        log(time + 30, "thread_end", 32, rank=rank)
    return log


# --- events -------------------------------------------------------------------------------------


def test_an_event_says_none_where_the_record_has_nothing() -> None:
    log = Log()
    log(3, "load_landed", shared=512, barrier=FULL, bytes=64, sequence=7)
    log(4, "wait_begin", 70, barrier=EMPTY, phase=NOTHING)
    log(5, "named_arrive", 70, barrier=2)
    log(6, "thread_end", 70)
    landed, wait, named, over = log.trace()

    assert (landed.thread, landed.warp, landed.sequence, landed.bytes) == (None, None, 7, 64)
    assert (landed.shared, landed.barrier, landed.barrier_name) == (512, FULL, "full[0]")
    assert (wait.thread, wait.warp, wait.phase, wait.sequence) == (70, 2, -1, None)
    assert named.barrier_name == "named barrier 2"
    assert (over.barrier, over.barrier_name, over.phase, over.address) == (None, None, None, None)


def test_filters_choose_by_block_kind_warp_and_cluster() -> None:
    trace = multicast_log().in_cluster()

    assert {event.block for event in trace.of(block=(1, 0, 0))} == {(1, 0, 0)}
    assert len(trace.of(block=1, kind="load_landed")) == 1
    assert len(trace.of(kind=("expect", EventKind.LOAD_ISSUED))) == 3
    assert {event.thread for event in trace.of(warp=1)} == {32}
    assert len(trace.of(cluster=0)) == len(trace)
    assert trace.blocks == ((0, 0, 0), (1, 0, 0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda trace: trace.of(block=4), "block is 4; the grid has 4 x 1 x 1"),
        (lambda trace: trace.of(block=(0, 1)), r"block is \(0, 1\)"),
        (lambda trace: trace.of(kind="load"), "kind is 'load'; it must be .* load_issued"),
    ],
)
def test_a_filter_that_cannot_match_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(multicast_log().in_cluster())


# --- pipelines ----------------------------------------------------------------------------------


def test_without_an_empty_barrier_the_store_frees_the_stage() -> None:
    (pipeline,) = find_pipelines(copy_log().trace(named=False))

    assert [stage.empty for stage in pipeline.stages] == [None, None]
    assert [(span.state.value, span.begin, span.end) for span in pipeline.stages[0].spans] == [
        ("filling", 0, 20),
        ("full", 20, 25),
        ("being read", 25, 34),
        ("filling", 36, 56),
        ("full", 56, 105),
        ("being read", 105, 114),
    ]


def test_a_multicast_fills_the_stages_of_all_its_targets() -> None:
    pipelines = find_pipelines(multicast_log().in_cluster())

    assert [pipeline.block for pipeline in pipelines] == [(0, 0, 0), (1, 0, 0)]
    assert [pipeline.stages[0].spans[0].begin for pipeline in pipelines] == [1, 2]
    assert [pipeline.stages[0].spans[0].end for pipeline in pipelines] == [20, 24]


# --- lanes --------------------------------------------------------------------------------------


def test_a_wait_without_barrier_is_for_what_its_sequence_names() -> None:
    log = Log()
    log(0, "mma_issued", 0, sequence=1)
    log(20, "mma_executed", 0, sequence=1)
    log.wait(1, 24, 0, sequence=1)
    log(30, "store_issued", 0, shared=0, sequence=2)
    log(39, "store_read", shared=0, sequence=2)
    log.wait(31, 40, 0, sequence=2)
    log.wait(50, 60, 0)

    spans = find_lanes(log.trace(), block=0)[0].spans

    assert [(span.activity, span.begin, span.end) for span in spans] == [
        (Activity.COMPUTING, 0, 24),
        (Activity.STORING, 30, 39),
        (Activity.WAITING_STORES, 31, 40),
        (Activity.WAITING, 50, 60),
    ]


# --- JSON ---------------------------------------------------------------------------------------


def document(text: str) -> list[dict[str, Any]]:
    """Return the records of a file, after checking the rules of the trace-event format."""
    records: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    for entry in records:
        assert entry.keys() >= {"ph", "pid", "tid", "name"}
        assert entry["ph"] in "BEMCsf"
        assert entry["ph"] == "M" or isinstance(entry["ts"], int)
        assert entry["ph"] not in "sf" or entry.keys() >= {"id", "cat"}
    for bars in tracks(records, "BE").values():
        assert [entry["ph"] for entry in bars] == ["B", "E"] * (len(bars) // 2)
        assert [entry["name"] for entry in bars[::2]] == [entry["name"] for entry in bars[1::2]]
        times = [entry["ts"] for entry in bars]
        assert times == sorted(times)
    return records


def tracks(records: list[dict[str, Any]], phases: str) -> dict[tuple[int, int], list[Any]]:
    found = defaultdict(list)
    for entry in records:
        if entry["ph"] in phases:
            found[entry["pid"], entry["tid"]].append(entry)
    return found


def labels(records: list[dict[str, Any]], kind: str) -> list[str]:
    return [entry["args"]["name"] for entry in records if entry["name"] == kind]


def test_every_landing_has_a_flow_from_a_bar_of_its_load_to_its_stage() -> None:
    records = document(multicast_log().in_cluster().to_json())
    starts = [entry for entry in records if entry["ph"] == "s"]
    ends = [entry for entry in records if entry["ph"] == "f"]
    bars = tracks(records, "B")

    assert [entry["id"] for entry in starts] == [entry["id"] for entry in ends] == [1, 2]
    assert [(entry["pid"], entry["ts"]) for entry in starts] == [(1, 2), (1, 2)]
    assert [(entry["pid"], entry["ts"]) for entry in ends] == [(1, 20), (2, 24)]
    for entry in starts:
        track = bars[entry["pid"], entry["tid"]]
        assert any(bar["name"] == "load 0" and bar["ts"] == entry["ts"] for bar in track)


# --- collecting ---------------------------------------------------------------------------------


def test_events_go_to_the_innermost_record() -> None:
    assert current_collector() is None
    with record() as outer:
        assert current_collector() is outer
        with record() as inner:
            assert current_collector() is inner
        assert current_collector() is outer
    assert current_collector() is None


# --- pictures -----------------------------------------------------------------------------------


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    trace = multicast_log().in_cluster()
    with record() as nothing:
        pass

    with pytest.raises(ArgumentError, match=r"suffix must be \.png or \.svg"):
        plot(trace, tmp_path / "x.pdf")
    with pytest.raises(ArgumentError, match="block is 3; the trace of gemm has no events of it"):
        plot(trace, block=3)
    with pytest.raises(ArgumentError, match="trace has 0 launches"):
        plot(nothing)
    with pytest.raises(ArgumentError, match="no events"):
        plot(Log().trace())
