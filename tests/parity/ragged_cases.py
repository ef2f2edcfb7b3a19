"""Random batches of sequences between poisoned gaps, moved from one array to another by one kernel.

The oracle slices with NumPy. All of a case's batches lie one after the other in one array, so that
many batches are few launches; what lies between sequences is NaN in the source, which must not get
into any tile, and poison in the target, which must stay.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync import Kernel, RaggedTensorMap, Swizzle, create_ragged_tensor_map

POISON = 0xA5
_MOVE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    typename Map::Shared tile;
    SharedMemBarrier full;
};

extern "C" __device__ const int move_shared_bytes = sizeof(SharedMemory);

__device__ constexpr int kTiles[] = {TILES_X, TILES_Y, TILES_Z};

__device__ Coordinates<Map::kRank> place(int row, int part) {
    Coordinates<Map::kRank> at;
    constexpr int kRowDim = Map::kRank - 1 - RAGGED_DIM;
    for (int dim = 0, other = 0; dim < Map::kRank; ++dim) {
        if (dim == kRowDim) {
            at.values[dim] = row;
        } else {
            at.values[dim] = part % kTiles[other] * Map::side(Map::kRank - 1 - dim);
            part /= kTiles[other++];
        }
    }
    return at;
}

// A block moves one sequence, tile by tile; one of no rows makes one attempt. `seen` gets the tiles
// as they lay in shared memory.
extern "C" __global__ void move(
    const __grid_constant__ Map source,
    const __grid_constant__ Map target,
    const int* starts,
    const int* lengths,
    unsigned char* seen,
    int tiles_per_sequence
) {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.full.init(1);
    fence_barrier_init();
    const RaggedSequence from{starts[2 * blockIdx.x], lengths[blockIdx.x]};
    const RaggedSequence to{starts[2 * blockIdx.x + 1], lengths[blockIdx.x]};
    seen += static_cast<i64>(blockIdx.x) * tiles_per_sequence * Map::kBytes;
    u32 phase = 0;
    for (int row = 0; row == 0 || row < from.length; row += Map::kRows) {
        for (int part = 0; part < TILES_X * TILES_Y * TILES_Z; ++part, phase ^= 1) {
            shared.full.expect_bytes(Map::kBytes);
            source.async_copy(shared.tile, shared.full, from, place(row, part));
            shared.full.wait(phase);
            if (tiles_per_sequence) {
                for (int i = 0; i < Map::kBytes; ++i) *seen++ = shared.tile.bytes[i];
            }
            target.async_store(shared.tile, to, place(row, part));
            commit_group();
            wait_group_read<0>();
        }
    }
}
"""


