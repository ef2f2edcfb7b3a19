"""The runtime's records of real launches: names, numbers, pairs, and the same log each time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import (
    ArgumentError,
    EmulatedDeadlock,
    Kernel,
    Signals,
    Swizzle,
    TMATensorTileArray,
    create_tma_tile,
    emulate,
    enable_peer_access,
)
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel
from tmaasync.trace import (
    Activity,
    Collector,
    Event,
    EventKind,
    StageState,
    Trace,
    find_lanes,
    find_pipelines,
    load,
    plot,
    record,
)

EVERY_POLICY = pytest.mark.parametrize("policy", ["round_robin", "random", "adversarial"])


def only(collector: Any) -> Trace:
    (launch,) = collector.launches
    assert isinstance(launch, Trace)
    return launch


def counts(trace: Trace) -> Counter[str]:
    return Counter(event.kind.name.lower() for event in trace)


# --- the launches ------------------------------------------------------------------------------


def copy(blocks: int = 1) -> np.ndarray[Any, Any]:
    """Copy two rows of four tiles, with the last column clipped."""
    source = np.random.default_rng(0).standard_normal((100, 200), np.float32)
    target = np.zeros_like(source)
    read, write = (create_tma_tile(x, (64, 64), swizzle=Swizzle.B128) for x in (source, target))
    kernel = Kernel("copy.cu", types={"Tile": read}, constants={"STAGES": 3, "LOADS_AHEAD": 2})
    grid = np.array((*reversed(read.tiles_per_side), 1, 1, 1), np.int32).tobytes()
    kernel(blocks, 32, (read, write, grid))
    assert (target == source).all()
    return target


M, N, K = 128, 128, 512
CONFIG = TileConfig(1, 128)


def gemm() -> np.ndarray[Any, Any]:
    """Compute two tiles by one block, which fills eight stages twice."""
    draw = np.random.default_rng(0).standard_normal
    a, b = (draw((rows, K), np.float32).astype(ml_dtypes.bfloat16) for rows in (M, N))
    c = np.zeros((M, N), np.float32)
    tiles = [
        create_tma_tile(a, (CONFIG.block_m, 64), swizzle=Swizzle.B128),
        create_tma_tile(b, (CONFIG.block_n, 64), swizzle=Swizzle.B128),
        create_tma_tile(c, (64, 32), swizzle=Swizzle.B128),
    ]
    kernel = gemm_kernel([tile.cuda_type for tile in tiles], False, True, CONFIG)
    kernel(1, 256, (*tiles, M, N, K, 1))
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.linalg.norm(c - wanted) / np.linalg.norm(wanted) < 1e-5
    return c


MULTICAST = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int share_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void share(const __grid_constant__ Tile tile) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    cluster_sync();
    if (threadIdx.x == 0) shared.full.expect_bytes(Tile::kBytes);
    if (threadIdx.x == 0 && block_rank_in_cluster() == 0) {
        tile.async_multicast_load(shared.tile, shared.full, {0, 0}, 3);
    }
    shared.full.wait(PARITY);
    cluster_sync();
}
"""


def multicast() -> None:
    tile = create_tma_tile(np.ones((32, 32), np.float32), (32, 32))
    source = MULTICAST.replace("PARITY", "0")
    Kernel(source, "share", types={"Tile": tile})(2, 64, (tile,), cluster=2)


def recorded(launch: Any, policy: Any = "round_robin", **schedule: Any) -> Trace:
    with emulate.scheduled(policy, **schedule), record() as kept:
        launch()
    return only(kept)


# --- names -------------------------------------------------------------------------------------


def test_the_pipeline_of_a_gemm_has_the_names_of_its_source() -> None:
    (pipeline,) = find_pipelines(trace := recorded(gemm))

    def name(offset: int | None) -> str:
        assert offset is not None
        return trace.name_of(offset)

    assert (trace.kernel_name, pipeline.name, len(pipeline.stages)) == (
        "gemm",
        "ring",
        CONFIG.stages,
    )
    for index, stage in enumerate(pipeline.stages):
        assert (name(stage.full), name(stage.empty)) == (
            f"ring.full[{index}]",
            f"ring.empty[{index}]",
        )
        assert [name(buffer) for buffer in stage.buffers] == [
            f"ring.stages[{index}].a",
            f"ring.stages[{index}].b",
        ]
        assert [span.phase for span in stage.spans if span.state is StageState.READING] == [0, 1]


# --- numbers -----------------------------------------------------------------------------------


