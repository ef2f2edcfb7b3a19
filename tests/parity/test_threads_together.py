"""What the threads of a warp, a block and a grid do together, on either back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel

WARP = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>

extern "C" __global__ void warp(const int* in, unsigned* out) {
    const int i = threadIdx.x, lane = i % 32, value = in[i];
    const unsigned half = lane < 16 ? 0x0000ffff : 0xffff0000, all = 0xffffffff;
    int row = 0, is_same;
    const auto put = [&](unsigned word) { out[64 * row++ + i] = word; };
    put(__match_any_sync(all, value));
    put(__match_any_sync(half, (long long)value << 40));
    put(__match_any_sync(all, value * 0.5));
    put(__match_any_sync(all, value * 0.5f));
    put(__match_all_sync(all, value / 100, &is_same));
    put(is_same);
    put(__match_all_sync(all, value, &is_same));
    put(is_same);
    put(__reduce_add_sync(half, value));
    put(__reduce_add_sync(all, unsigned(value) << 29));
    put(__reduce_min_sync(all, value - 3));
    put(__reduce_max_sync(half, value - 3));
    put(__reduce_min_sync(all, unsigned(value - 3)));
    put(__reduce_max_sync(all, unsigned(value - 3)));
    put(__reduce_or_sync(all, unsigned(value)));
    put(__reduce_xor_sync(all, unsigned(value)));
    put(__reduce_and_sync(half, unsigned(value)));
    put(__ballot_sync(half, value > 4));
    put(__any_sync(half, value > 7) + 2 * __all_sync(half, value < 8));
    put(__uni_sync(half, value < 9) + 2 * __uni_sync(all, value < 4) + 4 * __uni_sync(all, 0));
    put(__shfl_sync(all, value, lane + 5, 8));
    put(__shfl_up_sync(all, value, 3));
    put(__shfl_down_sync(all, value, 3, 16));
    put(__shfl_xor_sync(all, value, 9));
    put(unsigned(__shfl_xor_sync(all, value * 1e10, 1) / 1e10));
    put(__shfl_xor_sync(all, (unsigned long long)value << 35, 2) >> 35);
    put(__half2int_rn(__high2half(__shfl_xor_sync(all, __floats2half2_rn(0, value), 4))));
    put(__bfloat162int_rn(__shfl_up_sync(all, __int2bfloat16_rn(value), 1)));
    put(__activemask());
    unsigned active = 0;
    if (value > 3) active = __activemask();
    __syncwarp();
    put(active);
    if (lane >= 24) return;
    put(__reduce_add_sync(all, 1));  // those that have ended do not count
    put(__match_any_sync(all, value));
}
"""


