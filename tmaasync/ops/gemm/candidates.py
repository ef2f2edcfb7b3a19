"""The blockings that a product may have, and those of them worth measuring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm.blocking import FEW_COLUMNS, FORMS, legal_widths, may_share, ranked
from tmaasync.ops.gemm.problem import Problem
from tmaasync.ops.gemm.split_k import SPLITS, ranked_splits

__all__ = ["candidates", "is_legal"]

_CLUSTERS = (1, 2)
_GROUPS = (4, 8, 16)
_MAX_GROUP = 64
_BEST = 10
_BEST_SPLIT = 6


def is_legal(blocking: Blocking, problem: Problem) -> bool:
    """Whether the kernel computes the product in this blocking."""
    consumers, rows, block_n = blocking.consumers, blocking.rows, blocking.block_n
    cluster, k_major = blocking.cluster, problem.b_is_k_major
    plain = Blocking(
        *(consumers, block_n, cluster, blocking.group_m, rows),
        by_columns=problem.by_columns,
        split=blocking.split,
        ping_pong=blocking.ping_pong,
    )
    if blocking != plain or not 1 <= blocking.group_m <= _MAX_GROUP:
        return False
    if not _may_be_split(blocking):
        return False
    if problem.by_columns:
        widths = [width for width in FEW_COLUMNS if k_major or width == FEW_COLUMNS[-1]]
        fits = block_n in widths and block_n >= problem.n
        is_few = not blocking.ping_pong and (consumers, rows, cluster) in ((1, 64, 1), (2, 64, 1))
        return fits and is_few
    is_shared = cluster == 1 or may_share(block_n, b_is_k_major=k_major)
    kind = (consumers, rows, blocking.ping_pong)
    widest = next((f.widest for f in FORMS if (f.consumers, f.rows, f.ping_pong) == kind), 0)
    is_wide = block_n in legal_widths(widest, b_is_k_major=k_major)
    return is_wide and cluster in _CLUSTERS and is_shared


def _may_be_split(blocking: Blocking) -> bool:
    """Whether the kernel splits K like that, if at all."""
    if blocking.split == 1:
        return True
    is_cluster = blocking.split in SPLITS and blocking.cluster_size <= SPLITS[-1]
    return is_cluster and blocking.holds_partials and not blocking.ping_pong


def candidates(problem: Problem, multiprocessors: int) -> list[Blocking]:
    """The model's best blocks, alone and in pairs, in groups of several sizes, where legal.

    And those of which K is split.
    """
    whole = _few() if problem.by_columns else _many(problem, multiprocessors)
    found = (*whole, *ranked_splits(problem, multiprocessors)[:_BEST_SPLIT])
    return [blocking for blocking in found if is_legal(blocking, problem)]


def _few() -> Iterator[Blocking]:
    for block_n in FEW_COLUMNS:
        yield from (Blocking(consumers, block_n, by_columns=True) for consumers in (2, 1))


def _many(problem: Problem, multiprocessors: int) -> Iterator[Blocking]:
    best = ranked(
        problem.m,
        problem.n,
        problem.k,
        multiprocessors,
        on_lines=problem.on_lines,
        b_is_k_major=problem.b_is_k_major,
        count=problem.batches,
    )
    for block in best[:_BEST]:
        for cluster in _CLUSTERS:
            blocking = replace(block, cluster=cluster)
            rows = -(-problem.m // blocking.cluster_rows)
            for smaller, group_m in zip((0, *_GROUPS), _GROUPS, strict=False):
                # Groups that hold all rows walk the output alike.
                if rows > smaller:
                    yield replace(blocking, group_m=group_m)
