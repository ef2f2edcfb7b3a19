# mypy: ignore-errors
"""Kernels of Warp for test_warp.py."""

import warp as wp


@wp.kernel
def add(a: wp.array(dtype=float), b: wp.array(dtype=float), c: wp.array(dtype=float), k: float):
    i = wp.tid()
    c[i] = a[i] + k * b[i]


@wp.kernel
def transpose(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    out[j, i] = x[i, j]


@wp.kernel
def lengths(x: wp.array(dtype=wp.vec3), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = wp.length(x[i])


@wp.kernel
def histogram(x: wp.array(dtype=int), out: wp.array(dtype=int)):
    i = wp.tid()
    wp.atomic_add(out, x[i], 1)


@wp.kernel
def count(x: wp.array(dtype=int), out: wp.array(dtype=int)):
    i = wp.tid()
    out[x[i]] = out[x[i]] + i


@wp.kernel
def twice(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = 2.0 * x[i]


@wp.kernel
def sums(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    row, lane = wp.tid()
    total = float(0.0)  # noqa: UP018 (a variable of a loop in Warp)
    for i in range(5):
        total += x[row * 320 + i * 64 + lane]
    wp.atomic_add(out, row, total)
