"""Kernels compute descriptors, places and fragments as the host does."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tmaasync import Kernel, Swizzle
from tmaasync._elements import element
from tmaasync.swizzle import tile_offset
from tmaasync.wgmma import (
    MatrixDescriptor,
    a_fragment,
    accumulator_fragment,
    compute_b_descriptor_params,
    increase_descriptor_offset,
)

BASE, EXTENT, DEPTH_BYTES = 3 * 1024, 128, 256
LAYOUTS = [
    (dtype, swizzle, is_k_major)
    for dtype, swizzle in itertools.product(("bfloat16", "int8", "tfloat32"), range(4))
    for is_k_major in ((True, False) if dtype == "bfloat16" else (True,))
]
FIRSTS = (0, 8, 64, 72)
STEPS = DEPTH_BYTES // 32

SOURCE = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/types.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;

constexpr u32 kBase = 3 * 1024;
constexpr int kExtent = 128;

template <typename T, int kSwizzle, bool kIsKMajor>
__device__ void describe(u64* descriptors, u32* places) {
    constexpr int kDepth = 256 / sizeof(T);
    using Buffer = WgmmaBuffer<
        T, static_cast<Swizzle>(kSwizzle), kIsKMajor ? Major::kK : Major::kMN,
        kIsKMajor ? kExtent : kDepth, kIsKMajor ? kDepth : kExtent>;
    const int firsts[] = {0, 8, 64, 72};
    for (int i = threadIdx.x; i < 4 * Buffer::kSteps; i += 128) {
        const u64 start = Buffer::descriptor(kBase, firsts[i / Buffer::kSteps]);
        descriptors[i] = start + Buffer::step_offset(i % Buffer::kSteps);
    }
    for (int i = threadIdx.x; i < kExtent * kDepth; i += 128) {
        places[i] = Buffer::offset_bytes(i / kDepth, i % kDepth);
    }
}

extern "C" __global__ void describe_all(
    u64* descriptors, u32* places, int* sums, int* held, u64* moved
) {
CALLS
    for (int i = 0; i < 128; ++i) {
        sums[threadIdx.x * 128 + i] = accumulator_row(threadIdx.x, i) * 256 +
                                      accumulator_column(threadIdx.x, i);
    }
    for (int i = 0; i < 4; ++i) {
        held[threadIdx.x * 4 + i] = a_fragment_row(threadIdx.x, i) * 32 +
                                    a_fragment_byte(threadIdx.x, i);
    }
    const u64 start = initialize_wgmma_descriptor<Swizzle::k64B>(kBase, 4096, 512);
    if (threadIdx.x == 0) *moved = increase_descriptor_offset(start, 8192);
}
"""
CALL = "    describe<{}, {}, {}>(descriptors + {}, places + {});\n"


def test_kernels_find_operands_where_the_host_does(backend: Any) -> None:
    sizes = [EXTENT * DEPTH_BYTES // element(dtype).itemsize for dtype, _, _ in LAYOUTS]
    starts = [0, *itertools.accumulate(sizes)]
    calls = "".join(
        CALL.format(
            element(dtype).cuda_type,
            swizzle,
            "true" if is_k_major else "false",
            number * len(FIRSTS) * STEPS,
            starts[number],
        )
        for number, (dtype, swizzle, is_k_major) in enumerate(LAYOUTS)
    )
    descriptors, places, sums, held, moved = (
        backend.array(np.zeros(count, kind))
        for count, kind in (
            (len(LAYOUTS) * len(FIRSTS) * STEPS, np.uint64),
            (starts[-1], np.uint32),
            (128 * 128, np.int32),
            (128 * 4, np.int32),
            (1, np.uint64),
        )
    )

    Kernel(SOURCE.replace("CALLS", calls), "describe_all")(
        1, 128, (descriptors, places, sums, held, moved)
    )

    found = backend.host(descriptors).reshape(len(LAYOUTS), len(FIRSTS), STEPS)
    for number, (dtype, swizzle, is_k_major) in enumerate(LAYOUTS):
        wanted = backend.host(places)[starts[number] : starts[number + 1]]
        check_layout(found[number], wanted, dtype, Swizzle(swizzle), is_k_major)
    rows, columns = accumulator_fragment(256)
    assert np.array_equal(backend.host(sums).reshape(128, 128), rows * 256 + columns)
    rows, k = a_fragment("int8")
    assert np.array_equal(backend.host(held).reshape(128, 4), rows[:, ::4] * 32 + k[:, ::4])
    start = MatrixDescriptor(
        address=BASE, leading_bytes=4096, stride_bytes=512, swizzle=Swizzle.B64
    )
    assert backend.host(moved)[0] == increase_descriptor_offset(start.encode(), 8192)


def check_layout(
    descriptors: Any, places: Any, dtype: str, swizzle: Swizzle, is_k_major: bool
) -> None:
    itemsize = element(dtype).itemsize
    depth = DEPTH_BYTES // itemsize
    shape = (EXTENT, depth) if is_k_major else (depth, EXTENT)
    params = compute_b_descriptor_params(
        shape, dtype, swizzle=swizzle, is_k_major=is_k_major, columns=8
    )
    steps = depth * itemsize // 32
    wanted = [
        [params.descriptor(BASE, step, first).encode() for step in range(steps)] for first in FIRSTS
    ]
    assert descriptors.tolist() == wanted

    rows, columns = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    box = (shape[0], swizzle.span_bytes // itemsize)
    put = tile_offset((rows, columns), shape, box, itemsize, swizzle)
    assert np.array_equal(places.reshape(EXTENT, depth), put if is_k_major else put.T)
