"""TMA without tiles: every free function, at every rank, through maps and between addresses."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.test_tiles import COMBINE
from parity.tile_oracle import loaded, stored

from tmaasync import CachePolicy, Kernel, ReduceOp, create_tma_tile, create_tma_tile_im2col

POLICIES = tuple(policy.value for policy in CachePolicy)

# --- through tensor maps --------------------------------------------------------------------------

SHUTTLE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    __align__(128) unsigned char box[16384];
    SharedMemBarrier full;
};
extern "C" __device__ const int shuttle_shared_bytes = sizeof(SharedMemory);

struct Maps {
    const TensorMap& source;
    const TensorMap& target;
    const TensorMap& sum;
};

template <int kRank>
__device__ Coordinates<kRank> place(const i32* numbers) {
    Coordinates<kRank> at;
    for (int dim = 0; dim < kRank; ++dim) at.values[dim] = numbers[dim];
    return at;
}

// Loads a box, stores it elsewhere, and adds it to a third array.
template <int kRank>
__device__ void move(
    SharedMemory& shared, Maps maps, const i32* places, u32 bytes, CachePolicy policy
) {
    const auto from = place<kRank>(places), to = place<kRank>(places + kRank);
    tma_prefetch<kRank>(maps.source, from, policy);
    shared.full.expect_bytes(bytes);
    tma_load<kRank>(maps.source, shared.full, shared.box, from, policy);
    shared.full.wait(0);
    tma_store<kRank>(maps.target, shared.box, to, policy);
    tma_store_arrive();
    tma_reduce<ReduceOp::kAdd, kRank>(maps.sum, shared.box, to, policy);
    tma_store_arrive();
    tma_store_wait<1>();
    tma_store_wait<0, false>();
}

extern "C" __global__ void shuttle(
    const __grid_constant__ TensorMap source, const __grid_constant__ TensorMap target,
    const __grid_constant__ TensorMap sum, const TensorMap* held, int rank, const i32* places,
    u32 bytes, CachePolicy policy
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const Maps maps = held ? Maps{held[0], held[1], held[2]} : Maps{source, target, sum};
    prefetch_tma_descriptor(maps.source);
    shared.full.init();
    fence_barrier_init();
    if (rank == 1) move<1>(shared, maps, places, bytes, policy);
    if (rank == 2) move<2>(shared, maps, places, bytes, policy);
    if (rank == 3) move<3>(shared, maps, places, bytes, policy);
    if (rank == 4) move<4>(shared, maps, places, bytes, policy);
    if (rank == 5) move<5>(shared, maps, places, bytes, policy);
}
"""


@functools.cache
def _shuttle() -> Kernel:
    return Kernel(SHUTTLE, "shuttle")


def in_memory(backend: Any, *tiles: Any) -> Any:
    """The tiles' maps, one after the other, where a map may lie."""
    maps = np.frombuffer(b"".join(tile.descriptor for tile in tiles), np.uint8)
    room = backend.array(np.zeros(maps.size + 128, np.uint8))
    start = -address(room) % 128
    room[start : start + maps.size] = backend.array(maps)
    return room[start : start + maps.size]


