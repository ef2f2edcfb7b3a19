"""The blockings that a product may have, and those of them worth measuring."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm.blocking import (
    FEW_COLUMNS,
    LINE_COLUMNS,
    RATE,
    SHARED_COLUMNS,
)
from tmaasync.ops.gemm.problem import Problem

__all__ = ["candidates", "is_legal"]

_CLUSTERS = (1, 2)
_GROUPS = (4, 8, 16)
_MAX_GROUP = 64


def is_legal(blocking: Blocking, problem: Problem) -> bool:
    """Whether the kernel computes the product in this blocking."""
    consumers, block_n, cluster = blocking.consumers, blocking.block_n, blocking.cluster
    plain = Blocking(consumers, block_n, cluster, blocking.group_m, by_columns=problem.by_columns)
    on_lines_of_b = problem.b_is_k_major or block_n % LINE_COLUMNS == 0
    if blocking != plain or not on_lines_of_b or not 1 <= blocking.group_m <= _MAX_GROUP:
        return False
    if problem.by_columns:
        fits = block_n in FEW_COLUMNS and block_n >= problem.n
        return fits and consumers in (1, 2) and cluster == 1
    is_shared = cluster == 1 or block_n % SHARED_COLUMNS == 0
    return (consumers, block_n) in RATE and cluster in _CLUSTERS and is_shared


def candidates(problem: Problem) -> list[Blocking]:
    """Every shape of block, alone and in pairs, in groups of several sizes, where legal."""
    return [blocking for blocking in _all(problem) if is_legal(blocking, problem)]


def _all(problem: Problem) -> Iterator[Blocking]:
    if problem.by_columns:
        for block_n in FEW_COLUMNS:
            yield from (Blocking(consumers, block_n, by_columns=True) for consumers in (2, 1))
        return
    for consumers, block_n in RATE:
        for cluster in _CLUSTERS:
            rows = -(-problem.m // Blocking(consumers, block_n, cluster).cluster_rows)
            for smaller, group_m in zip((0, *_GROUPS), _GROUPS, strict=False):
                # Groups that hold all rows walk the output alike.
                if rows > smaller:
                    yield Blocking(consumers, block_n, cluster, group_m)