@dataclass(frozen=True)
class Form:
    """A packed array's rows and how they are cut; axes outermost first, the rows not among them."""

    dtype: str
    others: tuple[int, ...]
    tile_rows: int
    tile_others: tuple[int, ...]
    max_length: int
    swizzle: Swizzle = Swizzle.NONE
    ragged_dim: int = 0

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def parts(self) -> tuple[int, ...]:
        """Tiles along each of the other dimensions, innermost first."""
        sides = zip(self.others, self.tile_others, strict=True)
        return tuple(-(-extent // side) for extent, side in sides)[::-1]

    @property
    def most_tiles(self) -> int:
        """Tiles of the longest sequence."""
        return -(-self.max_length // self.tile_rows) * int(np.prod(self.parts))

    def shape(self, rows: int) -> tuple[int, ...]:
        return (*self.others[: self.ragged_dim], rows, *self.others[self.ragged_dim :])

    def tile_shape(self) -> tuple[int, ...]:
        dim = self.ragged_dim
        return (*self.tile_others[:dim], self.tile_rows, *self.tile_others[dim:])

    def map(self, array: Any) -> RaggedTensorMap:
        return create_ragged_tensor_map(
            array,
            self.tile_shape(),
            max_length=self.max_length,
            ragged_dim=self.ragged_dim,
            swizzle=self.swizzle,
        )


FORMS = (
    Form("float32", (32,), 8, (32,), 40, Swizzle.B128),
    Form("float16", (3, 64), 16, (1, 64), 33, Swizzle.B128),
    Form("uint8", (48,), 5, (48,), 17),
    Form("float64", (2, 2, 4), 4, (2, 2, 4), 19, Swizzle.B32),
    Form("float16", (2, 3, 40), 7, (1, 2, 32), 25, Swizzle.B64),
    Form("float32", (3, 16), 6, (2, 16), 24, Swizzle.NONE, ragged_dim=1),
    Form("float16", (2, 2, 64), 9, (1, 1, 32), 30, Swizzle.B64, ragged_dim=2),
)
"""Every width, no, one and two more dimensions, every swizzle, rows in every place."""


@dataclass(frozen=True)
class Batches:
    """Sequences of many batches: where they lie in the source and in the target, and their rows."""

    lengths: Any
    starts: Any  # (sequences, 2): in the source, in the target
    rows: int

    @classmethod
    def drawn(cls, form: Form, count: int, seed: int) -> Batches:
        """``count`` batches of 0 to 5 sequences; lengths 0, 1 and the longest more often."""
        rng = np.random.default_rng(seed)
        size = int(rng.integers(0, 6, count).sum())
        lengths = rng.integers(0, form.max_length + 1, size)
        special = np.array([0, 1, form.tile_rows, form.max_length])
        lengths = np.where(rng.random(size) < 0.3, rng.choice(special, size), lengths)
        gaps = rng.integers(0, 3, (2, size + 1))
        ends = np.cumsum(lengths)
        starts = ends - lengths + np.cumsum(gaps[:, :-1], axis=1)
        rows = int(ends[-1] + gaps.sum(axis=1).max()) if size else 1
        return cls(lengths.astype(np.int32), starts.T.astype(np.int32).copy(), max(rows, 1))

    def row_indices(self, side: int) -> Any:
        """Every row of every sequence, in order, as rows of the source (0) or target (1)."""
        each = np.repeat(np.arange(self.lengths.size), self.lengths)
        within = np.arange(each.size) - (np.cumsum(self.lengths) - self.lengths)[each]
        return self.starts[each, side] + within


@functools.cache
def _kernel(cuda_type: str, parts: tuple[int, ...], ragged_dim: int) -> Kernel:
    x, y, z = (*parts, 1, 1)[:3]
    return Kernel(
        _MOVE,
        "move",
        types={"Map": cuda_type},
        constants={"TILES_X": x, "TILES_Y": y, "TILES_Z": z, "RAGGED_DIM": ragged_dim},
    )


def rows_first(form: Form, array: Any) -> Any:
    """Return a view with the rows first."""
    others = [dim for dim in range(array.ndim) if dim != form.ragged_dim]
    return array.transpose(form.ragged_dim, *others)


def source_words(form: Form, batches: Batches, arrays: Any, seed: int) -> Any:
    """Random bits where sequences lie, NaN (every bit set) elsewhere; as unsigned words."""
    word = np.dtype(f"u{form.itemsize}")
    shape = form.shape(batches.rows)
    count = int(np.prod(shape)) * form.itemsize
    raw = arrays.random.RandomState(seed).randint(0, 256, count).astype(np.uint8)
    values = raw.view(word).reshape(shape)
    gaps = np.setdiff1d(np.arange(batches.rows), batches.row_indices(0))
    rows_first(form, values)[arrays.asarray(gaps)] = np.iinfo(word).max
    return values


def move(form: Form, batches: Batches, source: Any, target: Any, arrays: Any, seen: Any) -> None:
    """Run the kernel; ``seen`` is None or has room for `Form.most_tiles` of every sequence."""
    maps = [form.map(array.view(form.dtype)) for array in (source, target)]
    kernel = _kernel(maps[0].cuda_type, form.parts, form.ragged_dim)
    arguments = (
        *maps,
        arrays.asarray(batches.starts),
        arrays.asarray(batches.lengths),
        arrays.zeros(1, np.uint8) if seen is None else seen,
        0 if seen is None else form.most_tiles,
    )
    kernel(batches.lengths.size, 1, arguments)


def wrong_words(form: Form, count: int, arrays: Any, seed: int) -> int:
    """Elements of the target that are not what they must be after moving random batches."""
    batches = Batches.drawn(form, count, seed)
    source = source_words(form, batches, arrays, seed)
    target = arrays.full(form.shape(batches.rows), POISON, source.dtype)
    expected = target.copy()
    taken, given = (arrays.asarray(batches.row_indices(side)) for side in (0, 1))
    rows_first(form, expected)[given] = rows_first(form, source)[taken]
    move(form, batches, source, target, arrays, None)
    return int((target != expected).sum())


def tiles_seen(form: Form, batches: Batches, source: Any, arrays: Any) -> Any:
    """The tiles of every sequence as they lay in shared memory: (sequences, tiles, bytes)."""
    target = arrays.full_like(source, POISON)
    tile_bytes = form.map(source.view(form.dtype)).tile_bytes
    shape = (batches.lengths.size, form.most_tiles, tile_bytes)
    seen = arrays.full(shape, POISON, np.uint8)
    move(form, batches, source, target, arrays, seen.reshape(-1))
    return seen
