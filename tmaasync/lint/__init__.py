"""Faults of a kernel that can be read off its PTX and its compiler's log, with no GPU.

`check` is the entry: it compiles a source and runs every rule over each of its kernels.
"""

from tmaasync.lint.check import RULES, check
from tmaasync.lint.finding import Finding

__all__ = ["RULES", "Finding", "check"]
