"""The blockings that a product may have, and those of them worth measuring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm.blocking import (
    FEW_COLUMNS,
    FORMS,
    beside,
    legal_widths,
    may_share,
    may_share_rows,
    ranked,
)
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
        side_by_side=blocking.side_by_side,
    )
    if blocking != plain or not 1 <= blocking.group_m <= _MAX_GROUP:
        return False
    if not _may_be_split(blocking):
        return False
    if problem.by_columns:
        return _is_of_few_columns(blocking, problem)
    is_alone = cluster == 1 and not blocking.side_by_side
    is_shared = is_alone or _may_share(blocking, problem)
    kind = (consumers, rows, blocking.ping_pong)
    widest = next((f.widest for f in FORMS if (f.consumers, f.rows, f.ping_pong) == kind), 0)
    is_wide = block_n in legal_widths(widest, b_is_k_major=k_major)
    return is_wide and cluster in _CLUSTERS and is_shared


def _is_of_few_columns(blocking: Blocking, problem: Problem) -> bool:
    widths = FEW_COLUMNS if problem.b_is_k_major else FEW_COLUMNS[-1:]
    found = [
        Blocking(consumers, width, 1, blocking.group_m, by_columns=True, split=blocking.split)
        for consumers in (1, 2)
        for width in widths
        if width >= problem.n
    ]
    return blocking in found


def _may_share(blocking: Blocking, problem: Problem) -> bool:
    """Whether a cluster's blocks can each load a part of what they share."""
    if blocking.side_by_side:
        shares = may_share_rows(blocking.block_m, a_is_k_major=problem.a_is_k_major)
        return shares and blocking.cluster > 1 and blocking.split == 1
    return may_share(blocking.block_n, b_is_k_major=problem.b_is_k_major)


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
    legal = (blocking for blocking in found if is_legal(blocking, problem))
    return list(dict.fromkeys(legal))


def _few() -> Iterator[Blocking]:
    for block_n in FEW_COLUMNS:
        yield from (Blocking(consumers, block_n, by_columns=True) for consumers in (2, 1))


def _clustered(block: Blocking) -> Iterator[Blocking]:
    """The block alone, and in pairs; side by side where that shares more."""
    for cluster in _CLUSTERS:
        yield replace(block, cluster=cluster, side_by_side=False)
    if block.block_m > block.block_n:
        yield beside(block)


def _many(problem: Problem, multiprocessors: int) -> Iterator[Blocking]:
    best = ranked(
        problem.m,
        problem.n,
        problem.k,
        multiprocessors,
        on_lines=problem.on_lines,
        a_is_k_major=problem.a_is_k_major,
        b_is_k_major=problem.b_is_k_major,
        count=problem.batches,
    )
    for block in best[:_BEST]:
        for blocking in _clustered(block):
            rows = -(-problem.m // blocking.cluster_rows)
            for smaller, group_m in zip((0, *_GROUPS), _GROUPS, strict=False):
                # Groups that hold all rows walk the output alike.
                if rows > smaller:
                    yield replace(blocking, group_m=group_m)
