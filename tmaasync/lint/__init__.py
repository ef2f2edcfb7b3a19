"""Findings in the assembler's log of a kernel, with their source lines, without a GPU.

`check` compiles a source and applies every rule to each of its kernels.
"""

from tmaasync.lint.check import RULES, check
from tmaasync.lint.finding import Finding

__all__ = ["RULES", "Finding", "check"]
