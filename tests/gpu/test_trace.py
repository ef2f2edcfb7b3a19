"""Traces of launches on the chip: every role is there, in order, and the results stay right."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.backends import Backend, Cuda, Emulate
from parity.exact_matmul import integers
from parity.test_matmul import multiply

from tmaasync import BackendError, Kernel, create_tma_tile, emulate, ops, trace
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.trace import NOBODY, NOTHING, Activity, EventKind, StageState, Trace

cupy = pytest.importorskip("cupy")

RING = Path(__file__).parents[2] / "examples" / "04_pipeline.cu"
STAGES, TILE_ROWS, COLUMNS = 4, 16, 128


def only(kept: trace.Collector) -> Trace:
    (launch,) = kept.launches
    return launch


def energies(
    rows: int, columns: int, backend: Backend | None = None, **options: Any
) -> tuple[Any, Any, Kernel]:
    """Sums of squares by the example's pipeline, what they are, and its kernel."""
    backend = Cuda() if backend is None else backend
    x = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
    source = create_tma_tile(backend.array(x), (TILE_ROWS, COLUMNS))
    out = backend.array(np.full(columns, np.nan, np.float32))
    kernel = Kernel(
        RING, "column_energies", types={"Tile": source}, constants={"STAGES": STAGES}, **options
    )
    blocks = -(-columns // COLUMNS)
    kernel(blocks, COLUMNS + 32, (source, out, rows, columns))
    return backend.host(out), (x.astype(np.float64) ** 2).sum(axis=0), kernel


def assert_in_order(launch: Trace) -> None:
    """Of every thread events do not go back, and every wait has its beginning before it."""
    by_thread: dict[tuple[int, int, int], list[Any]] = {}
    for event in launch.events:
        if event["thread"] != NOBODY:
            key = int(event["cluster"]), int(event["rank"]), int(event["thread"])
            by_thread.setdefault(key, []).append(event)
    for events in by_thread.values():
        times = [int(event["time"]) for event in events]
        assert times == sorted(times)
        for before, event in pairwise(events):
            if event["kind"] == EventKind.WAIT_END:
                assert before["kind"] == EventKind.WAIT_BEGIN
                assert before["barrier"] == event["barrier"]
                assert before["sequence"] == event["sequence"]


def assert_loads_precede_their_reads(launch: Trace) -> None:
    """Nobody passes a full barrier before its phase's load was issued."""
    issued = {
        (int(load["cluster"]), int(load["rank"]), int(load["barrier"]), int(load["phase"])): int(
            load["time"]
        )
        for load in launch.of(kind="load_issued").events[::-1]
    }
    seen = 0
    for wait in launch.of(kind="wait_end").events:
        key = int(wait["cluster"]), int(wait["other"]), int(wait["barrier"]), int(wait["phase"])
        if wait["barrier"] != NOTHING and key in issued:
            assert wait["time"] >= issued[key]
            seen += 1
    assert seen > 0


def test_a_ring_leaves_as_many_loads_as_it_has_tiles() -> None:
    rows, columns = 250, 300
    blocks, tiles = 3, 16

    with trace.record() as kept:
        out, wanted, _ = energies(rows, columns)

    launch = only(kept)
    assert np.allclose(out, wanted, rtol=1e-5)
    assert (launch.unit, launch.dropped, launch.blocks_left_out) == ("ns", 0, 0)
    assert launch.blocks == ((0, 0, 0), (1, 0, 0), (2, 0, 0))
    assert len(launch.of(kind="load_issued")) == blocks * tiles
    assert len(launch.of(kind="load_landed")) == blocks * tiles
    assert len(launch.of(kind="expect")) == blocks * tiles
    expected = launch.of(kind="expect").events["bytes"]
    assert set(expected.tolist()) == {TILE_ROWS * COLUMNS * 4}
    # Each of four consumer warps waits for every tile and hands every tile back.
    consumers = COLUMNS // 32
    arrivals = launch.of(kind="arrive")
    assert len(arrivals) == blocks * tiles * (consumers + 1)
    assert_in_order(launch)
    assert_loads_precede_their_reads(launch)


def deeds(launch: Trace) -> list[tuple[Any, ...]]:
    """What warps do, on which barrier, in which phase."""
    return sorted(
        (event.block, event.warp, event.kind.name, event.barrier, event.phase)
        for event in launch.of(kind=("expect", "arrive", "load_issued", "wait_end"))
    )


def test_warps_do_what_they_do_on_the_emulator() -> None:
    with trace.record() as kept:
        energies(250, 300)
        energies(250, 300, Emulate())

    chip, emulator = kept.launches
    assert (chip.unit, emulator.unit) == ("ns", "step")
    assert deeds(chip) == deeds(emulator)


def test_phases_count_up_on_every_barrier() -> None:
    with trace.record() as kept:
        energies(1000, 128)

    launch = only(kept)
    (pipeline,) = trace.find_pipelines(launch)
    assert len(pipeline.stages) == STAGES
    laps = -(-1000 // TILE_ROWS) / STAGES
    for stage in pipeline.stages:
        of_stage = launch.events["barrier"] == stage.full
        loads = launch.events[of_stage & (launch.events["kind"] == EventKind.LOAD_ISSUED)]
        assert loads["phase"].tolist() == list(range(len(loads)))
        assert abs(len(loads) - laps) < 1
        states = {span.state for span in stage.spans}
        assert StageState.READING in states
        assert states & {StageState.FILLING, StageState.LOADED}
        assert all(span.begin < span.end <= launch.end for span in stage.spans)
        ordered = [(span.begin, span.end) for span in stage.spans]
        assert all(one[1] <= two[0] for one, two in pairwise(ordered))


@pytest.mark.parametrize("cluster", [1, 2])
def test_a_matmul_shows_its_roles(cluster: int) -> None:
    a, b = integers(1024, 512, seed=1), integers(512, 768, seed=2)
    config = TileConfig(2, 128, cluster)

    with trace.record() as kept:
        c = multiply(Cuda(), a, b, config, "nt")

    launch = only(kept)
    assert np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64))
    assert launch.dropped == 0
    stage_bytes = (128 + 128) * 64 * 2
    tiles, k_blocks = (1024 // 128) * (768 // 128), 512 // 64
    expects = launch.of(kind="expect")
    assert len(expects) == tiles * k_blocks
    assert set(expects.events["bytes"].tolist()) == {stage_bytes}
    # One group of wgmma per stage and consumer.
    assert len(launch.of(kind="mma_issued")) == tiles * k_blocks * 2
    assert len(launch.of(kind="mma_executed")) == tiles * k_blocks * 2
    assert_in_order(launch)
    block = launch.blocks[0]
    lanes = trace.find_lanes(launch, block=block)
    (producer,) = [lane for lane in lanes if lane.loads]
    assert producer.warps == (0,)
    activities: dict[int, set[Activity]] = {warp: set() for warp in range(12)}
    for lane in lanes:
        for warp in lane.warps:
            activities[warp] |= {span.activity for span in lane.spans}
    assert Activity.WAITING_EMPTY in activities[0]
    for warp in range(4, 12):
        assert {Activity.WAITING_FULL, Activity.COMPUTING} <= activities[warp]
    assert Activity.STORING in activities[4]
    assert Activity.STORING in activities[8]


def milliseconds(run: Any) -> float:
    run()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    for _ in range(10):
        run()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) / 10


