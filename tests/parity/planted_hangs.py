"""A kernel with a hang planted where the caller says, and who then waits for what.

Each is run on the emulator, whose own search for deadlocks says that the kernel hangs and on which
barrier, and on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from planted import without

from tmaasync import Kernel, create_tma_tile

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kStages = 2;
constexpr int kTiles = 6;
constexpr u32 kReaders = 64;
constexpr u16 kAll = 0b11;

struct SharedMemory {
    Tile::Shared stages[kStages];
    Tile::Shared common;
    SharedMemBarrier full[kStages], empty[kStages], common_full, peer_done;
};

extern "C" __device__ const int hangs_shared_bytes = sizeof(SharedMemory);

__device__ bool is(int defect, int planted) { return defect == planted; }

__device__ void load_tiles(SharedMemory& shared, const Tile& tile, int defect) {
    auto place = PipelineState<kStages>::for_producer();
    for (int index = 0; index < kTiles; ++index, place.step()) {
        if (index == 3 && is(defect, DEAD_PRODUCER)) return;
        shared.empty[place.index].wait(place.phase);
        const bool planted = index == 3;
        auto& full = shared.full[place.index];
        u32 bytes = Tile::kBytes;
        if (planted && is(defect, MORE_BYTES)) bytes += 512;
        if (planted && is(defect, FEWER_BYTES)) bytes -= 8;
        if (planted && is(defect, NO_ARRIVAL)) {
            full.expect_tx(bytes);
        } else if (!(planted && is(defect, NO_EXPECT))) {
            full.expect_bytes(bytes);
        }
        const u32 credited = planted && is(defect, OTHER_STAGE) ? 1 - place.index : place.index;
        if (planted && is(defect, NO_LOAD)) continue;
        tile.async_copy(shared.stages[place.index], shared.full[credited], {0, index * 8});
    }
}

__device__ void read_tiles(SharedMemory& shared, float* sums, int defect) {
    const u32 reader = threadIdx.x - 32;
    auto place = PipelineState<kStages>::for_consumer();
    for (int index = 0; index < kTiles; ++index, place.step()) {
        const bool planted = index == 3;
        do {
            shared.full[place.index].wait(place.phase);
        } while (planted && is(defect, ROUND_IN_CIRCLES));
        const auto* values = reinterpret_cast<const float*>(shared.stages[place.index].bytes);
        float sum = 0;
        for (u32 i = reader; i < Tile::kBytes / 4; i += kReaders) sum += values[i];
        sums[(blockIdx.x * kTiles + index) * kReaders + reader] = sum;
        NamedBarrier<kReaders>{1}.sync();
        if (planted && is(defect, LOST_ARRIVAL) && reader == 5) continue;
        if (planted && (is(defect, NO_RELEASE) || is(defect, LOOKS_ON))) continue;
        shared.empty[place.index].arrive();
    }
}

// One thread of each CTA of a pair.
__device__ void meet(SharedMemory& shared, const Tile& tile, int defect) {
    const u32 rank = block_rank_in_cluster();
    shared.common_full.expect_bytes(Tile::kBytes);
    if (rank == 0) {
        const u16 mask = is(defect, TOO_FEW_TARGETS) ? 0b01 : kAll;
        tile.async_multicast_load(shared.common, shared.common_full, {0, 0}, mask);
    }
    shared.common_full.wait(0);
    if (is(defect, WRONG_PARITY)) shared.common_full.wait(1);
    if (rank == 1 && !is(defect, PEER_GONE)) shared.peer_done.arrive_cluster(0);
    if (rank == 0) shared.peer_done.wait_acquire<Scope::kCluster>(0);
    const bool looks = is(defect, LOOKS_ON) || is(defect, LOOKS_ALONE);
    while (looks && !shared.common_full.try_wait(1)) {}
}

extern "C" __global__ void hangs(const __grid_constant__ Tile tile, float* sums, int defect) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        const bool planted = is(defect, WRONG_COUNT);
        for (auto& full : shared.full) full.init(planted ? 2 : 1);
        for (auto& empty : shared.empty) empty.init(kReaders);
        shared.common_full.init(1);
        shared.peer_done.init(1);
        fence_barrier_init();
    }
    cluster_sync();
    if (threadIdx.x == 0) load_tiles(shared, tile, defect);
    if (threadIdx.x >= 32 && threadIdx.x < 96) read_tiles(shared, sums, defect);
    if (threadIdx.x == 96) meet(shared, tile, defect);
    if (is(defect, PEER_GONE) && block_rank_in_cluster() == 1) return;
    cluster_sync();
}
"""


@dataclass(frozen=True)
class Hang:
    """A wait that never ends: its barrier, the code that waits, its parity, and the cause."""

    barrier: str
    code: str
    phase: int
    missing_arrivals: int
    missing_bytes: int
    cause: str
    rank: int | None = None
    """Of the CTA; None if both ranks wait."""

    @property
    def offset(self) -> int:
        """Of the barrier in shared memory."""
        return 3 * TILE_BYTES + 8 * BARRIERS.index(self.barrier)


