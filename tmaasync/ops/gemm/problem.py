"""What a blocking is chosen for, and the blocking that the model chooses."""

from __future__ import annotations

from typing import NamedTuple

from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm.blocking import Fits, any_block, choose_blocking, choose_few_columns

__all__ = ["Problem", "default_blocking"]


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
    def b_is_k_major(self) -> bool:
        """Whether K is contiguous in B."""
        return self.layout[1] == "t"


def default_blocking(problem: Problem, multiprocessors: int, fits: Fits = any_block) -> Blocking:
    """The blocking that the model of `choose_blocking` or `choose_few_columns` gives."""
    m, n, k_major = problem.m, problem.n, problem.b_is_k_major
    if problem.by_columns:
        return choose_few_columns(
            m,
            n,
            multiprocessors,
            b_is_k_major=k_major,
            count=problem.batches,
            k=problem.k,
            fits=fits,
        )
    return choose_blocking(
        m,
        n,
        problem.k,
        multiprocessors,
        on_lines=problem.on_lines,
        b_is_k_major=k_major,
        count=problem.batches,
        fits=fits,
    )
