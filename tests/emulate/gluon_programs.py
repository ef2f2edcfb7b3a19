# mypy: ignore-errors
# ruff: noqa: N803
"""A GEMM in Gluon, and its defects by name, which `test_gluon_programs` runs on the CPU."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def load(a, b, left, right, full, step, m, BK: gl.constexpr, DEFECT: gl.constexpr):
    slot = step % 2
    if DEFECT == "the other slot":
        slot = (step + 1) % 2
    bytes_of_both: gl.constexpr = a.nbytes_per_cta + b.nbytes_per_cta
    if DEFECT == "too many bytes":
        mbarrier.expect(full.index(slot), bytes_of_both + 16)
    elif DEFECT == "too few bytes":
        mbarrier.expect(full.index(slot), bytes_of_both - 16)
    elif DEFECT != "no bytes":
        mbarrier.expect(full.index(slot), bytes_of_both)
    tma.async_load(a, [m, step * BK], full.index(slot), left.index(slot))
    tma.async_load(b, [step * BK, 0], full.index(slot), right.index(slot))


@gluon.jit
def barriers(DEFECT: gl.constexpr):
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(2):
        if DEFECT == "two arrivals":
            mbarrier.init(full.index(slot), count=2)
        elif DEFECT != "no init" or slot == 0:
            mbarrier.init(full.index(slot), count=1)
    return full


@gluon.jit
def store(c, m, total, DEFECT: gl.constexpr):
    tile = gl.allocate_shared_memory(c.dtype, total.shape, c.layout)
    tile.store(total.to(c.dtype))
    fence_async_shared()
    if DEFECT == "one tile of all":
        tma.async_store(c, [0, 0], tile)
    else:
        tma.async_store(c, [m, 0], tile)
    if DEFECT != "no wait for the store":
        tma.store_wait(0)


@gluon.jit
def gemm(a, b, c, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, DEFECT: gl.constexpr):
    m = gl.program_id(0) * BM
    left = gl.allocate_shared_memory(a.dtype, [2, BM, BK], a.layout)
    right = gl.allocate_shared_memory(b.dtype, [2, BK, BN], b.layout)
    full = barriers(DEFECT)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    total = gl.zeros((BM, BN), gl.float32, layout)
    load(a, b, left, right, full, 0, m, BK, DEFECT)
    for step in range(K // BK):
        if (step + 1) * BK < K:
            load(a, b, left, right, full, step + 1, m, BK, DEFECT)
        slot = step % 2
        phase = (step // 2) & 1
        if DEFECT == "the other phase":
            mbarrier.wait(full.index(slot), phase ^ 1)
        elif DEFECT != "no wait":
            mbarrier.wait(full.index(slot), phase)
        pending = warpgroup_mma(left.index(slot), right.index(slot), total, is_async=True)
        in_flight: gl.constexpr = 1 if DEFECT == "a wgmma in flight" else 0
        total = warpgroup_mma_wait(in_flight, deps=(pending,))
    store(c, m, total, DEFECT)
