# Kernels of Mojo for test_ptx_of_compilers.py: mojo run --target-accelerator sm_90a -g1
from layout import Coord, TileTensor, row_major
from layout.tma_async import SharedMemBarrier, TMATensorTile
from max.gpu import block_idx, thread_idx
from max.gpu.host.compile import _compile_code
from max.gpu.host.info import H100
from max.gpu.memory import fence_async_view_proxy
from max.gpu.sync import barrier
from std.memory import unsafe_stack_allocation


@__llvm_arg_metadata(x, `nvvm.grid_constant`)
@__llvm_arg_metadata(result, `nvvm.grid_constant`)
def scale(x: TMATensorTile[DType.float32, Coord(8, 16)], result: TMATensorTile[DType.float32, Coord(8, 16)], factor: Float32):
    var held = TileTensor(unsafe_stack_allocation[128, Float32, address_space=.SHARED, alignment=128](), row_major[8, 16]())
    var full = unsafe_stack_allocation[1, SharedMemBarrier, address_space=.SHARED, alignment=8]()
    var at = (block_idx.x * 16, block_idx.y * 8)
    if thread_idx.x == 0:
        full[0].init()
        full[0].expect_bytes(512)
        x.async_copy(held, full[0], at)
    barrier()
    full[0].wait()
    var row, column = divmod(Int(thread_idx.x), 16)
    held[row, column] = held[row, column] * factor
    fence_async_view_proxy()
    barrier()
    if thread_idx.x == 0:
        result.async_store(held, at)
        result.commit_group()
        result.wait_group[0]()


def main() raises:
    print(_compile_code[scale, target=H100.target]().asm)
