"""Kernels and calls at the largest extents; most of the memory of their arrays is never touched.

As a script, the calls of the emulator: tests/parity/test_limits.py runs it with a compiler that
traps where a signed integer overflows.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from tmaasync import Kernel, ops
from tmaasync._source.paths import kernels_dir
from tmaasync.ops._extents import MAX_EXTENT

__all__ = ["MAX_EXTENT", "check_masks", "check_numbers", "check_scales", "check_stream_k"]

FEW = 300
SPLITS = 66
CLUSTERS = 132
K_BLOCKS = MAX_EXTENT // 64

SOURCE = """
#include <tmaasync/attention/mask.cuh>
#include <tmaasync/attention/paged.cuh>
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/structured/grouped_scheduler.cuh>
#include <tmaasync/structured/k_range.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/stream_k_scheduler.cuh>

#include "attention/abi.cuh"

using namespace tmaasync;

using Tiles = OutputTiles<128, 256>;

extern "C" __global__ void numbers(i64* out, int extent, int few, int splits) {
    const auto put = [&](i64 value) { *out++ = value; };
    put(count_tiles(extent, 128));
    put(count_tiles(extent, few));
    put(count_tiles(0x7fffffff, 128));
    const KRange last_range(extent, splits - 1, splits);
    put(last_range.first);
    put(last_range.count);
    const Tiles all[3] = {Tiles(extent, few), Tiles(few, extent), Tiles(1, 1, extent)};
    for (const Tiles& tiles : all) {
        const auto last = tiles.at(tiles.count() - 1);
        put(tiles.count());
        put(last.m);
        put(last.n);
        put(last.batch);
    }
    const i32 ends[2] = {extent - few, extent};
    i32 last_start = 0;
    for (const auto tile : GroupedScheduler<1 << 30, 256>({ends, 2, extent}, few)) {
        last_start = tile.rows.start;
    }
    put(last_start);
    const PagedSequence<16> paged{0, extent, nullptr};
    put(paged.rows_of(1, extent - 1, {1 << 20, 2}).length);
    put(paged.rows_of(1, extent + 255, {1 << 20, 2}).length);
}

// The blocks that the last 128 queries see, and the keys of each of them in the last block.
extern "C" __global__ void masks(i64* out, int queries, int keys, int shift, int left, int right) {
    const WindowMask<128, true, true> mask{keys, shift, left, right};
    const i32 first = queries - 128;
    const auto seen = mask.blocks(first, 128);
    float scores[64];
    for (float& score : scores) score = 1;
    mask.mask(scores, RowPositions::from(first), seen.end - 1);
    i64 visible = 0;
    for (int i = 0; i < 64; ++i) visible += i / 2 % 2 == 0 && scores[i] == 1;
    if (threadIdx.x == 0) {
        out[0] = seen.first;
        out[1] = seen.end;
    }
    atomicAdd(reinterpret_cast<unsigned long long*>(out) + 2 + threadIdx.x / 4, visible);
}

extern "C" __global__ void scale_of_last_entry(float* out, const float* scales, i64 step) {
    *out = kernels::attention::Scale{step, 1, 2.0f}.at(scales, 2, 0);
}

extern "C" __global__ void stream_k(i64* out, int m, int k_blocks) {
    const StreamKScheduler<OutputTiles<128, 256>> schedule({m, 1}, k_blocks);
    i64 blocks = 0;
    for (const auto tile : schedule) blocks += tile.k_blocks.count;
    out[blockIdx.x] = blocks;
}
"""


def untouched(elements: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros whose pages have no memory before they are written."""
    no_reserve = 0x4000  # of Linux; Python has it from 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return np.frombuffer(mmap.mmap(-1, elements * np.dtype(dtype).itemsize, flags), dtype)


def _kernel(entry: str) -> Kernel:
    return Kernel(SOURCE, entry, include_dirs=(kernels_dir(),))


