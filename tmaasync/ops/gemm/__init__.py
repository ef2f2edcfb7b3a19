"""Matrix products on the tensor cores, fed by TMA."""

from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm.blocking import choose_blocking, choose_few_columns
from tmaasync.ops.gemm.kernel import gemm_constants, gemm_kernel, gemm_tiles
from tmaasync.ops.gemm.operation import matmul

__all__ = [
    "Blocking",
    "choose_blocking",
    "choose_few_columns",
    "gemm_constants",
    "gemm_kernel",
    "gemm_tiles",
    "matmul",
]