def of_warps(warps: Any) -> tuple[list[Any], Any]:
    """Return what two warps of these values put, and the masks of lanes with equal values."""
    lane = np.arange(32)
    bit = np.uint32(1) << lane.astype(np.uint32)
    equal = warps[:, :, None] == warps[:, None, :]
    halves = lane[:, None] // 16 == lane[None, :] // 16
    own = (halves * bit).sum(1)[None].repeat(2, 0)

    def by_half(change: Any, of: Any) -> Any:
        return change.reduce(of.reshape(4, 16), 1).repeat(16)

    def by_warp(change: Any, of: Any) -> Any:
        return change.reduce(of, 1).repeat(32)

    def ballot(test: Any) -> Any:
        return (test[:, None, :] * bit).sum(2)

    zero = np.zeros(64, int)
    less = (warps - 3).astype(np.uint32)
    same = (equal * bit).sum(2)
    high = by_half(np.logical_or, warps > 7) + 2 * by_half(np.logical_and, warps < 8)
    put = [
        same, ((equal & halves) * bit).sum(2), same, same, zero - 1, zero + 1, zero, zero,
        by_half(np.add, warps), by_warp(np.add, warps << 29), by_warp(np.minimum, warps - 3),
        by_half(np.maximum, warps - 3), by_warp(np.minimum, less), by_warp(np.maximum, less),
        by_warp(np.bitwise_or, warps), by_warp(np.bitwise_xor, warps),
        by_half(np.bitwise_and, warps), ballot(warps > 4) & own, high, zero + 5,
        warps[:, lane // 8 * 8 + (lane + 5) % 8],
        np.where(lane >= 3, warps[:, lane - 3], warps),
        np.where(lane % 16 < 13, warps[:, (lane + 3) % 32], warps),
        warps[:, lane ^ 9], warps[:, lane ^ 1], warps[:, lane ^ 2], warps[:, lane ^ 4],
        np.where(lane >= 1, warps[:, lane - 1], warps),
        zero - 1,
        np.where(warps > 3, ballot(warps > 3), 0),
    ]  # fmt: skip
    return put, same


def test_warps(backend: Any) -> None:
    values = np.random.default_rng(3).integers(0, 9, 64).astype(np.int32)
    out = backend.array(np.zeros((32, 64), np.uint32))
    Kernel(WARP, "warp")(1, 64, (backend.array(values), out))

    expected, same = of_warps(values.reshape(2, 32))
    got = backend.host(out)
    for row, want in enumerate(expected):
        words = np.asarray(want).astype(np.int64).ravel().astype(np.uint32)
        assert got[row].tolist() == words.tolist(), row
    left = got[30:].reshape(2, 2, 32)
    assert (left[0, :, :24] == 24).all()
    assert (left[1, :, :24] == (same & 0xFFFFFF)[:, :24]).all()
    assert (left[:, :, 24:] == 0).all()


BLOCK = """
extern "C" __global__ void block(const int* in, int* out) {
    const int i = threadIdx.x, value = in[i];
    for (int round = 0; round < 5; ++round) out[i] = __syncthreads_count(value > round);
    out[96 + i] = __syncthreads_and(value >= 0) + 2 * __syncthreads_and(value > 0);
    out[192 + i] = __syncthreads_or(value < 0) + 2 * __syncthreads_or(value > 7);
    __shared__ int held[96];
    held[i] = value;
    __barrier_sync(1);
    if (i < 64) {
        out[288 + i] = held[95 - i];
        __barrier_sync_count(2, 64);
        held[i] = i;
        __barrier_sync_count(2, 64);
        out[384 + i] = held[63 - i];
    }
}
"""


def test_blocks(backend: Any) -> None:
    values = np.random.default_rng(3).integers(0, 9, 96).astype(np.int32)
    values[0] = 0
    out = backend.array(np.zeros((5, 96), np.int32))
    Kernel(BLOCK, "block")(1, 96, (backend.array(values), out))

    got = backend.host(out)
    assert (got[0] == (values > 4).sum()).all()
    assert (got[1] == 1).all()
    assert (got[2] == 2 * (values > 7).any()).all()
    assert (got[3, :64] == values[95:31:-1]).all()
    assert (got[4, :64] == np.arange(63, -1, -1)).all()


CLUSTER = """
extern "C" __global__ void clusters(unsigned* out) {
    __shared__ unsigned own[1];
    const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
    if (threadIdx.x == 0) own[0] = 100 + __clusterRelativeBlockRank();
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    const unsigned peer = (__clusterRelativeBlockRank() + 1) % __clusterSizeInBlocks();
    unsigned* const theirs = static_cast<unsigned*>(__cluster_map_shared_rank(own, peer));
    const unsigned shared = __cvta_generic_to_shared(theirs);
    const unsigned flags = __isShared(own) + 2 * __isShared(theirs) +
                           4 * __isClusterShared(theirs) + 8 * __isGlobal(theirs);
    const unsigned seen = *theirs, *again =
        static_cast<unsigned*>(__cvta_shared_to_generic(shared));
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
    const dim3 size = __clusterDim(), at = __clusterRelativeBlockIdx(), index = __clusterIdx(),
               count = __clusterGridDimInClusters();
    const unsigned words[] = {
        __clusterDimIsSpecified(), size.x, size.y, size.z, at.x, at.y, index.x, index.y,
        count.x, count.y, seen, __cluster_query_shared_rank(theirs), flags, again == theirs,
    };
    for (int i = 0; i < 14; ++i) out[14 * block + i] = words[i];
}
"""


def test_clusters(backend: Any) -> None:
    out = backend.array(np.zeros((2, 4, 14), np.uint32))
    Kernel(CLUSTER, "clusters")((4, 2), 1, (out,), cluster=(2, 2, 1))

    for y, x in np.ndindex(2, 4):
        rank = x % 2 + 2 * y
        peer = (rank + 1) % 4
        want = [1, 2, 2, 1, x % 2, y, x // 2, 0, 2, 1, 100 + peer, peer, 1 + 4, 1]
        assert backend.host(out)[y, x].tolist() == want, (x, y)


ATOMICS = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void atomics(
    const unsigned* in, unsigned* words, unsigned long long* wide, int* whole, float* floats,
    double* doubles, unsigned* pairs, uint4* sixteen
) {
    const unsigned value = in[blockIdx.x * blockDim.x + threadIdx.x];
    SCOPED(, value)
    SCOPED(_system, value)
    __shared__ unsigned own[11];
    if (threadIdx.x == 0) {
        for (int i = 0; i < 11; ++i) own[i] = i == 4 || i == 9 ? ~0u : 0;
    }
    __syncthreads();
    atomicAdd_block(own, value), atomicSub_block(own + 1, value), atomicMax_block(own + 2, value);
    atomicOr_block(own + 3, value), atomicAnd_block(own + 4, value);
    atomicXor_block(own + 5, value), atomicInc_block(own + 6, 5), atomicDec_block(own + 7, 5);
    atomicExch_block(own + 8, 3u), atomicMin_block(own + 9, value);
    atomicCAS_block(own + 10, 0u, 9u);
    __syncthreads();
    if (threadIdx.x < 11) words[22 + 11 * blockIdx.x + threadIdx.x] = own[threadIdx.x];

    atomicAdd(floats, 0.5f);
    atomicAdd(reinterpret_cast<float2*>(floats + 2), make_float2(1, 2));
    atomicAdd(reinterpret_cast<float4*>(floats + 4), make_float4(1, 2, 3, 4));
    atomicAdd(doubles, value * 0.25);
    atomicAdd(reinterpret_cast<__half2*>(pairs), __floats2half2_rn(1, 0.5f));
    atomicAdd(reinterpret_cast<__nv_bfloat162*>(pairs + 1), __floats2bfloat162_rn(1, 0.5f));
    atomicAdd(reinterpret_cast<__half*>(pairs + 2), __float2half(0.25f));
    atomicAdd(reinterpret_cast<__nv_bfloat16*>(pairs + 2) + 1, __float2bfloat16(0.25f));
    unsigned short* const small = reinterpret_cast<unsigned short*>(pairs + 3);
    for (unsigned short old = 0, seen; (seen = atomicCAS(small, old, old + 1)) != old; old = seen) {
    }
    uint4 old = {0, 0, 0, 0};
    for (;;) {
        const uint4 next = {old.x + 1, old.y + value, old.z ^ value, 7};
        const uint4 seen = atomicCAS(sixteen, old, next);
        if (seen.x == old.x && seen.y == old.y && seen.z == old.z && seen.w == old.w) break;
        old = seen;
    }
    atomicExch(sixteen + 1, make_uint4(1, 2, 3, 4));
}
"""
SCOPED = """
#define SCOPED(SUFFIX, VALUE)                                                        \\
    atomicAdd##SUFFIX(words, VALUE), atomicSub(words + 1, VALUE);                    \\
    atomicMax##SUFFIX(words + 2, VALUE), atomicMin##SUFFIX(words + 3, VALUE);        \\
    atomicAnd##SUFFIX(words + 4, VALUE), atomicOr##SUFFIX(words + 5, VALUE);         \\
    atomicXor##SUFFIX(words + 6, VALUE << 3), atomicInc##SUFFIX(words + 7, 10);      \\
    atomicDec##SUFFIX(words + 8, 10), atomicExch##SUFFIX(words + 9, 3u);             \\
    atomicCAS##SUFFIX(words + 10, 0u, 9u);                                           \\
    atomicAdd##SUFFIX(wide, (unsigned long long)VALUE << 33);                        \\
    atomicMax##SUFFIX(wide + 1, (unsigned long long)VALUE << 33);                    \\
    atomicMin##SUFFIX(whole, -int(VALUE)), atomicMax##SUFFIX(whole + 1, -int(VALUE));
"""


def counted(count: int, start: int, step: int, last: int) -> int:
    """Return what atomicInc or atomicDec leave."""
    for _ in range(count):
        start = (0 if start >= last else start + 1) if step > 0 else (
            last if start == 0 or start > last else start - 1
        )  # fmt: skip
    return start


def words_of_all(values: Any) -> list[int]:
    """Return what both blocks leave, who run each operation twice."""
    whole = [int(value) for value in values]
    return [
        2 * sum(whole) % 2**32, -2 * sum(whole) % 2**32, max(whole), min(whole),
        int(np.bitwise_and.reduce(values)), int(np.bitwise_or.reduce(values)), 0,
        counted(256, 0, 1, 10), counted(256, 0, -1, 10), 3, 9,
    ]  # fmt: skip


def words_of_a_block(own: Any) -> list[int]:
    """Return what the operations of one block leave."""
    sums = int(own.astype(np.uint64).sum())
    expected = [
        sums, -sums, own.max(), np.bitwise_or.reduce(own), np.bitwise_and.reduce(own),
        np.bitwise_xor.reduce(own), counted(64, 0, 1, 5), counted(64, 0, -1, 5), 3, own.min(), 9,
    ]  # fmt: skip
    return [int(value) % 2**32 for value in expected]


def test_atomics(backend: Any) -> None:
    values = np.random.default_rng(5).integers(1, 2**20, 128).astype(np.uint32)
    values[:2] = [2**24 + 5, 2**30 - 1]
    arrays: dict[str, Any] = {
        "words": np.zeros(44, np.uint32),
        "wide": np.zeros(2, np.uint64),
        "whole": np.array([0, -(2**31)], np.int32),
        "floats": np.zeros(8, np.float32),
        "doubles": np.zeros(1, np.float64),
        "pairs": np.zeros(4, np.uint32),
        "sixteen": np.zeros((2, 4), np.uint32),
    }
    arrays["words"][[3, 4]] = 2**32 - 1
    held = {name: backend.array(array) for name, array in arrays.items()}
    Kernel(SCOPED + ATOMICS, "atomics")(2, 64, (backend.array(values), *held.values()))
    got = {name: backend.host(array) for name, array in held.items()}

    whole = [int(value) for value in values]
    assert got["words"][:11].tolist() == words_of_all(values)
    for block in range(2):
        row = got["words"][22 + 11 * block : 33 + 11 * block]
        assert row.tolist() == words_of_a_block(values[64 * block : 64 * block + 64])
    assert got["wide"].tolist() == [(2 * sum(whole) << 33) % 2**64, max(whole) << 33]
    assert got["whole"].tolist() == [-max(whole), -min(whole)]
    assert got["floats"].tolist() == [64, 0, 128, 256, 128, 256, 384, 512]
    assert got["doubles"].tolist() == [sum(whole) / 4]
    assert got["pairs"][:1].view(np.float16).tolist() == [128, 64]
    assert (got["pairs"][1:2].view(np.uint16).astype(np.uint32) << 16).view(
        np.float32
    ).tolist() == [128, 64]
    assert got["pairs"][2:3].view(np.float16)[0] == 32
    assert got["pairs"][3] == 128
    assert got["sixteen"][0].tolist() == [
        128, sum(whole) % 2**32, int(np.bitwise_xor.reduce(values)), 7
    ]  # fmt: skip
    assert got["sixteen"][1].tolist() == [1, 2, 3, 4]


FLUSHED = """
extern "C" __global__ void flushed(float* tiny) {
    __shared__ float own;
    own = 1e-40f;
    atomicAdd(&own, 1e-41f);
    tiny[1] = own;
    atomicAdd(tiny, 1e-41f);
}
"""


@pytest.mark.parametrize("first", [1e-40, 1.5 * 2.0**-126])
def test_sums_in_global_memory_flush_subnormal_floats(backend: Any, first: float) -> None:
    tiny = backend.array(np.array([first, 0], np.float32))
    Kernel(FLUSHED, "flushed")(1, 1, (tiny,))
    got = backend.host(tiny)
    assert got[0] == (0 if first < 2.0**-126 else np.float32(first))
    assert abs(got[1] / np.float32(1.1e-40) - 1) < 1e-3


DISTANCES = """
extern "C" __global__ void distances(const int* in, int* out) {
    const int value = in[threadIdx.x];
    out[threadIdx.x] = __shfl_down_sync(0xffffffff, value, 35);
    out[32 + threadIdx.x] = __shfl_up_sync(0xffffffff, value, 1000002u);
    out[64 + threadIdx.x] = __shfl_xor_sync(0xffffffff, value, -1);
    out[96 + threadIdx.x] = __shfl_sync(0xffffffff, value, 71);
}
"""


def test_shuffles_take_the_lowest_bits_of_a_distance(backend: Any) -> None:
    values = np.random.default_rng(3).integers(0, 2**20, 32).astype(np.int32)
    out = backend.array(np.zeros((4, 32), np.int32))

    Kernel(DISTANCES, "distances")(1, 32, (backend.array(values), out))

    lane = np.arange(32)
    down = values[np.where(lane + 3 < 32, lane + 3, lane)]
    up = values[np.where(lane >= 1000002 % 32, lane - 1000002 % 32, lane)]
    expected = [down, up, values[::-1], np.full(32, values[7])]
    np.testing.assert_array_equal(backend.host(out), expected)
