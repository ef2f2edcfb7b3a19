"""What a blocking is chosen for."""

from __future__ import annotations

from typing import NamedTuple

from tmaasync._elements import element

__all__ = ["Problem"]


class Problem(NamedTuple):
    """A product as the kernel sees it, after operands were exchanged or copied.

    ``layout`` has a letter for each operand: ``n`` where it lies as it is written, [M, K] or
    [K, N] with the last side contiguous, and ``t`` where its transpose does.
    """

    m: int
    n: int
    k: int
    batches: int
    operands: str
    output: str
    layout: str
    by_columns: bool
    on_lines: bool

    @property
    def a_is_k_major(self) -> bool:
        """Whether K is contiguous in A."""
        return self.layout[0] == "n"

    @property
    def b_is_k_major(self) -> bool:
        """Whether K is contiguous in B."""
        return self.layout[1] == "t"

    @property
    def operand_bytes(self) -> int:
        """Of one element."""
        return element(self.operands.split("/")[0]).itemsize
