"""Sequences at both ends of an array whose neighbours are addresses without memory.

Run in a process of its own, since an access outside kills the context:
``python tests/gpu/guarded_ragged.py load`` (or ``store``) prints "ok". ``outside load`` and
``outside store`` move a box without an element in bounds through a map whose own address has no
memory, and print "ok" or "fault".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from cuda.bindings import driver

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from parity.ragged_cases import POISON, Batches, Form, move, source_words

from tmaasync import Kernel

ROW_BYTES = 256
BELOW_BYTES = 64 << 20
# The map's address lies 32 MiB below the array: in the reserved range, where nothing is mapped.
FORM = Form("float32", (64,), 16, (64,), (32 << 20) // ROW_BYTES)


def call(name: str, *arguments: Any) -> Any:
    result, *values = getattr(driver, name)(*arguments)
    if int(result) != 0:
        raise SystemExit(f"{name}: {result.name}")
    return values[0] if values else None


def guarded_bytes() -> Any:
    """Memory of one granule amid reserved addresses without any."""
    cupy.zeros(1)
    kinds, places = driver.CUmemAllocationType, driver.CUmemLocationType
    wanted = driver.CUmemAllocationProp()
    wanted.type = kinds.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location.type = places.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = 0
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    size = int(call("cuMemGetAllocationGranularity", wanted, least))
    start = int(call("cuMemAddressReserve", BELOW_BYTES + 2 * size, 0, 0, 0))
    address = start + BELOW_BYTES
    call("cuMemMap", address, size, 0, call("cuMemCreate", size, wanted, 0), 0)
    access = driver.CUmemAccessDesc()
    access.location.type = places.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    call("cuMemSetAccess", address, size, [access], 1)
    memory = cupy.cuda.UnownedMemory(address, size, None, 0)
    return cupy.ndarray(size, cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))


def batches(rows: int) -> Batches:
    lengths = np.array([5, 0, 100, 3, 0], np.int32)
    starts = np.array([0, 0, rows - 103, rows - 3, rows], np.int32)
    return Batches(lengths, np.stack([starts, starts], axis=1), rows)


def check(direction: str) -> None:
    """Move sequences out of guarded memory, or into it."""
    guarded = guarded_bytes().view(np.uint32).reshape(-1, ROW_BYTES // 4)
    rows = guarded.shape[0]
    some = batches(rows)
    values = source_words(FORM, some, cupy, seed=1)
    source, target = cupy.empty_like(values), cupy.empty_like(values)
    if direction == "load":
        source = guarded
    else:
        target = guarded
    source[...] = values
    target[...] = POISON
    expected = cupy.full_like(values, POISON)
    indices = cupy.asarray(some.row_indices(0))
    expected[indices] = values[indices]

    move(FORM, some, source, target, cupy, None)

    cupy.cuda.Device().synchronize()
    if not bool((target == expected).all()):
        raise SystemExit("wrong bytes")


OUTSIDE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    typename Map::Shared tile;
    SharedMemBarrier full;
};

extern "C" __device__ const int outside_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void outside(const __grid_constant__ Map map, int row, int stores) {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.full.init(1);
    fence_barrier_init();
    const auto at = map.load_coordinates(RaggedSequence{0, 5}, {0, row});
    if (stores) {
        map.outlying.tile.async_store(shared.tile, at);
        commit_group();
        wait_group<0>();
    } else {
        shared.full.expect_bytes(Map::kBytes);
        map.outlying.tile.async_copy(shared.tile, shared.full, at);
        shared.full.wait(0);
    }
}
"""


def outcome_outside(direction: str) -> str:
    """A tile beyond the end of a sequence, without a ragged map."""
    guarded = guarded_bytes().view(np.float32).reshape(-1, ROW_BYTES // 4)
    map_ = FORM.map(guarded)
    kernel = Kernel(OUTSIDE, "outside", types={"Map": map_})
    kernel(1, 1, (map_, 0, int(direction == "store")))
    cupy.cuda.Device().synchronize()
    kernel(1, 1, (map_, 5, int(direction == "store")))
    try:
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return "fault"
    return "ok"


if __name__ == "__main__":
    what = sys.argv[1]
    said = "ok"
    if what == "outside":
        said = outcome_outside(sys.argv[2])
    else:
        check(what)
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()
    os._exit(0)  # a context that faulted cannot be torn down
