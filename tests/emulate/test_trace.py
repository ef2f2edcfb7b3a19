"""Traces of the emulator: logs written by hand, whose pipelines, lanes and pictures are known."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync.errors import ArgumentError, BackendError
from tmaasync.trace import (
    EVENT_DTYPE,
    NOBODY,
    NOTHING,
    Activity,
    EventKind,
    StageState,
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


@dataclass
class Consumer:
    """A warpgroup of the GEMM below: the times when it is ready and its last wgmma has run."""

    first: int
    ready: int
    executed: int = 0
    sequence: int = 0

    def threads(self) -> range:
        return range(self.first, self.first + 128)

    def multiply(self, log: Log, landed: int, sequence: int, **full: int) -> None:
        """Wait for a stage, issue a wgmma, and wait for the previous wgmma."""
        begin, end = self.ready, max(self.ready, landed)
        for thread in self.threads():
            log.wait(begin + thread % 2, end + thread % 3, thread, **full)
        log(end + 4, "mma_issued", self.first, sequence=sequence)
        self.finish(log, end + 5)
        self.executed = max(self.executed, end + 4) + 34
        self.sequence = sequence
        log(self.executed, "mma_executed", self.first, sequence=sequence)

    def finish(self, log: Log, begin: int) -> None:
        self.ready = max(begin, self.executed) + 3
        if self.executed:
            for thread in self.threads():
                log.wait(begin, self.ready - 2, thread, sequence=self.sequence)

    def release(self, log: Log, stage: int, phase: int) -> None:
        for thread in self.threads()[::32]:
            log(self.ready, "arrive", thread, barrier=EMPTY + 8 * stage, phase=phase)

    def store(self, log: Log, buffer: int, sequence: int) -> None:
        begin = self.ready + 8
        for thread in self.threads():
            log(begin + thread % 4, "named_arrive", thread, barrier=1 + self.first // 128)
            log(begin + 5, "named_wait_end", thread, barrier=1 + self.first // 128)
        log(begin + 6, "store_issued", self.first, shared=buffer, bytes=8192, sequence=sequence)
        log(begin + 7, "store_committed", self.first, sequence=sequence)
        log.wait(begin + 8, begin + 50, self.first, sequence=sequence)
        log(begin + 48, "store_read", shared=buffer, sequence=sequence)
        log(begin + 70, "store_written", sequence=sequence)


def gemm_log(k_blocks: int = 8, stages: int = 4) -> Log:
    """Return the log of a loader and two consumers that keep one wgmma in flight."""
    log = Log()
    consumers = (Consumer(128, 14), Consumer(256, 17))
    for thread in range(384):
        log(thread // 64, "named_arrive", thread, barrier=0)
        log(10, "named_wait_end", thread, barrier=0)
    time, free = 12, [0] * stages
    for block in range(k_blocks):
        time, landed = _load_stage(log, time, free[block % stages], block, stages)
        full = {"barrier": FULL + 8 * (block % stages), "phase": block // stages}
        for number, consumer in enumerate(consumers):
            consumer.multiply(log, landed, 100 + 2 * block + number, **full)
        if block:
            free[(block - 1) % stages] = _release_stage(log, consumers, block - 1, stages)
    for number, consumer in enumerate(consumers):
        consumer.finish(log, consumer.ready + 1)
        consumer.store(log, 8192 * (1 + number), 200 + number)
    _release_stage(log, consumers, k_blocks - 1, stages)
    return log


def _release_stage(log: Log, consumers: Sequence[Consumer], block: int, stages: int) -> int:
    """Let all consumers arrive on the empty barrier. Return when its phase completes."""
    stage, phase = block % stages, block // stages
    for consumer in consumers:
        consumer.release(log, stage, phase)
    free = max(consumer.ready for consumer in consumers)
    log(free, "phase_completed", barrier=EMPTY + 8 * stage, phase=phase)
    return free


def _load_stage(log: Log, time: int, free: int, block: int, stages: int) -> tuple[int, int]:
    """Wait for the stage, expect and issue two loads. Return when they land."""
    stage, phase = block % stages, block // stages
    full = {"barrier": FULL + 8 * stage, "phase": phase}
    begin = max(time, free)
    log.wait(time, begin, 0, barrier=EMPTY + 8 * stage, phase=phase - 1 if phase else NOTHING)
    log(begin + 1, "expect", 0, bytes=1024, **full)
    landed = begin + 64 + 11 * (block % 3)
    for number, (buffer, early) in enumerate(((A, 14), (B, 0))):
        place = {"shared": buffer + 1024 * stage, "bytes": 512, "sequence": 2 * block + number}
        log.load(begin + 3 + 3 * number, landed - early, 0, **full, **place)
    log(landed, "phase_completed", **full)
    return begin + 9, landed


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


def test_a_record_has_48_bytes_without_gaps() -> None:
    names = EVENT_DTYPE.names or ()
    fields = EVENT_DTYPE.fields
    assert fields is not None

    assert EVENT_DTYPE.itemsize == 48 == sum(EVENT_DTYPE[name].itemsize for name in names)
    assert [fields[name][1] for name in names] == [0, 8, 16, 20, 24, 28, 32, 36, 38, 40, 42, 44]


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


def test_blocks_have_their_cluster_and_rank() -> None:
    trace = Log().trace(grid=(4, 6, 2), cluster=(2, 3, 1))
    seen = {trace.block_at(cluster, rank) for cluster in range(8) for rank in range(6)}

    assert trace.block_at(0, 5) == (1, 2, 0)
    assert trace.block_at(1, 0) == (2, 0, 0)
    assert trace.block_at(2, 1) == (1, 3, 0)
    assert trace.block_at(4, 0) == (0, 0, 1)
    assert len(seen) == 48
    assert all(trace.block_at(trace.cluster_of(block), 0) <= block for block in seen)


def test_events_are_put_in_the_order_of_each_clusters_clock() -> None:
    log = Log()
    for time, cluster, thread in ((5, 1, 0), (2, 0, 0), (3, 1, 1), (2, 0, 1)):
        log(time, "thread_end", thread, cluster=cluster)
    trace = log.trace(grid=(2, 1, 1))

    assert [(event.cluster, event.time, event.thread) for event in trace] == [
        (0, 2, 0),
        (0, 2, 1),
        (1, 3, 1),
        (1, 5, 0),
    ]


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


def test_a_record_nobody_wrote_is_noticed() -> None:
    with record() as trace, pytest.raises(ArgumentError, match=r"kinds \[0\]"):
        trace.add("gemm", (1, 1, 1), (32, 1, 1), None, bytes(48))


# --- pipelines ----------------------------------------------------------------------------------


def test_the_pipeline_of_a_gemm_is_recognised() -> None:
    (pipeline,) = find_pipelines(gemm_log().trace())

    assert (pipeline.name, pipeline.block) == ("full", (0, 0, 0))
    assert [stage.full for stage in pipeline.stages] == [FULL + 8 * i for i in range(4)]
    assert [stage.empty for stage in pipeline.stages] == [EMPTY + 8 * i for i in range(4)]
    assert [stage.buffers for stage in pipeline.stages] == [
        (1024 * i, 512 + 1024 * i) for i in range(4)
    ]


def test_a_pipeline_without_names_is_recognised_by_the_order_of_its_loads() -> None:
    (named,) = find_pipelines(gemm_log().trace())
    (pipeline,) = find_pipelines(gemm_log().trace(named=False))

    assert pipeline.name == "pipeline 0"
    assert pipeline.stages == named.stages


def test_a_barrier_of_another_loader_is_another_pipeline() -> None:
    log = gemm_log()
    query = {"barrier": FULL - 8, "phase": 0, "bytes": 64, "shared": 30000}
    log.load(11, 15, 32, sequence=300, **query)

    pipelines = find_pipelines(log.trace(named=False))

    assert [len(pipeline.stages) for pipeline in pipelines] == [1, 4]
    assert pipelines[0].stages[0].empty is None


def test_a_stage_fills_is_full_is_read_and_is_empty() -> None:
    """Stage 3 of the gemm: expected at 40, complete at 103, first read at 151, free at 219."""
    (pipeline,) = find_pipelines(gemm_log().trace())
    known = {0: "empty", 39: "empty", 40: "filling", 102: "filling", 103: "full", 150: "full"}
    known |= {151: "being read", 218: "being read", 219: "empty", 220: "filling", 500: "empty"}

    assert {time: pipeline.stages[3].state_at(time).value for time in known} == known
    assert pipeline.count(StageState.FILLING, 60) == 4


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


def test_bytes_announced_before_the_stage_is_free_do_not_end_the_reading() -> None:
    log = Log()
    for phase, time in enumerate((0, 50)):
        full = {"barrier": FULL, "phase": phase}
        log(time - 30 * phase, "expect", 0, **full)
        log.wait(time, time, 0, barrier=EMPTY, phase=phase)
        log(time + 1, "expect", 0, **full)
        log.load(time + 2, time + 5, 0, shared=0, sequence=phase, **full)
        log(time + 5, "phase_completed", **full)
        log.wait(time, time + 7, 32, **full)
        log(time + 40, "phase_completed", barrier=EMPTY, phase=phase)

    (pipeline,) = find_pipelines(log.trace())

    assert [pipeline.stages[0].state_at(time).value for time in (30, 39, 45, 54, 60)] == [
        "being read",
        "being read",
        "filling",
        "filling",
        "being read",
    ]


def test_a_load_that_never_lands_fills_to_the_end() -> None:
    log = Log()
    log(1, "expect", 0, barrier=FULL)
    log(2, "load_issued", 0, barrier=FULL, shared=0, sequence=0)
    log(90, "wait_begin", 32, barrier=FULL)

    (pipeline,) = find_pipelines(log.trace())

    assert [(span.state.value, span.begin, span.end) for span in pipeline.stages[0].spans] == [
        ("filling", 1, 90)
    ]


def test_a_multicast_fills_the_stages_of_all_its_targets() -> None:
    pipelines = find_pipelines(multicast_log().in_cluster())

    assert [pipeline.block for pipeline in pipelines] == [(0, 0, 0), (1, 0, 0)]
    assert [pipeline.stages[0].spans[0].begin for pipeline in pipelines] == [1, 2]
    assert [pipeline.stages[0].spans[0].end for pipeline in pipelines] == [20, 24]


# --- lanes --------------------------------------------------------------------------------------


def test_warps_that_do_the_same_are_one_lane_and_idle_warps_none() -> None:
    lanes = find_lanes(gemm_log().trace(), block=0)

    assert [lane.name for lane in lanes] == [
        "warp 0",
        "warp 4",
        "warps 5-7",
        "warp 8",
        "warps 9-11",
    ]
    assert [len(lane.loads) for lane in lanes] == [16, 0, 0, 0, 0]


def test_the_waits_of_the_loader_are_those_that_blocked() -> None:
    loader = find_lanes(gemm_log().trace(), block=0)[0]
    waits = [span for span in loader.spans if span.activity is Activity.WAITING_EMPTY]

    assert [span.name for span in waits] == ["empty[0]", "empty[1]", "empty[2]", "empty[3]"]
    assert [span.barrier for span in waits] == [EMPTY + 8 * stage for stage in range(4)]
    assert (waits[0].begin, waits[0].end) == (48, 117)


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


def test_a_wgmma_belongs_to_all_four_warps() -> None:
    log = Log()
    log(0, "mma_issued", 128, sequence=1)
    log(9, "mma_executed", sequence=1)

    (lane,) = find_lanes(log.trace(), block=0)

    assert (lane.name, lane.spans[0].end) == ("warps 4-7", 9)


def test_a_wait_that_never_ends_lasts_to_the_end_of_the_cluster() -> None:
    log = Log()
    log(5, "wait_begin", 0, barrier=FULL)
    log(80, "thread_end", 32, rank=1)

    (lane,) = find_lanes(log.in_cluster(), block=0)

    assert [(span.activity, span.begin, span.end) for span in lane.spans] == [
        (Activity.WAITING_BARRIER, 5, 80)
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


def test_the_json_of_a_gemm_keeps_the_rules_of_the_format(tmp_path: Path) -> None:
    trace = gemm_log().trace()
    trace.save(tmp_path / "gemm.json")
    records = document((tmp_path / "gemm.json").read_text())

    assert labels(records, "process_name") == ["gemm (0, 0, 0)"]
    assert {"warp 0", "warp 5", "full[3]"} <= set(labels(records, "thread_name"))
    counts = [entry["args"]["stages"] for entry in records if entry["ph"] == "C"]
    assert (min(counts), counts[-1]) == (0, 0)
    times = [entry["ts"] for entry in records if entry["ph"] == "C"]
    assert times == sorted(set(times))


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


def test_launches_follow_each_other_in_one_file() -> None:
    with record() as trace:
        for name in ("first", "second"):
            trace.add(name, (1, 1, 1), (32, 1, 1), None, copy_log().raw)
    records = document(trace.to_json())
    last = {
        pid: max(entry["ts"] for entry in records if entry["pid"] == pid and entry["ph"] == "E")
        for pid in (1, 2)
    }
    first = min(entry["ts"] for entry in records if entry["pid"] == 2 and entry["ph"] == "B")

    assert labels(records, "process_name") == ["first (0, 0, 0)", "second (0, 0, 0)"]
    assert last[1] < first < last[2]


# --- collecting ---------------------------------------------------------------------------------


def test_events_go_to_the_innermost_record() -> None:
    assert current_collector() is None
    with record() as outer:
        assert current_collector() is outer
        with record() as inner:
            assert current_collector() is inner
        assert current_collector() is outer
    assert current_collector() is None


def test_a_collector_keeps_launches_in_order_and_copies_nothing_shared() -> None:
    raw = bytearray(copy_log().raw)
    with record() as trace:
        trace.add("copy", (1, 1, 1), (32, 1, 1), None, raw)
        trace.add("gemm", (1, 1, 1), (384, 1, 1), (1, 1, 1), gemm_log().raw, name_of)
    raw[:] = bytes(len(raw))

    assert [launch.kernel_name for launch in trace.launches] == ["copy", "gemm"]
    assert len(trace) == len(trace.events) == sum(map(len, trace.launches))
    assert trace.launches[0].cluster == (1, 1, 1)
    assert set(trace.launches[0].events["kind"]) <= set(EventKind)
    assert next(iter(trace)).time == 0


def test_half_a_record_is_refused() -> None:
    with record() as trace, pytest.raises(ArgumentError, match="raw has 47 bytes"):
        trace.add("gemm", (1, 1, 1), (32, 1, 1), None, bytes(47))


def test_an_empty_trace_has_no_rings_no_lanes_and_an_empty_file() -> None:
    trace = Log().trace()

    assert (len(trace), list(trace), trace.blocks, trace.end) == (0, [], (), 0)
    assert (find_pipelines(trace), find_lanes(trace, block=0)) == ((), ())
    assert document(trace.to_json()) == []


# --- pictures -----------------------------------------------------------------------------------


def test_a_png_has_1600_by_900_pixels(tmp_path: Path) -> None:
    plot(gemm_log().trace(), tmp_path / "gemm.png")
    head = (tmp_path / "gemm.png").read_bytes()[:24]

    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert [int.from_bytes(head[at : at + 4], "big") for at in (16, 20)] == [1600, 900]


def test_the_same_trace_gives_the_same_svg(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        plot(gemm_log().trace(), tmp_path / name)
    text = (tmp_path / "one.svg").read_text()

    assert text == (tmp_path / "two.svg").read_text()
    assert "<dc:date>" not in text


def texts(figure: Any) -> Iterator[str]:
    for axes in figure.axes:
        yield from (label.get_text() for label in axes.get_yticklabels())
        yield from (text.get_text() for text in axes.texts)
        if axes.get_legend():
            yield from (text.get_text() for text in axes.get_legend().get_texts())


def test_the_picture_names_lanes_stages_and_what_colours_mean() -> None:
    shown = set(texts(plot(gemm_log().trace())))

    assert {"warp 0", "warps 5-7", "full[0]", "full[3]", "empty[0]", "phase 1"} <= shown
    # Each entry of a legend counts its bars.
    assert {"waits on a full barrier (32)", "filling (8)", "being read (8)"} <= shown
    assert not any(text.startswith("waits for the cluster") for text in shown)


@pytest.mark.parametrize("block", [None, 1, (1, 0, 0)])
def test_a_block_of_a_cluster_is_drawn(block: Any) -> None:
    figure = plot(multicast_log().in_cluster(), block=block)

    assert f"block {(1, 0, 0) if block else (0, 0, 0)}" in figure.texts[0].get_text()


def test_a_kernel_without_pipelines_is_drawn(tmp_path: Path) -> None:
    log = Log()
    log.wait(1, 9, 0, barrier=64)
    plot(log.trace(), tmp_path / "plain.svg")

    assert (tmp_path / "plain.svg").stat().st_size


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


def test_without_matplotlib_the_remedy_is_named_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(BackendError, match=r"pip install 'matplotlib>=3\.8'"):
        plot(None)  # type: ignore[arg-type]