TILE_BYTES = 8 * 32 * 4
BARRIERS = ("full[0]", "full[1]", "empty[0]", "empty[1]", "common_full", "peer_done")
"""In the order of their addresses, after three tiles."""
_MORE = "the bytes expected exceed what the copies delivered"
_NOBODY = "the arriving threads never reached it, or wait too"

AT_FULL, AT_EMPTY = "shared.full[place.index].wait", "shared.empty[place.index].wait"
AT_COMMON, AT_PARITY = "shared.common_full.wait(0)", "shared.common_full.wait(1)"
AT_PEER, AT_LOOKS = "shared.peer_done.wait_acquire", "shared.common_full.try_wait"

HANGS = {
    "MORE_BYTES": Hang("full[1]", AT_FULL, 1, 0, 512, _MORE),
    "FEWER_BYTES": Hang("full[1]", AT_FULL, 1, 0, -8, "copies delivered 8 bytes more than"),
    "NO_ARRIVAL": Hang("full[1]", AT_FULL, 1, 1, 0, _NOBODY),
    "NO_EXPECT": Hang("full[1]", AT_FULL, 1, 1, -TILE_BYTES, f"{TILE_BYTES} bytes that no thread"),
    "OTHER_STAGE": Hang("full[1]", AT_FULL, 1, 0, TILE_BYTES, _MORE),
    "NO_LOAD": Hang("full[1]", AT_FULL, 1, 0, TILE_BYTES, _MORE),
    "DEAD_PRODUCER": Hang("full[1]", AT_FULL, 1, 1, 0, _NOBODY),
    "ROUND_IN_CIRCLES": Hang("empty[1]", AT_EMPTY, 1, 64, 0, _NOBODY),
    "LOST_ARRIVAL": Hang("empty[1]", AT_EMPTY, 1, 1, 0, "63 of 64 have arrived"),
    "NO_RELEASE": Hang("empty[1]", AT_EMPTY, 1, 64, 0, _NOBODY),
    "LOOKS_ON": Hang("empty[1]", AT_EMPTY, 1, 64, 0, _NOBODY),
    "TOO_FEW_TARGETS": Hang("common_full", AT_COMMON, 0, 0, TILE_BYTES, _MORE, rank=1),
    "WRONG_PARITY": Hang("common_full", AT_PARITY, 1, 1, 0, "the phase before, whose parity is 0"),
    "PEER_GONE": Hang("peer_done", AT_PEER, 0, 1, 0, _NOBODY, rank=0),
    "WRONG_COUNT": Hang("full[0]", AT_FULL, 0, 1, 0, "1 of 2 have arrived"),
    "LOOKS_ALONE": Hang("common_full", AT_LOOKS, 1, 1, 0, _NOBODY),
}
"""By name what is planted, and where all hang of it that hang."""

MEASURED = {
    0x7FFFD800001FFFF6: (5, 5, 0, 0),
    0x7FFFDBFF831FFFF6: (5, 5, 1000, 0),
    0x7FFFEBFF831FFFF6: (5, 3, 1000, 0),
    0x7FFFE800031FFFF6: (5, 3, -24, 0),
    0x00000000031FFFF6: (5, 0, -24, 0),
    0x00000217B81FFFF6: (5, 0, 1_000_000, 0),
    0xFFFFD800001FFFF6: (5, 5, 0, 1),
    0xFFFFD9FFFFFFFFF6: (5, 5, -1_048_575, 1),
}
"""The 64 bits of a barrier on an H200, and their facts: arrivals of a phase, missing arrivals,
missing bytes, phase."""


class PlantedHangs:
    """The kernel, on arrays of a back end, with what it should compute."""

    def __init__(self, backend: Any, **how: Any) -> None:
        self._backend = backend
        rows = np.random.default_rng(7).integers(-99, 99, (48, 32)).astype(np.float32)
        self._tile = create_tma_tile(backend.array(rows), (8, 32))
        self._wanted = rows.reshape(6, 4, 64).sum(1)
        self._numbers = {name: number for number, name in enumerate(("NOTHING", *HANGS))}
        self.kernel = Kernel(
            SOURCE, "hangs", types={"Tile": self._tile}, constants=self._numbers, **how
        )

    def run(self, name: str = "NOTHING", *, blocks: int = 2) -> bool:
        """Launch with something planted; whether the sums are right."""
        sums = self.launch(name, self._backend.array(np.full((blocks, 6, 64), np.nan, np.float32)))
        return bool((self._backend.host(sums) == self._wanted).all())

    def launch(self, name: str, sums: Any) -> Any:
        """Launch as many blocks as there are sums for, which come back."""
        self.kernel(len(sums), 128, (self._tile, sums, self._numbers[name]), cluster=2)
        return sums


def line_of(code: str) -> int:
    """Return the line of the source that has this code, once."""
    ((start, _),) = without(code).spans(SOURCE)
    return SOURCE.count("\n", 0, start) + 1
