"""The blocking that the models choose for a product."""

from __future__ import annotations

from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm.blocking import Fits, any_block, choose_blocking, choose_few_columns
from tmaasync.ops.gemm.problem import Problem
from tmaasync.ops.gemm.split_k import faster_split

__all__ = ["default_blocking"]


def default_blocking(
    problem: Problem, multiprocessors: int, fits: Fits = any_block, finish_depth: int = 0
) -> Blocking:
    """That of `choose_blocking` or `choose_few_columns`; K is split where that is faster."""
    whole = _whole_blocking(problem, multiprocessors, fits, finish_depth)
    return faster_split(problem, whole, multiprocessors, fits)


def _whole_blocking(
    problem: Problem, multiprocessors: int, fits: Fits, finish_depth: int
) -> Blocking:
    m, n, k_major = problem.m, problem.n, problem.b_is_k_major
    if problem.by_columns:
        return choose_few_columns(
            m, n, multiprocessors, b_is_k_major=k_major, count=problem.batches, fits=fits
        )
    return choose_blocking(
        m,
        n,
        problem.k,
        multiprocessors,
        on_lines=problem.on_lines,
        a_is_k_major=problem.a_is_k_major,
        b_is_k_major=k_major,
        count=problem.batches,
        finish_depth=finish_depth,
        fits=fits,
    )