def address(array: Any) -> int:
    return int(array.data.ptr) if hasattr(array.data, "ptr") else int(array.ctypes.data)


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 3, 4, 7, 8)
@pytest.mark.parametrize("held", [False, True], ids=["parameters", "in-memory"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_a_box_through_raw_maps(backend: Any, rank: int, held: bool) -> None:
    shape = (3, 4, 5, 6, 100)[5 - rank :]
    box = (2, 1, 3, 4, 32)[5 - rank :]
    rng = np.random.default_rng([rank, held])
    host = rng.integers(-(2**31), 2**31, shape, np.int32)
    wanted, total = np.full(shape, 7, np.int32), np.full(shape, 9, np.int32)
    arrays = [backend.array(array) for array in (host, wanted, total)]
    tiles = [create_tma_tile(array, box) for array in arrays]
    maps = in_memory(backend, *tiles) if held else 0

    for turn in range(6):
        start = [int(rng.integers(-side, extent)) for side, extent in zip(box, shape, strict=True)]
        end = [int(rng.integers(0, extent)) for extent in shape]
        start[-1], end[-1] = start[-1] // 4 * 4, end[-1] // 4 * 4
        places = np.array([*start[::-1], *end[::-1]], np.int32)
        policy = np.uint64(POLICIES[turn % 3])
        arguments = (*tiles, maps, rank, backend.array(places), tiles[0].tile_bytes, policy)

        _shuttle()(1, 1, arguments)

        image = loaded(host, start, box, box)
        stored(wanted, image, end, box, box, lambda old, given: given)
        stored(total, image, end, box, box, lambda old, given: old + given)
        assert np.array_equal(backend.host(arrays[1]), wanted), (start, end)
        assert np.array_equal(backend.host(arrays[2]), total), (start, end)


# --- between plain addresses ----------------------------------------------------------------------

LINES = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    __align__(16) unsigned char line[8192];
    SharedMemBarrier full;
};
extern "C" __device__ const int lines_shared_bytes = sizeof(SharedMemory);

constexpr int kOps = 8, kTypes = 11, kStore = -1;

// The reduction of this number, op * kTypes + type.
template <int kNumber = 0>
__device__ void reduce(
    int number, void* global, const void* shared, u32 bytes, CachePolicy policy
) {
    if constexpr (kNumber < kOps * kTypes) {
        constexpr auto kOp = static_cast<ReduceOp>(kNumber / kTypes);
        constexpr auto kType = static_cast<ElementType>(kNumber % kTypes);
        if constexpr (ptx::reduces_in_global(kOp, kType)) {
            if (number == kNumber) tma_reduce_1d<kOp, kType>(global, shared, bytes, policy);
        }
        reduce<kNumber + 1>(number, global, shared, bytes, policy);
    }
}

// Thread 7 stores the bytes at `source` to `target`, or reduces them into it.
extern "C" __global__ void lines(
    const unsigned char* source, unsigned char* target, u32 shared_offset, u32 bytes, int number,
    CachePolicy policy
) {
    auto& shared = dynamic_shared<SharedMemory>();
    unsigned char* line = shared.line + shared_offset;
    if (threadIdx.x != 7) return;
    shared.full.init();
    fence_barrier_init();
    tma_prefetch_1d(source, bytes, policy);
    shared.full.expect_bytes(bytes);
    tma_load_1d(source, shared.full, line, bytes, policy);
    shared.full.wait(0);
    if (number == kStore) {
        tma_store_1d(target, line, bytes, policy);
    } else {
        reduce(number, target, line, bytes, policy);
    }
    tma_store_arrive();
    tma_store_wait<0, false>();
}
"""


@functools.cache
def _lines() -> Kernel:
    return Kernel(LINES, "lines")


def test_lines(backend: Any) -> None:
    rng = np.random.default_rng(3)
    source = rng.integers(0, 256, 20_000, np.uint8)
    wanted = np.full(20_000, 0xA5, np.uint8)
    given, target = backend.array(source), backend.array(wanted)

    for turn in range(30):
        count = int(rng.integers(1, 256)) * 16
        start, end, offset = (int(rng.integers(0, 250)) * 16 for _ in range(3))
        policy = np.uint64(POLICIES[turn % 3])

        _lines()(1, 32, (given[start:], target[end:], offset, count, -1, policy))

        wanted[end : end + count] = source[start : start + count]
    assert np.array_equal(backend.host(target), wanted)


# Under the numbers of ElementType in kernels.
TYPES = {
    "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 9,
    "bfloat16": 10,
}  # fmt: skip
BITS = (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR)
EXTREMES = (ReduceOp.MIN, ReduceOp.MAX)
LINE_REDUCTIONS = {
    "uint32": tuple(ReduceOp),
    "int32": (ReduceOp.ADD, *EXTREMES, *BITS),
    "uint64": (ReduceOp.ADD, *EXTREMES, *BITS),
    "int64": (*EXTREMES, *BITS),
    "float16": (ReduceOp.ADD, *EXTREMES),
    "bfloat16": (ReduceOp.ADD, *EXTREMES),
    "float32": (ReduceOp.ADD,),
    "float64": (ReduceOp.ADD,),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LINE_REDUCTIONS)
def test_reductions_of_lines(backend: Any, name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    rng = np.random.default_rng(TYPES[name])
    for op in LINE_REDUCTIONS[name]:
        # Whole numbers small enough that every sum is exact in the type.
        low = -64 if kind.kind in "if" else 0
        before, given = (rng.integers(low, 64, 800).astype(kind) for _ in range(2))
        wide = rng.integers(0, 2, 800).astype(bool) if op in BITS else np.zeros(800, bool)
        given[wide] = before[::-1][wide]
        target = backend.array(before.view(np.uint8))
        number = int(op) * 11 + TYPES[name]

        arguments = (backend.array(given.view(np.uint8)), target, 64, given.nbytes, number)
        _lines()(1, 32, (*arguments, np.uint64(CachePolicy.EVICT_FIRST.value)))

        got = backend.host(target).view(kind).astype(np.float64)
        assert np.array_equal(got, COMBINE[op](before, given).astype(np.float64)), op


# --- into several CTAs ----------------------------------------------------------------------------

SPREAD = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

enum Call { kTensor, kLine, kPixels, kPixelsAlone };
constexpr int kBytes = 4096;

struct SharedMemory {
    __align__(128) unsigned char box[kBytes];
    SharedMemBarrier full;
};
extern "C" __device__ const int spread_shared_bytes = sizeof(SharedMemory);

struct Place {
    i32 at[4];
    u16 offsets[2];
};

__device__ void load(
    SharedMemory& shared, const TensorMap& matrix, const TensorMap& images,
    const unsigned char* line, const Place& place, Call call, u16 mask, CachePolicy policy
) {
    const i32* c = place.at;
    if (call == kTensor) {
        tma_load_multicast<2>(matrix, shared.full, shared.box, {c[0], c[1]}, mask, policy);
    } else if (call == kLine) {
        tma_load_1d_multicast(line, shared.full, shared.box, kBytes, mask, policy);
    } else if (call == kPixels) {
        tma_load_im2col_multicast<4>(
            images, shared.full, shared.box, {c[0], c[1], c[2], c[3]},
            {place.offsets[0], place.offsets[1]}, mask, policy
        );
    } else {
        const Coordinates<4> at{c[0], c[1], c[2], c[3]};
        const u16 offsets[] = {place.offsets[0], place.offsets[1]};
        tma_prefetch_im2col<4>(images, at, offsets, policy);
        tma_load_im2col<4>(images, shared.full, shared.box, at, offsets, policy);
    }
}

// The first CTA of the mask loads for all of the mask.
extern "C" __global__ void spread(
    const __grid_constant__ TensorMap matrix, const __grid_constant__ TensorMap images,
    const unsigned char* line, const Place* place, Call call, u16 mask, CachePolicy policy,
    unsigned char* seen
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 rank = block_rank_in_cluster();
    const bool is_in = mask >> rank & 1;
    for (int i = threadIdx.x; i < kBytes; i += blockDim.x) shared.box[i] = 0xCC;
    fence_async_view_proxy();
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
        if (is_in) shared.full.expect_bytes(kBytes);
    }
    cluster_sync();
    if (threadIdx.x == 0 && is_in && (mask & ((1u << rank) - 1)) == 0) {
        load(shared, matrix, images, line, *place, call, mask, policy);
    }
    if (is_in) shared.full.wait(0);
    for (int i = threadIdx.x; i < kBytes; i += blockDim.x) seen[rank * kBytes + i] = shared.box[i];
    cluster_sync();
}
"""
TENSOR, LINE, PIXELS, PIXELS_ALONE = range(4)
PLACE = np.dtype([("at", "<i4", 4), ("offsets", "<u2", 2)])


@functools.cache
def _spread() -> Kernel:
    return Kernel(SPREAD, "spread")


class Sources:
    """A matrix, images and a line, and the 4096 bytes that each call brings."""

    rows, pixels = 32, 64

    def __init__(self, backend: Any, rng: np.random.Generator) -> None:
        self.rng = rng
        self.matrix = rng.random((100, 72), np.float32)
        self.images = rng.random((3, 9, 11, 24), np.float32)
        self.line = rng.integers(0, 256, 8192, np.uint8)
        self.tile = create_tma_tile(backend.array(self.matrix), (self.rows, 32))
        self.patches = create_tma_tile_im2col(
            backend.array(self.images), (self.pixels, 16), filter_shape=(3, 3), padding=1
        )
        self.held_line = backend.array(self.line)

    def draw(self, call: int) -> tuple[Any, int, Any]:
        """A place, where the line starts, and what is wanted."""
        place, start = np.zeros(1, PLACE), int(self.rng.integers(0, 257)) * 16
        if call == TENSOR:
            row, column = int(self.rng.integers(-20, 110)), int(self.rng.integers(-6, 20)) * 4
            place["at"][0, :2] = column, row
            wanted = loaded(self.matrix, (row, column), (self.rows, 32), (self.rows, 32))
        elif call == LINE:
            wanted = self.line[start : start + 4096]
        else:
            place, wanted = self._draw_pixels(place)
        return place, start, wanted

    def _draw_pixels(self, place: Any) -> tuple[Any, Any]:
        first = int(self.rng.integers(0, 3 * 9 * 11))
        tap_row, tap_column = (int(tap) for tap in self.rng.integers(0, 3, 2))
        channel = 4 * int(self.rng.integers(0, 6))
        image, row, column = np.unravel_index(first, (3, 9, 11))
        place["at"][0] = channel, column - 1, row - 1, image
        place["offsets"][0] = tap_column, tap_row
        padded = np.pad(self.images, ((0, 0), (1, 1), (1, 1), (0, 16)))
        shifted = padded[:, tap_row : tap_row + 9, tap_column : tap_column + 11]
        pixels = np.zeros((self.pixels, 16), np.float32)
        found = shifted[..., channel : channel + 16].reshape(-1, 16)[first:][: self.pixels]
        pixels[: len(found)] = found
        return place, pixels.view(np.uint8).reshape(-1)


@pytest.mark.parametrize("ctas", [1, 2, 4])
def test_one_load_for_several_ctas(backend: Any, ctas: int) -> None:
    rng = np.random.default_rng(ctas)
    sources = Sources(backend, rng)
    calls = (TENSOR, LINE, PIXELS, PIXELS_ALONE) if ctas == 1 else (TENSOR, LINE, PIXELS)

    for call, turn in itertools.product(calls, range(5)):
        place, start, wanted = sources.draw(call)
        mask = int(rng.integers(1, 1 << ctas))
        seen = backend.array(np.zeros((ctas, 4096), np.uint8))
        arguments = (sources.tile, sources.patches, sources.held_line[start:])
        given = backend.array(place.view(np.uint8))
        policy = np.uint64(POLICIES[turn % 3])

        _spread()(ctas, 32, (*arguments, given, call, mask, policy, seen), cluster=ctas)

        for rank, bytes_seen in enumerate(backend.host(seen)):
            expected = wanted if mask >> rank & 1 else np.full(4096, 0xCC, np.uint8)
            assert np.array_equal(bytes_seen, expected), (call, mask, rank)
