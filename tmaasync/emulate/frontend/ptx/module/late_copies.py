"""Copies of accumulators that stand before the wait for their wgmma."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tmaasync.emulate.frontend.ptx.module.accumulators import is_wgmma, names_of
from tmaasync.emulate.frontend.ptx.program import (
    Address,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    Register,
    Vector,
)

__all__ = ["after_waits"]

_WAIT = "wgmma.wait_group"
_ENDS_BLOCK = ("bra", "call", "ret", "brx", "exit")

Step = Label | Instruction


def after_waits(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield a function's steps, with each copy of accumulators in flight after their wait.

    LLVM unpacks the float16 results of wgmma by ``mov`` ahead of the ``wgmma.wait_group`` of inline
    PTX, and ptxas gives both registers one place. A copy is moved inside its basic block alone, and
    over no instruction that names its registers.
    """
    in_flight, late = set[str](), list[Instruction]()
    for step in steps:
        if isinstance(step, Label) or step.opcode.startswith(_ENDS_BLOCK):
            yield from late
            late, in_flight = [], set()
            yield step
        elif step.opcode.startswith(_WAIT):
            yield step
            yield from late
            late, in_flight = [], set()
        elif _is_copy(step) and in_flight.intersection(_names(step.operands[1:])):
            late.append(step)
        else:
            if late and _meets(step, late):
                yield from late
                late = []
            if is_wgmma(step):
                in_flight.update(names_of(step.operands[0]))
            yield step
    yield from late


def _is_copy(step: Instruction) -> bool:
    return step.opcode.startswith("mov.b") and step.guard is None and len(step.operands) == 2


def _meets(step: Instruction, late: Iterable[Instruction]) -> bool:
    """Return whether a step names a register of a copy."""
    mine = set(_names(step.operands if step.guard is None else (*step.operands, step.guard)))
    return any(mine.intersection(_names(one.operands)) for one in late)


def _names(operands: Iterable[Operand | None]) -> Iterator[str]:
    for one in operands:
        if isinstance(one, Register):
            yield one.cpp
        elif isinstance(one, Vector):
            yield from _names(one.items)
        elif isinstance(one, Pair):
            yield from _names((one.first, one.second))
        elif isinstance(one, Not):
            yield from _names((one.of,))
        elif isinstance(one, Address):
            yield from _names((one.base, one.offset, *one.more))
