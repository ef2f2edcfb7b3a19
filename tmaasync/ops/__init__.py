"""What most users call: the shipped kernels on arrays, one module per kernel family."""

from tmaasync.ops.copy import copy
from tmaasync.ops.gemm import matmul

__all__ = ["copy", "matmul"]
