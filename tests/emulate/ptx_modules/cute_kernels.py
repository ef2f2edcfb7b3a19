# mypy: ignore-errors
# ruff: noqa: B007, PLR0915
"""CuTe DSL kernels, of which one has its PTX next to this file.

``python cute_kernels.py`` writes it again; it needs CuTe DSL (4.8.1 wrote the file) and no GPU.
"""

from __future__ import annotations

import re

import cutlass
from cutlass import cute, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers as hopper

from tmaasync import cute_dsl

M, N, K, STAGES = 64, 64, 64, 2


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, size: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * 128 + thread
    if at < size:
        c[at] = a[at] + b[at]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, size: cutlass.Int32):
    add_kernel(a, b, c, size).launch(grid=((size + 127) // 128, 1, 1), block=(128, 1, 1))


@cute.kernel
def row_sums_kernel(x: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    memory = SmemAllocator()
    parts = memory.allocate_tensor(cutlass.Float32, cute.make_layout(4))
    total = cutlass.Float32(0)
    for column in cutlass.range(thread, x.shape[1], 128):
        total += x[row, column]
    total = cute.arch.warp_reduction_sum(total)
    if thread % 32 == 0:
        parts[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        out[row] = parts[0] + parts[1] + parts[2] + parts[3]


@cute.jit
def row_sums(x: cute.Tensor, out: cute.Tensor):
    row_sums_kernel(x, out).launch(grid=(x.shape[0], 1, 1), block=(128, 1, 1))


@cute.kernel
def pipeline_kernel(
    mma: cute.TiledMma,
    load_a: cute.CopyAtom,
    a: cute.Tensor,
    load_b: cute.CopyAtom,
    b: cute.Tensor,
    store_c: cute.CopyAtom,
    c: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
):
    thread, _, _ = cute.arch.thread_idx()
    block_m, block_n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    memory = SmemAllocator()
    barriers = memory.allocate_array(cutlass.Int64, 2 * STAGES)
    s_a = memory.allocate_tensor(cutlass.Float16, a_layout.outer, 1024, swizzle=a_layout.inner)
    s_b = memory.allocate_tensor(cutlass.Float16, b_layout.outer, 1024, swizzle=b_layout.inner)
    s_c = memory.allocate_tensor(cutlass.Float32, cute.make_layout((M, N), stride=(N, 1)), 128)
    ring = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4),
        tx_count=2 * (M + N) * K,
        barrier_storage=barriers,
    )
    g_a = cute.local_tile(a, (M, K), (block_m, None))
    g_b = cute.local_tile(b, (N, K), (block_n, None))
    g_c = cute.local_tile(c, (M, N), (block_m, block_n))
    one = cute.make_layout(1)
    to_a, from_a = cpasync.tma_partition(
        load_a, 0, one, cute.group_modes(s_a, 0, 2), cute.group_modes(g_a, 0, 2)
    )
    to_b, from_b = cpasync.tma_partition(
        load_b, 0, one, cute.group_modes(s_b, 0, 2), cute.group_modes(g_b, 0, 2)
    )
    steps = cute.size(g_a, mode=[2])
    if warp == 4:
        filled = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
        for k in cutlass.range(steps):
            ring.producer_acquire(filled)
            barrier = ring.producer_get_barrier(filled)
            cute.copy(load_a, from_a[None, k], to_a[None, filled.index], tma_bar_ptr=barrier)
            cute.copy(load_b, from_b[None, k], to_b[None, filled.index], tma_bar_ptr=barrier)
            ring.producer_commit(filled)
            filled.advance()
        ring.producer_tail(filled)
    if warp < 4:
        own = mma.get_slice(thread)
        frag_a = mma.make_fragment_A(own.partition_A(s_a))
        frag_b = mma.make_fragment_B(own.partition_B(s_b))
        own_c = own.partition_C(s_c)
        sums = cute.make_rmem_tensor(own_c.shape, cutlass.Float32)
        mma.set(warpgroup.Field.ACCUMULATE, False)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for k in cutlass.range(steps):
            ring.consumer_wait(read)
            warpgroup.fence()
            for block in cutlass.range_constexpr(K // 16):
                at = (None, None, block, read.index)
                cute.gemm(mma, sums, frag_a[at], frag_b[at], sums)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            ring.consumer_release(read)
            read.advance()
        for i in cutlass.range_constexpr(cute.size(sums)):
            own_c[i] = sums[i]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        if warp == 0:
            from_c, to_c = cpasync.tma_partition(
                store_c, 0, one, cute.group_modes(s_c, 0, 2), cute.group_modes(g_c, 0, 2)
            )
            with cute.arch.elect_one():
                cute.copy(store_c, from_c, to_c)
                cute.arch.cp_async_bulk_commit_group()
                cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def pipeline_gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    mma = hopper.make_trivial_tiled_mma(
        cutlass.Float16,
        cutlass.Float16,
        OperandMajorMode.K,
        OperandMajorMode.K,
        cutlass.Float32,
        (1, 1, 1),
        (M, N),
    )
    rows = LayoutEnum.ROW_MAJOR
    a_layout = hopper.make_smem_layout_a(rows, (M, N, K), cutlass.Float16, STAGES)
    b_layout = hopper.make_smem_layout_b(rows, (M, N, K), cutlass.Float16, STAGES)
    op = cpasync.CopyBulkTensorTileG2SOp()
    load_a, tma_a = cpasync.make_tiled_tma_atom(
        op, a, cute.slice_(a_layout, (None, None, 0)), (M, K)
    )
    load_b, tma_b = cpasync.make_tiled_tma_atom(
        op, b, cute.slice_(b_layout, (None, None, 0)), (N, K)
    )
    out = cpasync.CopyBulkTensorTileS2GOp()
    c_layout = cute.make_layout((M, N), stride=(N, 1))
    store_c, tma_c = cpasync.make_tiled_tma_atom(out, c, c_layout, (M, N))
    pipeline_kernel(mma, load_a, tma_a, load_b, tma_b, store_c, tma_c, a_layout, b_layout).launch(
        grid=(c.shape[0] // M, c.shape[1] // N, 1), block=(160, 1, 1)
    )


@cute.kernel
def multicast_kernel(load: cute.CopyAtom, x: cute.Tensor, out: cute.Tensor, layout: cute.Layout):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.block_idx_in_cluster()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    memory = SmemAllocator()
    full = memory.allocate_array(cutlass.Int64, 1)
    tile = memory.allocate_tensor(cutlass.Float32, layout, 128)
    if thread == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(full, 4 * 32 * 32)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    g_x = cute.local_tile(x, (32, 32), (block // 2, 0))
    to, come = cpasync.tma_partition(
        load, rank, cute.make_layout(2), cute.group_modes(tile, 0, 2), cute.group_modes(g_x, 0, 2)
    )
    if warp == 0:
        cute.copy(load, come, to, tma_bar_ptr=full, mcast_mask=cutlass.Int16(3))
    cute.arch.mbarrier_wait(full, 0)
    for i in cutlass.range_constexpr(8):
        at = thread + 128 * i
        out[32 * block + at // 32, at % 32] = tile[at // 32, at % 32] * (rank + 1)


@cute.jit
def multicast(x: cute.Tensor, out: cute.Tensor):
    layout = cute.make_layout((32, 32), stride=(32, 1))
    op = cpasync.CopyBulkTensorTileG2SMulticastOp()
    load, tma_x = cpasync.make_tiled_tma_atom(op, x, layout, (32, 32), num_multicast=2)
    multicast_kernel(load, tma_x, out, layout).launch(
        grid=(out.shape[0] // 32, 1, 1), block=(128, 1, 1), cluster=(2, 1, 1)
    )


@cute.kernel
def staged_kernel(x: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    memory = SmemAllocator()
    tile = memory.allocate_tensor(cutlass.Float32, cute.make_layout(512), 128)
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=128)
    g_x = cute.local_tile(x, (4,), (thread,))
    s_x = cute.local_tile(tile, (4,), (thread,))
    cute.copy(atom, g_x, s_x)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    for i in cutlass.range_constexpr(4):
        at = thread + 128 * i
        out[at] = tile[511 - at]


@cute.jit
def staged(x: cute.Tensor, out: cute.Tensor):
    staged_kernel(x, out).launch(grid=(1, 1, 1), block=(128, 1, 1))


def pipeline_text():
    """Return the PTX of a GEMM of 128 x 64 x 320, with short names."""

    def rows(element, *shape):
        return make_fake_compact_tensor(element, shape, stride_order=(1, 0), assumed_align=16)

    half = cutlass.Float16
    given = (rows(half, 128, 320), rows(half, 64, 320), rows(cutlass.Float32, 128, 64))
    with cute_dsl.on_cpu():
        text = cute.compile(pipeline_gemm, *given).__ptx__
    return re.sub(r"kernel_cutlass_pipeline_kernel_\w+?_0(?=_param_|\W)", "pipeline_kernel", text)


if __name__ == "__main__":
    from recorded import record

    record("cute_pipeline", pipeline_text())
