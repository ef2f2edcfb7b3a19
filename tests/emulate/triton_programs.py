# mypy: ignore-errors
# ruff: noqa: N803
"""Triton programs as their users write them, which `test_triton_programs` runs on the CPU."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, size, BLOCK: tl.constexpr = 256):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


@triton.jit
def softmax(x, out, row_stride, rows, columns, BLOCK: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.arange(0, BLOCK)
        a = tl.load(x + row * row_stride + at, mask=at < columns, other=-float("inf"))
        e = tl.exp(a - tl.max(a, axis=0))
        tl.store(out + row * row_stride + at, e / tl.sum(e, axis=0), mask=at < columns)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
        right = tl.load(b + k[:, None] * N + n[None, :], mask=k[:, None] < K, other=0.0)
        total = tl.dot(left, right, total)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=inside)


@triton.jit
def matmul_of_descriptors(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([m, k]), b.load([k, n]), total)
    c.store([m, n], total.to(tl.float16))


@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 512})], key=["size"])
@triton.heuristics({"EVEN": lambda given: given["size"] % given["BLOCK"] == 0})
@triton.jit
def scale(x, out, factor, size, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) * factor)
    else:
        tl.store(out + at, tl.load(x + at, mask=at < size) * factor, mask=at < size)


@triton.jit
def histogram(x, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + at, mask=at < size, other=0), 1, mask=at < size)


@triton.jit
def locked(x, out, BLOCK: tl.constexpr):
    while tl.atomic_cas(x, 0, 1) == 1:
        pass
    tl.store(out, tl.load(out) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(x, 0)


# --- defects ---


@triton.jit
def without_mask(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def histogram_without_atomics(x, out, BLOCK: tl.constexpr):
    at = out + tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(at, tl.load(at) + 1)


@triton.jit
def overlapping_programs(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + tl.program_id(0))


@triton.jit
def one_too_many(x, out, BLOCK: tl.constexpr, SIZE: tl.constexpr = 1000):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at <= SIZE), mask=at < SIZE)


@triton.jit
def wrong_stride(x, out, BLOCK: tl.constexpr):
    row = x + tl.program_id(0) * BLOCK * 2  # the rows have BLOCK elements
    tl.atomic_add(out + tl.arange(0, BLOCK), tl.load(row + tl.arange(0, BLOCK)))


@triton.jit
def shifted_in_place(x, out, BLOCK: tl.constexpr):
    at = x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(at, tl.load(at + 1, mask=tl.program_id(0) < 3), mask=tl.program_id(0) < 3)


@triton.jit
def one_sum_of_all(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + at, mask=at < 1000, other=0)) + tl.program_id(0))


@triton.jit
def unlocked_too_early(x, out, BLOCK: tl.constexpr):
    while tl.atomic_cas(x, 0, 1) == 1:
        pass
    count = tl.load(out)
    tl.atomic_xchg(x, 0)
    tl.store(out, count + 1)


@triton.jit
def never_unlocked(x, out, BLOCK: tl.constexpr):
    while tl.atomic_cas(x, 0, 1) == 1:  # for ever
        pass
    tl.store(out, tl.load(out) + 1)


@triton.jit
def lock_without_acquire(x, out, BLOCK: tl.constexpr):
    while tl.atomic_cas(x, 0, 1, sem="relaxed") == 1:
        pass
    tl.store(out, tl.load(out) + 1)  # unordered
    tl.atomic_xchg(x, 0, sem="relaxed")
