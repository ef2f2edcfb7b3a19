"""What most users call: the shipped kernels on arrays, one module per kernel family."""

from tmaasync.ops._attention import attention
from tmaasync.ops._varlen_attention import varlen_attention
from tmaasync.ops.conv2d import conv2d
from tmaasync.ops.copy import copy
from tmaasync.ops.gemm import matmul
from tmaasync.ops.grouped import grouped_matmul
from tmaasync.ops.ragged import ragged_load, ragged_store
from tmaasync.ops.scaled_gemm import scaled_matmul

__all__ = [
    "attention",
    "conv2d",
    "copy",
    "grouped_matmul",
    "matmul",
    "ragged_load",
    "ragged_store",
    "scaled_matmul",
    "varlen_attention",
]
