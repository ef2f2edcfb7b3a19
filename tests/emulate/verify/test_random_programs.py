"""`verify` of random programs of atomic operations agrees with an enumeration."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import tmaasync as tma
from tmaasync import emulate

STEPS = 3
EFFECTS: tuple[Callable[[int, int, int], int], ...] = (
    lambda old, a, b: old,
    lambda old, a, b: (old + a) % 2**32,
    lambda old, a, b: a,
    lambda old, a, b: b if old == a else old,
    lambda old, a, b: max(old, a),
    lambda old, a, b: min(old, a),
    lambda old, a, b: 0 if old >= a else old + 1,
    lambda old, a, b: old,
    lambda old, a, b: a,
    lambda old, a, b: (old + a) % 2**32,
    lambda old, a, b: max(old, a),
    lambda old, a, b: 0 if old >= a else old + 1,
    lambda old, a, b: old,
    lambda old, a, b: b,
)
"""By the kernel's kind: none, add, exchange, compare, max, min, inc, read, write, red add, red max,
a counter, which returns at most b, and polls: a read until it is not a, a compare until it is."""
NONE, WRITE, COUNT, AWAIT, LOCK = 0, 8, 11, 12, 13


class Op(NamedTuple):
    kind: int
    word: int
    a: int
    b: int
    guard: int  # runs only if the first result is this; -1: always


Program = tuple[tuple[Op, ...], ...]
Results = tuple[int, ...]


def drawn(rng: random.Random) -> Program:
    def op() -> Op:
        a, b = rng.randrange(3), rng.randrange(3)
        return Op(
            rng.randrange(1, len(EFFECTS)), rng.randrange(2), a, b, rng.choice([-1, -1, 0, 1])
        )

    blocks = rng.choice([2, 2, 3])
    most = STEPS if blocks == 2 else 2
    lengths = [rng.randint(1, most) for _ in range(blocks)]
    return tuple(
        tuple(op() if i < length else Op(NONE, 0, 0, 0, -1) for i in range(STEPS))
        for length in lengths
    )


def outcomes(program: Program) -> tuple[list[set[Results]], bool]:
    """Return the results that each block has in some interleaving, and whether one has no end."""
    found: list[set[Results]] = [set() for _ in program]
    has_deadlock = False

    @functools.cache
    def go_on(words: tuple[int, ...], done: Results, results: tuple[Results, ...]) -> None:
        nonlocal has_deadlock
        is_stuck = True
        for block, ops in enumerate(program):
            if done[block] == STEPS:
                found[block].add(results[block])
                continue
            step, op = done[block], ops[done[block]]
            if not (_runs(op, step, results[block][0]) and _waits(op, words)):
                is_stuck = False
                go_on(*_after(op, block, words, done, results))
        has_deadlock |= is_stuck and min(done) < STEPS

    go_on((0, 0), (0,) * len(program), ((9,) * STEPS,) * len(program))
    return found, has_deadlock


def _runs(op: Op, step: int, first: int) -> bool:
    return op.kind != NONE and (step == 0 or op.guard < 0 or first == op.guard)


def _waits(op: Op, words: tuple[int, ...]) -> bool:
    return op.kind in (AWAIT, LOCK) and (words[op.word] == op.a) == (op.kind == AWAIT)


def _after(
    op: Op, block: int, words: tuple[int, ...], done: Results, results: tuple[Results, ...]
) -> tuple[tuple[int, ...], Results, tuple[Results, ...]]:
    step, own = done[block], list(results[block])
    now = list(words)
    if _runs(op, step, own[0]):
        if op.kind < WRITE or op.kind >= COUNT:
            own[step] = min(now[op.word], op.b) if op.kind == COUNT else now[op.word]
        now[op.word] = EFFECTS[op.kind](now[op.word], op.a, op.b)
    after = list(done)
    after[block] += 1
    all_results = list(results)
    all_results[block] = tuple(own)
    return tuple(now), tuple(after), tuple(all_results)


def cases(rng: random.Random) -> Iterator[tuple[Program, int, Results, bool]]:
    """Yield programs, each with a block and results of it, and whether an interleaving is wrong.

    One is that has no end, or these results.
    """
    while True:
        program = drawn(rng)
        possible, has_deadlock = outcomes(program)
        block = rng.randrange(len(program))
        wanted: Results = rng.choice(sorted(possible[block]) or [(9,) * STEPS])
        if rng.random() < 0.3:
            wanted = tuple(rng.choice([0, 1, 2, 9]) for _ in range(STEPS))
        yield program, block, wanted, has_deadlock or wanted in possible[block]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_verify_finds_what_some_interleaving_does(seed: int) -> None:
    kernel = tma.Kernel(Path(__file__).parent / "random_programs.cu", "run")
    for _, (program, block, wanted, is_wrong) in zip(
        range(100), cases(random.Random(seed)), strict=False
    ):
        arguments = (
            np.array(program, np.int32).reshape(-1),
            np.zeros(2, np.uint32),
            block,
            np.array(wanted, np.uint32),
        )
        verdict = emulate.verify(kernel, len(program), 1, arguments)
        expected = "violated" if is_wrong else "clean"
        assert verdict.status == expected, (seed, program, block, wanted, str(verdict))