@EVERY_POLICY
def test_a_gemm_has_as_many_events_as_its_loops_say(policy: Any) -> None:
    trace = recorded(gemm, policy, seed=5)
    found = counts(trace)

    tiles, blocks_deep = 2, K // 64
    uses, mmas_deep, chunks = tiles * blocks_deep, 64 // 16, CONFIG.block_n // 32
    assert found["load_issued"] == found["load_landed"] == 2 * uses
    assert found["expect"] == uses
    assert found["mma_issued"] == found["mma_executed"] == uses * mmas_deep
    for kind in ("store_issued", "store_committed", "store_read", "store_written"):
        assert found[kind] == tiles * chunks
    # Full barriers by the loader, empty ones by a lane of each of four warps.
    assert found["arrive"] == uses + 4 * uses
    assert found["phase_completed"] == 2 * uses
    assert found["thread_end"] == 256
    stage_bytes = (CONFIG.block_m + CONFIG.block_n) * 64 * 2
    for kind in ("expect", "load_issued", "load_landed"):
        assert sum(event.bytes for event in trace.of(kind=kind)) == uses * stage_bytes


# --- pairs -------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@EVERY_POLICY
@pytest.mark.parametrize("launch", [copy, gemm, multicast])
@pytest.mark.parametrize("races", [False, True])
def test_every_load_has_its_landings(launch: Any, policy: Any, races: bool) -> None:
    trace = recorded(launch, policy, seed=3, races=races)
    landings = Counter(event.sequence for event in trace.of(kind="load_landed"))

    issued = {event.sequence: event for event in trace.of(kind="load_issued")}
    assert landings == dict.fromkeys(issued, 2 if launch is multicast else 1)
    for landing in trace.of(kind="load_landed"):
        issue = issued[landing.sequence]
        assert issue.time <= landing.time
        assert (issue.shared, issue.barrier, issue.bytes) == (
            landing.shared,
            landing.barrier,
            landing.bytes,
        )


@pytest.mark.sampled(2)
@EVERY_POLICY
@pytest.mark.parametrize("launch", [copy, gemm, multicast])
def test_a_wait_ends_on_the_thread_that_began_it(launch: Any, policy: Any) -> None:
    for seed in range(4):
        assert not open_waits(recorded(launch, policy, seed=seed))


def open_waits(trace: Trace) -> list[Event]:
    """Return the waits that did not end. Any other imbalance is an error."""
    waiting: dict[tuple[int, int, int | None], Event] = {}
    for event in trace:
        thread = event.cluster, event.rank, event.thread
        if event.thread is None:
            continue
        begun = waiting.pop(thread, None)
        if begun is not None:
            assert event.kind.name == "WAIT_END"
            assert (event.barrier, event.phase, event.sequence, event.barrier_block) == (
                begun.barrier,
                begun.phase,
                begun.sequence,
                begun.barrier_block,
            )
        else:
            assert event.kind.name != "WAIT_END"
        if event.kind.name == "WAIT_BEGIN":
            waiting[thread] = event
    return list(waiting.values())


# --- launches that fail, and unchanged results -------------------------------------------------


def test_a_deadlock_leaves_its_log_with_the_wait_that_never_ends() -> None:
    with record() as kept, pytest.raises(EmulatedDeadlock):
        stuck()

    trace = only(kept)
    waits = open_waits(trace)
    assert {wait.barrier_name for wait in waits} == {"full"}
    assert {wait.phase for wait in waits} == {0}
    assert {wait.warp for wait in waits} == {0, 1}


def stuck() -> None:
    """Run a kernel that expects more bytes than its copies deliver."""
    tile = create_tma_tile(np.ones((32, 32), np.float32), (32, 32))
    source = MULTICAST.replace("PARITY", "0").replace("Tile::kBytes", "Tile::kBytes + 16")
    Kernel(source, "share", types={"Tile": tile})(2, 64, (tile,), cluster=2)


@pytest.mark.parametrize("launch", [copy, gemm])
def test_neither_trace_nor_races_change_a_result(launch: Any) -> None:
    plain = launch()
    results = []
    for races in (False, True):
        with emulate.scheduled(races=races), record():
            results.append(launch())

    assert all((plain == result).all() for result in results)


def test_clusters_of_several_workers_keep_their_own_clocks() -> None:
    many = recorded(lambda: copy(blocks=4), workers=4)
    one = recorded(lambda: copy(blocks=4), workers=1)

    assert many.events.tobytes() == one.events.tobytes()
    assert len(one.blocks) == 4