def test_times_agree_with_the_driver() -> None:
    rng = cupy.random.default_rng(0)
    a = rng.standard_normal((2048, 2048), dtype=cupy.float32).astype(np.dtype(ml_dtypes.bfloat16))
    out = cupy.empty((2048, 2048), a.dtype)
    whole = milliseconds(lambda: ops.matmul(a, a.T, out=out))

    with trace.record(notes_per_warp=8192) as kept:
        ops.matmul(a, a.T, out=out)

    launch = only(kept)
    assert launch.dropped == 0
    assert 0.3 * whole < launch.end / 1e6 < 4 * whole


def test_blocks_of_one_launch_share_a_clock() -> None:
    with trace.record() as kept:
        energies(1000, 128 * 132)

    launch = only(kept)
    firsts = [int(one.events["time"].min()) for one in launch.by_cluster()]
    lasts = [one.end for one in launch.by_cluster()]
    # All start together: no block of the only wave begins after another one has ended.
    assert len(firsts) == 132
    assert max(firsts) < min(lasts)


def test_what_has_no_room_is_counted_and_the_rest_fits_together() -> None:
    with trace.record() as kept:
        whole, _, _ = energies(1000, 128)
    with trace.record(notes_per_warp=20) as cut:
        out, _, _ = energies(1000, 128)

    assert np.array_equal(out, whole)
    assert only(kept).dropped == 0
    assert only(cut).dropped > 100
    assert 0 < len(only(cut)) < len(only(kept)) / 4
    assert_in_order(only(cut))
    assert_loads_precede_their_reads(only(cut))


def test_a_plan_that_was_found_again_is_traced_too() -> None:
    source = cupy.arange(1 << 20, dtype=cupy.float32).reshape(1024, 1024)[:, :512]
    target = cupy.zeros(source.shape, cupy.float32)
    ops.copy(source, target)

    with trace.record() as kept:
        ops.copy(source, target)
        ops.copy(source, target)
    ops.copy(source, target)

    assert len(kept.launches) == 2
    assert all(len(launch) for launch in kept.launches)


def test_names_come_from_the_source_where_there_is_a_compiler_for_the_cpu() -> None:
    with trace.record() as kept:
        _, _, kernel = energies(100, 128)

    names = {event.barrier_name for event in only(kept).of(kind="load_issued")}

    try:
        emulate.build(kernel._recipe.source, kernel.name)
    except BackendError:
        assert all(name is not None and name.startswith("offset ") for name in names)
    else:
        assert names == {f"full[{stage}]" for stage in range(STAGES)}
