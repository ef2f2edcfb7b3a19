"""Reports name the ring, the stage and the role as the kernel's source does."""

from __future__ import annotations

import functools
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import (
    CompileError,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    Kernel,
    create_tma_tile,
    emulate,
    trace,
)
from tmaasync.trace.rows import lane_rows

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

// In the order of DEFECTS.
enum Defect {
    kNone, kConsumerLeaves, kKeepsStage, kNoLoad, kMoreBytes, kFewerBytes, kProducerLeaves,
    kReadsUnwaited, kReadsAfterRelease, kMisaligned, kNobodyWaits
};

constexpr int kStages = 3, kConsumers = 2;
struct Keys { Tile::Shared k; };
struct Values { Tile::Shared v, scale; };
struct Pipelines {
    Ring<Keys, kStages, ConsumerWarps<kConsumers>> ring_k;
    Ring<Values, kStages, ConsumerWarps<kConsumers>> ring_v;
};
struct SharedMemory { Pipelines pipes; };
extern "C" __device__ const int pair_shared_bytes = sizeof(SharedMemory);

__device__ void produce(Pipelines& pipes, const Tile& tile, int tiles, Defect defect) {
    auto keys = pipes.ring_k.producer();
    auto values = pipes.ring_v.producer();
    for (int i = 0; i < tiles; ++i) {
        const bool planted = i == 1;
        if (planted && defect == kProducerLeaves) return;
        const int row = i * Tile::side(0);
        {
            const auto stage = keys.acquire();
            tile.async_copy(stage->k, stage.full(), {defect == kMisaligned, row});
        }
        const int change = defect == kMoreBytes ? 64 : defect == kFewerBytes ? -64 : 0;
        const auto stage = values.acquire(2 * Tile::kBytes + (planted ? change : 0));
        tile.async_copy(stage->v, stage.full(), {0, row});
        if (planted && defect == kNoLoad) continue;
        tile.async_copy(stage->scale, stage.full(), {0, row});
    }
}

__device__ float total(const Tile::Shared& tile) {
    float sum = 0;
    for (int i = lane_index(); i < Tile::kElements; i += 32) sum += tile.data()[i];
    return sum;
}