# --- pictures ----------------------------------------------------------------------------------


def test_pictures_and_files_come_out(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace = recorded(gemm)

    plot(trace, tmp_path / "launch.png")
    trace.save(tmp_path / "launch.json")

    assert (tmp_path / "launch.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((tmp_path / "launch.json").read_text())
    assert {"B", "E", "M"} <= {record["ph"] for record in document["traceEvents"]}


# --- several devices ---------------------------------------------------------------------------

PEERS = Path(__file__).parents[1] / "parity" / "peers.cu"


@pytest.fixture(scope="module")
def ring() -> Collector:
    """Trace two launches of a ring on each of three devices, in two queues."""
    rows, ranks = 40, 3
    with emulate.scheduled("random", seed=1), record() as kept, emulate.devices(ranks) as world:
        enable_peer_access(range(ranks))
        tiles = [
            create_tma_tile(
                device.array(np.full((rows, 32), 1 + device.ordinal, np.float32)), (16, 32)
            )
            for device in world
        ]
        signals = Signals([device.array(np.zeros(8, np.uint32)) for device in world])
        shift = Kernel(PEERS, "shift", types={"Tile": tiles[0]})
        for first in (1, 3):
            for own in signals:
                shift(3, 1, (own, TMATensorTileArray(tiles), np.uint32(first), 2))
            signals.synchronize()
    return kept


def test_a_wait_for_a_signal_ends_after_its_post_on_another_device(ring: Collector) -> None:
    assert [launch.device for launch in ring.launches] == [0, 1, 2, 0, 1, 2]
    assert [launch.rank for launch in ring.launches] == [0, 1, 2, 0, 1, 2]
    assert ring.launches[3].events["time"].min() > max(one.end for one in ring.launches[:3])
    posted = [event.sequence for event in ring if event.kind is EventKind.SIGNAL_POSTED]
    assert len(set(posted)) == len(posted)
    for together in (ring.launches[:3], ring.launches[3:]):
        posts = {
            event.sequence: (launch.device, event)
            for launch in together
            for event in launch.of(kind="signal_posted")
        }
        waits = [
            (one.device or 0, event) for one in together for event in one.of(kind="signal_wait_end")
        ]
        assert len(posts) == len(waits) == 3 * 3 * 2 * 2  # devices, blocks, rounds, signals of each
        assert {event.sequence for _, event in waits} == set(posts)
        for device, event in waits:
            poster, post = posts[event.sequence]
            assert event.barrier is not None
            arrived = event.barrier % 2 == 0  # posted by the rank before, else by the next one
            assert poster == (device + (-1 if arrived else 1)) % 3
            assert post.time < event.time
            assert (post.barrier, post.phase) == (event.barrier, event.phase)
            assert event.barrier_name == f"signal {event.barrier}"
            assert post.block == event.block


def test_a_timeline_has_a_group_of_lanes_for_each_device(ring: Collector, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ring.save(tmp_path / "ring.json")
    kept = load(tmp_path / "ring.json").launches

    figure = plot([kept[2], kept[0], kept[1]], block=1)

    warps, stages = figure.axes
    names = [each.get_text() for axes in (warps, stages) for each in axes.texts]
    for device in range(3):
        assert f"rank {device}: warp 0" in names
        assert f"rank {device}: full" in names
    assert any("on each of 3 ranks" in each.get_text() for each in figure.texts)
    arrows = [one for one in warps.get_children() if type(one).__name__ == "ConnectionPatch"]
    assert len(arrows) == 3 * 2 * 2  # from a post to every wait
    (wait,) = [span for span in find_lanes(kept[0], block=1)[0].spans if span.name == "signal 2"][
        :1
    ]
    assert wait.activity is Activity.WAITING_SIGNAL
    records = json.loads((tmp_path / "ring.json").read_text())["traceEvents"]
    names_of = {one["pid"]: one["args"]["name"] for one in records if one["name"] == "process_name"}
    times = {
        pid: [one["ts"] for one in records if one["pid"] == pid and one["ph"] == "B"]
        for pid in names_of
    }
    for device in range(3):
        first, second = (
            times[pid]
            for pid, name in names_of.items()
            if name == f"rank {device}: shift (1, 0, 0)"
        )
        assert max(first) < min(second)
        assert min(first) < min(max(times[pid]) for pid in times)  # all at the same time
    with pytest.raises(ArgumentError, match="trace has 6 launches; a picture shows one, or one of"):
        plot(ring)
