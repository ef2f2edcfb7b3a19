"""Products of fp8 matrices whose scales belong to blocks of 128."""

from tmaasync.ops.scaled_gemm.blocking import ScaledBlocking, choose_scaled_blocking
from tmaasync.ops.scaled_gemm.kernel import scaled_gemm_kernel, scaled_gemm_tiles
from tmaasync.ops.scaled_gemm.operation import scaled_matmul

__all__ = [
    "ScaledBlocking",
    "choose_scaled_blocking",
    "scaled_gemm_kernel",
    "scaled_gemm_tiles",
    "scaled_matmul",
]
