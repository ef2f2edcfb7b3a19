"""Products of groups of rows, each with a matrix of its own."""

from tmaasync.ops.grouped.kernel import choose_blocking, grouped_kernel, grouped_tiles
from tmaasync.ops.grouped.operation import grouped_matmul

__all__ = ["choose_blocking", "grouped_kernel", "grouped_matmul", "grouped_tiles"]
