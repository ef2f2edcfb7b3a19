"""The host's plan of a ring against the ring itself: sizes, offsets and arrivals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel, Pipeline, Swizzle, create_tma_tile

SOURCE = """
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/shared.cuh>
#include <tmaasync/structured/store_ring.cuh>

using namespace tmaasync;

struct Stage {
    static constexpr int kBytes = ATile::kBytes + BTile::kBytes;
    ATile::Shared a;
    BTile::Shared b;
};
struct Side {
    ScaleTile::Shared scales;
};
struct SharedMemory {
    PLANNED ring;
    CTile::Shared epilogue[2];
};
extern "C" __device__ const int report_shared_bytes = sizeof(SharedMemory);

__device__ int arrivals(SharedMemBarrier& barrier) {
    int count = 0;
    for (; !barrier.test_wait(0); ++count) barrier.arrive();
    return count;
}

extern "C" __global__ void report(i64* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    auto& ring = shared.ring;
    const auto offset = [&](const void* member) {
        return static_cast<const char*>(member) - reinterpret_cast<const char*>(&shared);
    };
    ring.init();
    *out++ = sizeof(SharedMemory);
    *out++ = alignof(SharedMemory);
    *out++ = Stage::kBytes + SIDE_BYTES;
    *out++ = arrivals(ring.full[0]);
    *out++ = HAS_EMPTY ? arrivals(EMPTY[0]) : 0;
    *out++ = offset(&ring.stages[0].a);
    *out++ = offset(&ring.stages[1].a) - offset(&ring.stages[0].a);
    *out++ = offset(&ring.stages[0].b);
    *out++ = offset(&ring.full[0]);
    *out++ = HAS_EMPTY ? offset(&EMPTY[0]) : 0;
    *out++ = SIDE_BYTES ? offset(&SIDE[0]) : 0;
    *out++ = offset(&shared.epilogue);
}
"""
NAMES = (
    *("SHARED_BYTES", "SHARED_ALIGNMENT", "STAGE_BYTES", "FULL_ARRIVALS", "EMPTY_ARRIVALS"),
    *("A_OFFSET", "A_STRIDE", "B_OFFSET", "FULL_BARRIERS_OFFSET", "EMPTY_BARRIERS_OFFSET"),
    *("SCALES_OFFSET", "EXTRA_OFFSET"),
)
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "a ring": ({}, "Ring<Stage, STAGES, ConsumerWarps<CONSUMERS>>"),
    "many consumers": ({"consumers": 12}, "Ring<Stage, STAGES, ConsumerWarps<CONSUMERS>>"),
    "multicast": (
        {"consumers": 8, "cluster_size": 2},
        "Ring<Stage, STAGES, ConsumerWarps<CONSUMERS>, Multicast<CLUSTER_SIZE>>",
    ),
    "side data": (
        {"consumers": 4, "side": True},
        "Ring<Stage, STAGES, ConsumerWarps<CONSUMERS>, Multicast<CLUSTER_SIZE>, Side>",
    ),
    "filled by threads": (
        {"consumers": 4, "producer_threads": 96},
        "Ring<Stage, STAGES, ConsumerWarps<CONSUMERS>, ProducerThreads<PRODUCER_THREADS>>",
    ),
    "drained by stores": ({"loads_ahead": 1}, "StoreRing<Stage, STAGES, LOADS_AHEAD>"),
}


def tiles(backend: Any, swizzle: Swizzle) -> dict[str, Any]:
    """Tiles of which some end before the alignment of the next."""
    array = backend.array(np.zeros((256, 256), np.float16))
    scales = backend.array(np.zeros((256, 64), np.float32))
    return {
        "ATile": create_tma_tile(array, (64, 64), swizzle=swizzle),
        "BTile": create_tma_tile(array, (9, 64), swizzle=swizzle),
        "CTile": create_tma_tile(array, (16, 64), swizzle=swizzle),
        "ScaleTile": create_tma_tile(scales, (1, 12)),
    }


# On the CPU each form once, and each swizzle and number of stages with three of them.
@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 3, 7, 11, 14, 22)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B128], ids=str)
@pytest.mark.parametrize("stages", [2, 5])
def test_the_plan_is_the_ring(backend: Any, form: str, swizzle: Swizzle, stages: int) -> None:
    arguments, ring = FORMS[form]
    types = tiles(backend, swizzle)
    has_side = "side" in arguments
    side = {"side": {"scales": types["ScaleTile"]}} if has_side else {}
    pipeline = Pipeline(
        stages,
        tiles={"a": types["ATile"], "b": types["BTile"]},
        extra_bytes=2 * 16 * 64 * 2,
        **(arguments | side),
    )
    planned = pipeline.constants()
    is_stored = pipeline.loads_ahead is not None
    if is_stored:
        planned["EMPTY_ARRIVALS"] = 0
    source = SOURCE.replace("PLANNED", ring)
    source = source.replace("EMPTY[0]", "ring.full[0]" if is_stored else "ring.empty[0]")
    source = source.replace("SIDE[0]", "ring.side[0]" if has_side else "ring")
    constants = planned | {"HAS_EMPTY": not is_stored, "SIDE_BYTES": 48 if has_side else 0}
    out = backend.array(np.full(len(NAMES), -1, np.int64))

    Kernel(source, "report", types=types, constants=constants)(1, 1, (out,))

    got = dict(zip(NAMES, backend.host(out).tolist(), strict=True))
    assert got == {name: planned.get(name, 0) for name in NAMES}
    assert got["B_OFFSET"] + pipeline.tiles["b"].tile_bytes <= got["A_STRIDE"]
