"""Mistakes with TMA in the PTX of a kernel and in its compiler's log, found without a GPU.

`check` compiles a source and applies every rule to each of its kernels.
"""

from tmaasync.lint.check import RULES, check
from tmaasync.lint.finding import Finding

__all__ = ["RULES", "Finding", "check"]
