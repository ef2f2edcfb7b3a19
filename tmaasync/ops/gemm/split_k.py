"""When K of a product is split: a model of what that gains and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tmaasync.ops._blocking import BLOCK_K_BYTES, Blocking
from tmaasync.ops.gemm.blocking import Fits, blocks, few_columns, time_alone
from tmaasync.ops.gemm.problem import Problem

__all__ = ["SPLITS", "faster_split", "ranked_splits"]

SPLITS = (2, 3, 4, 6, 8)
"""Into how many parts K may be cut, each for a thread block of a cluster."""

# Blocks that were raced; of others the model knows too little.
_WIDTHS = (64, 128, 256)
_MOST_CONSUMERS = 2

_LEAST_BLOCKS = 4  # of K, for a part
_LEAST_GAIN = 1.03

# What follows was measured on an H200, in microseconds.
_MULTIPLY_ADDS = 3.4e6  # of 16-bit elements, by a multiprocessor
_DEPTH = 64  # such elements in a block of K
_MEMORY_BYTES = 3.8e6
_L2_BYTES = 14e6
_L2_BYTES_OF_PARTS = 10e6  # blocks that run beside each other then have fewer lines in common
_RING = 1.3  # in which a ring of loads fills, whatever its size, where nothing else bounds it
_MEETING, _MEETING_OF_EACH = 1.0, 0.15  # until the thread blocks of a cluster have met twice
_RECEIVED_BYTES = 60e3  # by a thread block, from the others
_UNEVEN = 1.0  # what clusters cost more whose size is no power of two


def faster_split(problem: Problem, whole: Blocking, multiprocessors: int, fits: Fits) -> Blocking:
    """The best blocking whose K is split, where that is faster than this one; else this."""
    best = next(filter(fits, ranked_splits(problem, multiprocessors)), None)
    if best is None:
        return whole
    times = [_microseconds(problem, one, multiprocessors) for one in (whole, best)]
    return best if times[0] > _LEAST_GAIN * times[1] else whole


def ranked_splits(problem: Problem, multiprocessors: int) -> list[Blocking]:
    """Blocks whose K is split into parts that all run at once, by the model's time.

    None of them shares loads: larger clusters find less room.
    """
    found = _splits(problem, multiprocessors)
    return sorted(found, key=lambda one: _microseconds(problem, one, multiprocessors))


def _splits(problem: Problem, multiprocessors: int) -> Iterator[Blocking]:
    m, n, k_major = problem.m, problem.n, problem.b_is_k_major
    of_few = problem.by_columns
    found = few_columns(n, b_is_k_major=k_major) if of_few else blocks(m, b_is_k_major=k_major)
    for block in found:
        if not (of_few or _was_raced(block)):
            continue
        clusters = problem.batches * block.clusters(m, n)
        for split in SPLITS:
            if clusters * split > multiprocessors or _k_blocks(problem) < _LEAST_BLOCKS * split:
                break
            part = replace(block, split=split)
            if clusters <= part.clusters_at_once(multiprocessors) and part.holds_partials:
                yield part


def _was_raced(block: Blocking) -> bool:
    is_known = block.block_n in _WIDTHS and block.consumers <= _MOST_CONSUMERS
    return is_known and not block.ping_pong


def _k_blocks(problem: Problem) -> int:
    return -(-problem.k * problem.operand_bytes // BLOCK_K_BYTES)


def _microseconds(problem: Problem, blocking: Blocking, multiprocessors: int) -> float:
    """What bounds a product of few blocks, and some of what nearly does; and the parts' sum."""
    k_bytes = _k_blocks(problem) * BLOCK_K_BYTES
    clusters = problem.batches * blocking.clusters(problem.m, problem.n)
    loads = clusters * (blocking.block_m * blocking.cluster + blocking.block_n) * k_bytes
    l2 = loads / (_L2_BYTES if blocking.split == 1 else _L2_BYTES_OF_PARTS)
    memory = problem.batches * (problem.m + problem.n) * k_bytes / _MEMORY_BYTES
    alone = _alone(problem, blocking, -(-clusters // blocking.clusters_at_once(multiprocessors)))
    return math.sqrt(math.hypot(alone**2, l2**2, memory**2)) + _adding(blocking)


def _alone(problem: Problem, blocking: Blocking, rounds: int) -> float:
    """Of one thread block that has the chip for itself."""
    part = -(-_k_blocks(problem) // blocking.split)
    if problem.by_columns:
        return rounds * part / blocking.stages * _RING
    time = time_alone(blocking, part * _DEPTH, rounds, on_lines=problem.on_lines)
    return time / _MULTIPLY_ADDS


def _adding(blocking: Blocking) -> float:
    """In which thread blocks meet and add up what they have of each other's sums."""
    if blocking.split == 1:
        return 0.0
    meeting = _MEETING + _MEETING_OF_EACH * blocking.split
    uneven = 0.0 if blocking.split & (blocking.split - 1) == 0 else _UNEVEN
    return meeting + blocking.partials_bytes / _RECEIVED_BYTES + uneven
