"""ldmatrix and stmatrix, all shapes of either, against the figure of the PTX ISA."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tmaasync import Kernel

SOURCE = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/ptx/ldmatrix.cuh>
#include <tmaasync/ptx/stmatrix.cuh>
using namespace tmaasync;

// Rows of matrix m: 16 bytes each, in an order of their own.
__device__ u32 row_address(const unsigned char* image, const u32* places) {
    return ptx::shared_address(image) + places[threadIdx.x] * 16;
}

extern "C" __global__ void move_matrices(
    const unsigned char* source, const u32* places, u32* loaded, unsigned char* stored
) {
    __shared__ __align__(16) unsigned char image[512];
    __shared__ __align__(16) unsigned char copies[6][512];
    const u32 lane = threadIdx.x;
    for (u32 i = lane; i < 512; i += 32) {
        image[i] = source[i];
        for (int copy = 0; copy < 6; ++copy) copies[copy][i] = 0xee;
    }
    __syncwarp();
    u32 held[6][4] = {};
    const u32 row = row_address(image, places);
    ptx::ldmatrix_x1(row, held[0][0]);
    ptx::ldmatrix_x2(row, held[1][0], held[1][1]);
    ptx::ldmatrix_x4(row, held[2][0], held[2][1], held[2][2], held[2][3]);
    ptx::ldmatrix_x1_trans(row, held[3][0]);
    ptx::ldmatrix_x2_trans(row, held[4][0], held[4][1]);
    ptx::ldmatrix_x4_trans(row, held[5][0], held[5][1], held[5][2], held[5][3]);
    for (int i = 0; i < 24; ++i) loaded[i * 32 + lane] = held[i / 4][i % 4];

    const u32* m = held[2];
    ptx::stmatrix_x1(row_address(copies[0], places), m[0]);
    ptx::stmatrix_x2(row_address(copies[1], places), m[0], m[1]);
    ptx::stmatrix_x4(row_address(copies[2], places), m[0], m[1], m[2], m[3]);
    ptx::stmatrix_x1_trans(row_address(copies[3], places), m[0]);
    ptx::stmatrix_x2_trans(row_address(copies[4], places), m[0], m[1]);
    ptx::stmatrix_x4_trans(row_address(copies[5], places), m[0], m[1], m[2], m[3]);
    __syncwarp();
    for (u32 i = lane; i < 6 * 512; i += 32) stored[i] = copies[i / 512][i % 512];
}
"""
VARIANTS = [(count, trans) for trans in (False, True) for count in (1, 2, 4)]


def test_matrices_are_loaded_and_stored_as_the_figure_shows(backend: Any) -> None:
    rng = np.random.default_rng(9)
    image = rng.integers(0, 2**16, (32, 8), np.uint16)
    places = rng.permutation(32).astype(np.uint32)  # which row of the image lane l names
    loaded = backend.array(np.zeros((6, 4, 32), np.uint32))
    stored = backend.array(np.zeros((6, 512), np.uint8))
    arguments = [backend.array(array) for array in (image.view(np.uint8), places)]

    Kernel(SOURCE, "move_matrices")(1, 32, (*arguments, loaded, stored))

    matrices = image[places].reshape(4, 8, 8)
    held = backend.host(loaded)
    copies = backend.host(stored).view(np.uint16).reshape(6, 32, 8)
    for variant, (count, trans) in enumerate(VARIANTS):
        wanted = np.full((32, 8), 0xEEEE, np.uint16)
        for matrix, lane in itertools.product(range(count), range(32)):
            there = matrices[matrix].T if trans else matrices[matrix]
            pair = there[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert held[variant, matrix, lane] == int(pair[0]) | int(pair[1]) << 16
            wanted[places[8 * matrix : 8 * matrix + 8]] = there
        assert not held[variant, count:].any()
        assert np.array_equal(copies[variant], wanted)