__device__ void consume(Pipelines& pipes, float* out, int tiles, int number, Defect defect) {
    auto keys = pipes.ring_k.consumer();
    auto values = pipes.ring_v.consumer();
    auto kept = values.none();
    float sum = 0;
    for (int i = 0; i < tiles; ++i) {
        if (number == 1 && i == 1 && defect == kConsumerLeaves) return;
        if (defect == kNobodyWaits && i == tiles - 1) return;
        if (defect == kReadsUnwaited && i == 2) sum += total(pipes.ring_k.stages[2].k);
        {
            auto stage = keys.acquire();
            if (i == 1 && defect == kReadsAfterRelease) stage.release();
            sum += total(pipes.ring_k.stages[i % kStages].k);
        }
        auto stage = values.acquire();
        sum += total(stage->v) + total(stage->scale);
        if (number == 1 && i == 1 && defect == kKeepsStage) kept.take(stage);
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void pair(
    const __grid_constant__ Tile tile, float* out, int tiles, Defect defect
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.pipes.ring_k.init();
        shared.pipes.ring_v.init();
    }
    __syncthreads();
    const int warp = warp_index();
    if (warp == 0) {
        set_role("producer");
        if (elect()) produce(shared.pipes, tile, tiles, defect);
    } else {
        set_role("consumer", warp - 1);
        consume(shared.pipes, out, tiles, warp - 1, defect);
    }
}
"""
DEFECTS = (
    "none", "a consumer leaves", "a stage is kept", "a load is left out", "more bytes are expected",
    "fewer bytes are expected", "the producer leaves", "a stage is read without a wait",
    "a stage is read after its release", "a misaligned load", "nobody waits",
)  # fmt: skip
THREADS = 96


@functools.cache
def kernel_for(cuda_type: str) -> Kernel:
    return Kernel(SOURCE, "pair", types={"Tile": cuda_type})


def run(defect: str, tiles: int = 7) -> Any:
    array = np.ones((8 * tiles, 16), np.float32)
    tile = create_tma_tile(array, (8, 16))
    out = np.zeros(THREADS, np.float32)
    kernel_for(tile.cuda_type)(1, THREADS, (tile, out, tiles, DEFECTS.index(defect)))
    return out


def message(defect: str, error: type[Exception], **schedule: Any) -> str:
    with emulate.scheduled(**schedule), pytest.raises(error) as caught:
        run(defect)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return re.sub(r"kernel\.cu:\d+", "kernel.cu:N", str(caught.value))


@pytest.mark.parametrize("races", [False, True])
def test_without_a_defect_the_kernel_ends(races: bool) -> None:
    with emulate.scheduled(races=races):
        out = run("none")

    assert out[32:].sum() == 2 * 3 * 7 * 8 * 16


# --- each message, as a user reads it ---------------------------------------------------------

PRODUCER = "producer (thread 0 of block (0, 0, 0))"
FIRST, SECOND = (f"consumer {i} (warp {i + 1} of block (0, 0, 0))" for i in range(2))
WAIT = "at kernel.cu:N: mbarrier.try_wait.parity on"
DEADLOCK = "pair: every thread waits, and nothing is in flight:"
BOTH_KEEP = "consumer 0 (warp 1) and consumer 1 (warp 2) have not released stage 1 of pipes.ring_v"
NOT_RELEASED = "phase 0: 2 arrivals and 0 bytes are missing"
V, SCALE = "pipes.ring_v.stages[1].v", "pipes.ring_v.stages[1].scale"


def starved(bytes_: str) -> list[str]:
    """Return the lines of a deadlock in which stage 1 of ring_v does not become full."""
    return [
        f"{PRODUCER} {WAIT} pipes.ring_v.empty[1], {NOT_RELEASED}; {BOTH_KEEP}",
        *(f"{who} {WAIT} pipes.ring_v.full[1], phase 0: {bytes_}" for who in (FIRST, SECOND)),
    ]


ONE = "1 arrivals and 0 bytes are missing"
NOT_FILLED = f"{ONE}; producer (warp 0) has not filled stage 1 of"
GONE = f"{ONE}; producer (warp 0) has ended and has not filled stage 1 of pipes.ring_k"
LEFT = f"{ONE}; consumer 1 (warp 2) has ended and has not released stage 1 of pipes.ring_k"
KEPT = f"{ONE}; consumer 1 (warp 2) has not released stage 1 of pipes.ring_v"
DEADLOCKS = {
    "a consumer leaves": [
        f"{PRODUCER} {WAIT} pipes.ring_k.empty[1], phase 0: {LEFT}",
        f"{FIRST} {WAIT} pipes.ring_k.full[1], phase 1: {NOT_FILLED} pipes.ring_k",
    ],
    "a load is left out": starved(
        f"0 arrivals and 512 bytes are missing (it expects 1024, and loads delivered 512 to {V})"
    ),
    "more bytes are expected": starved(
        "0 arrivals and 64 bytes are missing (it expects 1088, and loads delivered 1024 to "
        f"{V}, {SCALE})"
    ),
    "the producer leaves": [
        f"{who} {WAIT} pipes.ring_k.full[1], phase 0: {GONE}" for who in (FIRST, SECOND)
    ],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("defect", DEADLOCKS)
def test_a_deadlock_names_role_ring_and_stage(defect: str) -> None:
    expected = "".join(f"\n  {line}" for line in DEADLOCKS[defect])

    assert message(defect, EmulatedDeadlock) == DEADLOCK + expected


def test_a_fault_names_role_and_buffer() -> None:
    found = message("a misaligned load", EmulatedFault)

    assert found.startswith(
        f"pair: {PRODUCER} at kernel.cu:N: a TMA load to pipes.ring_k.stages[0].k: the innermost "
        "coordinate is 1"
    )


def test_a_read_without_a_wait_names_the_load_in_flight_and_the_barrier_that_ends_it() -> None:
    found = message("a stage is read without a wait", EmulatedFault, races=True)

    assert re.fullmatch(
        r"pair: consumer 0 \(thread \d+ of block \(0, 0, 0\)\) at kernel.cu:N: a read of 4 bytes "
        r"at shared offset \d+ \(pipes.ring_k.stages\[2\].k\), which nothing has written. A TMA "
        r"load to these bytes is in flight, issued by producer \(thread 0\) at kernel.cu:N, 512 "
        r"bytes to pipes.ring_k.stages\[2\].k: wait for its phase of pipes.ring_k.full\[2\] first. "
        r"The thread last waited for a load on pipes.ring_[kv].full\[\d\] at kernel.cu:N: if the "
        r"read is meant for that stage, correct the index, or the pointer to an earlier stage. "
        r"\[rule: unwritten-shared\]",
        found,
    )


def test_a_race_names_roles_and_the_member_and_the_barrier_that_is_missing() -> None:
    found = message("a stage is read after its release", EmulatedRace, races=True)

    assert found == (
        "pair: a race on pipes.ring_k.stages[1].k (shared offset 512):\n"
        "  consumer 0 (thread 32 of block (0, 0, 0)) at kernel.cu:N: ordinary read\n"
        f"  {PRODUCER} at kernel.cu:N: TMA load\n"
        "consumer 0 (thread 32) had arrived on pipes.ring_k.empty[1] before this access. Arrive "
        "after the last access to the stage; if one lane arrives for its warp, call __syncwarp() "
        "first."
    )


def test_a_timeline_names_roles_rings_and_stages() -> None:
    with trace.record() as kept:
        run("none")
    (launch,) = kept.launches

    lanes, pipelines = trace.find_lanes(launch, block=0), trace.find_pipelines(launch, block=0)

    assert [lane.name for lane in lanes] == [
        "producer (warp 0)",
        "consumer 0 (warp 1)",
        "consumer 1 (warp 2)",
    ]
    assert [pipeline.name for pipeline in pipelines] == ["pipes.ring_k", "pipes.ring_v"]
    assert pipelines[1].stage_name(2) == "pipes.ring_v, stage 2"
    rows = [row for lane in lanes for row in lane_rows(lane, 0, launch.end)]
    assert {bar.labels for row in rows for bar in row.bars} >= {
        ("pipes.ring_k.full[1]", "ring_k[1]", "[1]"),
        ("pipes.ring_v.empty[0]", "ring_v[0]", "[0]"),
    }
    assert {role.name for role in launch.summary().roles} == {lane.name for lane in lanes}


def test_events_and_files_keep_the_names(tmp_path: Path) -> None:
    with trace.record() as kept:
        run("none")
    kept.save(tmp_path / "pair.json")

    (launch,) = trace.load(tmp_path / "pair.json").launches

    assert launch.roles == {(0, 0, 0): "producer", (0, 0, 1): "consumer 0", (0, 0, 2): "consumer 1"}
    load = next(iter(launch.of(kind="load_issued")))
    assert (load.role, load.shared_name) == ("producer", "pipes.ring_k.stages[0].k")
    assert (load.barrier_name, load.phase) == ("pipes.ring_k.full[0]", 0)
    document = json.loads((tmp_path / "pair.json").read_text())
    named = {record["name"] for record in document["traceEvents"]}
    assert {"load 0: pipes.ring_k.stages[0].k", "pipes.ring_v.full[2]"} <= named


# --- clusters ---------------------------------------------------------------------------------

SHARED_RING = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct Stage { Tile::Shared a; };
struct SharedMemory { Ring<Stage, 2, ConsumerWarps<2>, Multicast<2>> ring; };
extern "C" __device__ const int pass_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void pass(const __grid_constant__ Tile tile, int tiles) {
    auto& ring = dynamic_shared<SharedMemory>().ring;
    if (threadIdx.x == 0) ring.init();
    cluster_sync();
    if (warp_index() == 0) {
        set_role("producer");
        auto producer = ring.producer();
        if (elect()) {
            for (auto stage : producer.produce(tiles)) {
                stage.async_multicast_load(tile, stage->a, {0, 0});
            }
            producer.drain();
        }
    } else {
        set_role("consumer", warp_index() - 1);
        const bool leaves = block_rank_in_cluster() == 1 && warp_index() == 2;
        auto consumer = ring.consumer();
        for (auto stage : consumer.consume(leaves ? 1 : tiles)) {}
    }
    cluster_sync();
}
"""


def test_a_consumer_of_another_block_is_named_with_its_block() -> None:
    tile = create_tma_tile(np.ones((16, 16), np.float32), (16, 16))
    with pytest.raises(EmulatedDeadlock) as caught:
        Kernel(SHARED_RING, "pass", types={"Tile": tile})(2, 96, (tile, 4), cluster=2)

    late = {
        (wait.block[0], wait.role): wait.late for wait in caught.value.waits if wait.barrier_name
    }
    assert late == {
        (0, "producer"): "consumer 1 (warp 2 of block (1, 0, 0)) has not released stage 1 of ring",
        (1, "producer"): "consumer 1 (warp 2) has not released stage 1 of ring",
        **dict.fromkeys(
            [(0, "consumer 0"), (0, "consumer 1"), (1, "consumer 0")],
            "producer (warp 0) has not filled stage 1 of ring",
        ),
    }


# --- what a role may be -----------------------------------------------------------------------

LONG = "c" * 27


@pytest.mark.parametrize(
    ("call", "role"),
    [
        (f'set_role("{LONG}", 123456789)', f"{LONG} 123456789"),
        ('set_role("")', None),
        (r'set_role("a\t\"b\"\\")', 'a\t"b"\\'),
    ],
)
def test_a_role_has_up_to_27_characters_and_a_number(call: str, role: str | None) -> None:
    source = f"""
#include <tmaasync/role_name.cuh>
#include <tmaasync/barrier.cuh>
extern "C" __global__ void ends(int*) {{
    tmaasync::{call};
    __shared__ tmaasync::SharedMemBarrier done;
    done.init(1);
    done.wait(0);
}}
"""
    with pytest.raises(EmulatedDeadlock) as caught:
        Kernel(source, "ends")(1, 1, (np.zeros(1, np.int32),))

    assert caught.value.waits[0].role == role


def test_a_longer_role_does_not_compile() -> None:
    source = f"""
#include <tmaasync/role_name.cuh>
extern "C" __global__ void k(int*) {{ tmaasync::set_role("{LONG}c"); }}
"""
    with pytest.raises(CompileError, match="the name of a role has at most 27 characters"):
        Kernel(source, "k").prepare(1, 1, (np.zeros(1, np.int32),))


CAST = """
using u32 = unsigned int;
using u64 = unsigned long long;
struct Smem { alignas(128) float a[2][32]; u64 full[2], empty[2]; int tile; };
struct Other { float b[8]; };

template <class Storage>
__device__ void wait(Storage& storage) {
    const u32 at = static_cast<u32>(__cvta_generic_to_shared(&storage.full[1]));
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;"
                 "@!p bra W; }" :: "r"(at) : "memory");
}

extern "C" __global__ void cast(float* out) {
    extern __shared__ __align__(128) unsigned char raw[];
    DECLARED
    if (threadIdx.x == 0) {
        const u32 at = static_cast<u32>(__cvta_generic_to_shared(&s.full[1]));
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 3;" :: "r"(at) : "memory");
    }
    __syncthreads();
    out[threadIdx.x] = 1;
    wait(s);
}
"""
ONE_STRUCT = (
    "Smem& s = *reinterpret_cast<Smem*>(raw);",
    "Smem* p = (Smem*)raw; Smem& s = *p;",
    "Smem* p = static_cast<Smem*>(static_cast<void*>(raw)); Smem& s = *p;",
)
SEVERAL_STRUCTS = (
    "auto& s = *reinterpret_cast<Smem*>(raw); auto* o = (Other*)raw; o->b[0] = 0;",
    "auto& s = *reinterpret_cast<Smem*>(raw + 128);",
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("declared", [*ONE_STRUCT, *SEVERAL_STRUCTS])
def test_barriers_of_the_only_struct_that_dynamic_shared_memory_is_cast_to(declared: str) -> None:
    kernel = Kernel(CAST.replace("DECLARED", declared), "cast")
    has_name = declared in ONE_STRUCT

    with pytest.raises(EmulatedDeadlock) as caught:
        kernel(1, 32, (np.zeros(32, np.float32),), shared_mem=512)

    assert ("full[1], phase 0: 3 arrivals" in str(caught.value)) is has_name
    assert ("the mbarrier at shared offset" in str(caught.value)) is not has_name
