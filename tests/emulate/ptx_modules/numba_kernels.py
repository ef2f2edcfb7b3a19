# mypy: ignore-errors
"""Numba-CUDA kernels, of which one has its PTX next to this file.

``python numba_kernels.py`` writes it again; it needs numba-cuda (0.30.4 wrote it) and no GPU.
"""

from __future__ import annotations

import math
import re

from numba import cuda, float32, int32, void

THREADS = 128


@cuda.jit
def add(a, b, out, factor):
    at = cuda.grid(1)
    if at < out.size:
        out[at] = a[at] + factor * b[at]


@cuda.jit
def row_sums(x, out):
    parts = cuda.shared.array(THREADS, float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    total = float32(0)
    for column in range(thread, x.shape[1], THREADS):
        total += x[row, column]
    parts[thread] = total
    cuda.syncthreads()
    step = THREADS // 2
    while step:
        if thread < step:
            parts[thread] += parts[thread + step]
        cuda.syncthreads()
        step //= 2
    if thread == 0:
        out[row] = parts[0]


@cuda.jit
def histogram(x, out):
    at = cuda.grid(1)
    if at < x.size:
        cuda.atomic.add(out, x[at], 1)


@cuda.jit
def matmul(a, b, c):
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    row, column = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for k in range(0, a.shape[1], 16):
        tile_a[x, y] = a[row, k + y]
        tile_b[x, y] = b[k + x, column]
        cuda.syncthreads()
        for i in range(16):
            total += tile_a[x, i] * tile_b[i, y]
        cuda.syncthreads()
    c[row, column] = total


@cuda.jit(device=True)
def smooth(x, width):
    return math.exp(-(x**2) / width[0]) + width[1]


@cuda.jit
def curve(x, out, width, is_negative, z):
    at = cuda.grid(1)
    if at < out.shape[0]:
        value = smooth(x[at], width)
        out[at] = (-value if is_negative else value) * z


@cuda.jit
def warp_sums(x, out):
    value = x[cuda.grid(1)]
    step = 16
    while step:
        value += cuda.shfl_down_sync(-1, value, step)
        step //= 2
    if cuda.laneid == 0:
        out[cuda.grid(1) // 32] = value


@cuda.jit
def reverse(x, out):
    memory = cuda.shared.array(0, int32)
    own = cuda.local.array(4, int32)
    thread = cuda.threadIdx.x
    for i in range(4):
        own[i] = x[4 * thread + i]
    for i in range(4):
        memory[4 * thread + i] = own[3 - i]
    cuda.syncthreads()
    for i in range(4):
        out[4 * thread + i] = memory[4 * (cuda.blockDim.x - 1 - thread) + i]


if __name__ == "__main__":
    signature = void(float32[:, ::1], float32[::1])
    options = {"abi": "numba", "output": "ptx", "lineinfo": True}
    text, _ = cuda.compile(row_sums.py_func, signature, cc=(9, 0), device=False, **options)
    symbol = re.search(r"\.entry (\w+)\(", text)[1]
    from recorded import record

    record("numba_row_sums", text.replace(symbol, "row_sums"))