def check_numbers(module: Any) -> None:
    """Compare tiles, shares and groups of the largest extent with Python's integers."""
    out = module.full(20, -1, dtype=np.int64)
    _kernel("numbers")(1, 1, (out, MAX_EXTENT, FEW, SPLITS))
    rows, columns = -(-MAX_EXTENT // 128), -(-MAX_EXTENT // 256)
    quotient, longer = divmod(MAX_EXTENT, SPLITS)
    last_share = [MAX_EXTENT - quotient, quotient]
    assert longer < SPLITS - 1
    wanted = [rows, -(-MAX_EXTENT // FEW), 1 << 24, *last_share]
    wanted += [rows * 2, (rows - 1) * 128, 256, 0]
    wanted += [columns * 3, 256, (columns - 1) * 256, 0]
    wanted += [MAX_EXTENT, 0, 0, MAX_EXTENT - 1]
    wanted += [MAX_EXTENT - FEW, 16, 0]
    assert out.tolist() == wanted


def check_masks(module: Any) -> None:
    """Compare windows over the longest queries or keys with Python's integers."""
    for queries, keys in ((FEW, MAX_EXTENT - FEW), (MAX_EXTENT - FEW, FEW)):
        for shift in (0, keys - queries):
            reach = (queries, keys) if shift == 0 else (keys, queries)
            for left, right in ((5, 0), reach, (0, reach[1]), (reach[0], 0)):
                out = module.zeros(34, np.int64)
                arguments = (out, queries, keys, shift, left, right)
                _kernel("masks")(1, 128, arguments)
                assert out.tolist() == _seen(queries, keys, shift, left, right), arguments[1:]


def _seen(queries: int, keys: int, shift: int, left: int, right: int) -> list[int]:
    own = [position + shift for position in range(queries - 128, queries)]
    first = max(own[0] - left, 0) // 128
    end = min(-(-keys // 128), -(-max(own[-1] + right + 1, 0) // 128))
    block = range((end - 1) * 128, end * 128)
    # A quarter of a warp has a row of the first eight of its sixteen.
    rows = [16 * (quad // 8) + quad % 8 for quad in range(32)]
    visible = [
        max(0, min(block.stop, keys, own[row] + right + 1) - max(block.start, own[row] - left, 0))
        if end > 0
        else 0
        for row in rows
    ]
    return [first, end, *visible]


def check_stream_k(module: Any) -> None:
    """Every cluster has the same number of blocks, up to one, and all blocks are taken."""
    tiles = CLUSTERS * 2 - 1
    out = module.zeros(CLUSTERS, np.int64)
    _kernel("stream_k")(CLUSTERS, 1, (out, 128 * tiles, K_BLOCKS))
    assert int(out.sum()) == tiles * K_BLOCKS
    assert int(out.max() - out.min()) <= 1


def check_scales(module: Any) -> None:
    """Read FP8's scale of the third entry, more than 2^31 elements after the first."""
    step = 1 << 30
    memory = (
        untouched(2 * step + 1, np.float32) if module is np else module.empty(2 * step + 1, "f")
    )
    memory[-1] = 3
    out = module.zeros(1, np.float32)
    _kernel("scale_of_last_entry")(1, 1, (out, memory, np.int64(step)))
    assert out.tolist() == [6]


# --- attention on the emulator --------------------------------------------------------------------

_WINDOW = 700
_PAGE = 1 << 14


def _expected(q: Any, k: Any, v: Any, own: Any, right: int) -> npt.NDArray[np.float64]:
    """Attention in float64: query i sees keys from own[i] - _WINDOW to own[i] + right."""
    q, k, v = (array[:, 0].astype(np.float64) for array in (q, k, v))
    key = np.arange(len(k))
    scores = q @ k.T * 8**-0.5
    scores[(key > own[:, None] + right) | (key < own[:, None] - _WINDOW)] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True) @ v)


def check_attention() -> None:
    """Compare padded, packed and paged attention over the longest keys with float64."""
    rng = np.random.default_rng(5)
    length, tail = MAX_EXTENT - FEW, 2 * _WINDOW
    q = rng.standard_normal((FEW, 1, 8)).astype(np.float16)
    k, v = (untouched(8 * length, np.float16).reshape(length, 1, 8) for _ in "kv")
    for array in (k, v):
        array[-tail:] = rng.standard_normal((tail, 1, 8))
    own = np.arange(tail - FEW, tail)
    wanted = _expected(q, k[-tail:], v[-tail:], own, 0)

    padded = ops.attention(q[None], k[None], v[None], causal=True, window=(_WINDOW, 0))
    assert np.abs(padded[0, :, 0] - wanted).max() < 2e-3
    packed = ops.varlen_attention(q, k, v, [0, FEW], [0, length], causal=True, window=(_WINDOW, 0))
    assert np.abs(packed[:, 0] - wanted).max() < 2e-3

    k, v = (rng.standard_normal((5, _PAGE, 1, 8)).astype(np.float16) for _ in "kv")
    table = rng.integers(0, 5, (1, -(-length // _PAGE)), np.int32)
    paged = ops.varlen_attention(
        q,
        k,
        v,
        [0, FEW],
        [0, length],
        page_table=table,
        causal=True,
        window=(_WINDOW, 0),
        max_seqlen_k=length,
    )
    beyond = -length % _PAGE
    key, value = (one[table[0, -2:]].reshape(-1, 1, 8)[: 2 * _PAGE - beyond] for one in (k, v))
    own = np.arange(len(key) - FEW, len(key))
    assert np.abs(paged[:, 0] - _expected(q, key, value, own, 0)).max() < 2e-3


if __name__ == "__main__":
    for check in (check_numbers, check_masks, check_stream_k, check_scales):
        check(np)
    check_attention()
    sys.stdout.write("no overflow\n")
