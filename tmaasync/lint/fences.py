"""Writes by threads that TMA has to see."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tmaasync.lint.code import Code, barrier_operand, is_proxy_fence, reads_shared
from tmaasync.lint.finding import Finding
from tmaasync.lint.ptx import Instruction

__all__ = ["INIT", "STORE", "unfenced_barriers", "unfenced_stores"]

STORE = "store-without-proxy-fence"
INIT = "barrier-init-without-fence"

_WRITES = ("st", "stmatrix", "atom", "red")


def unfenced_stores(code: Code) -> Iterator[Finding]:
    """A bulk copy from shared memory after writes to it, and no proxy fence on any way between.

    Paths around a loop are left out: the tile of the next iteration looks like another tile.
    """
    if code.calls:
        return
    fences = _fences(code, is_proxy_fence)
    for index, write in code.find(_writes_shared):
        if not _symbols(code, write.operands[0]):
            continue
        for copy in _unfenced(code, index, fences):
            if reads_shared(copy) and _fills(code, write, copy):
                yield code.finding(
                    STORE,
                    copy,
                    f"{code.member(copy.operands[1]) or 'shared memory'} is written "
                    f"before{_at(write)}, and no fence.proxy.async comes "
                    "between, so that TMA may store earlier bytes.",
                    "Let every writing thread call fence_async_view_proxy() after its writes and "
                    "before the barrier that the storing thread waits at.",
                )


def unfenced_barriers(code: Code) -> Iterator[Finding]:
    """Find loads that end at a barrier, without a fence after the barrier's init."""
    if code.calls:
        return
    fences = _fences(code, _publishes_init)
    for index, init in code.find(lambda one: one.opcode.startswith("mbarrier.init")):
        for copy in _unfenced(code, index, fences):
            barrier = barrier_operand(copy)
            if barrier is not None and _may_be_one(code, init.operands[0], barrier):
                yield code.finding(
                    INIT,
                    init,
                    f"the copy{_at(copy)} ends at {code.member(barrier) or 'this barrier'}, and "
                    "no fence comes between, so "
                    "that TMA may find it not initialised.",
                    "Call fence_barrier_init() in the thread that initialises, before the "
                    "__syncthreads() or cluster barrier that lets the others use it.",
                )


def _fences(code: Code, wanted: Callable[[Instruction], bool]) -> dict[int, set[int]]:
    """Return the instructions that may run after each fence."""
    return {
        index: set(code.flow.reached(index, forward_only=True)) for index, _ in code.find(wanted)
    }


def _unfenced(code: Code, start: int, fences: dict[int, set[int]]) -> Iterator[Instruction]:
    """Return the instructions that may run after one without a fence in between.

    A path around a fence is not enough: the threads that take it may never have written.
    """
    reached = sorted(code.flow.reached(start, forward_only=True))
    fenced = set().union(*(fences[index] for index in reached if index in fences))
    for index in reached:
        if index not in fenced:
            yield code.function.instructions[index]


def _writes_shared(instruction: Instruction) -> bool:
    parts = instruction.opcode.split(".")
    if parts[0] not in _WRITES or "async" in parts:
        return instruction.opcode.startswith(("cp.async.ca.shared", "cp.async.cg.shared"))
    # Generic addresses too: their state space is looked up.
    return not {"global", "local", "param", "shared::cluster"} & set(parts)


def _publishes_init(instruction: Instruction) -> bool:
    return (
        is_proxy_fence(instruction)
        or instruction.opcode.startswith("fence.mbarrier_init")
        or instruction.has("barrier", "cluster")
    )


def _symbols(code: Code, operand: str) -> set[str]:
    """Return the shared variables that an address is made from."""
    sources, _ = code.values.origins(code.values.base(operand))
    return sources & code.shared


def _fills(code: Code, write: Instruction, copy: Instruction) -> bool:
    """True if the write is to the buffer that the copy reads: its first byte, plus an index.

    Other buffers (scratch, flags) lie at other offsets or in other variables.
    """
    written, read = (code.values.address(one) for one in (write.operands[0], copy.operands[1]))
    return read.names <= written.names and read.offset == written.offset


def _may_be_one(code: Code, init: str, barrier: str) -> bool:
    first, second = code.values.address(init), code.values.address(barrier)
    return not first.is_elsewhere(second) and bool(_symbols(code, init) & _symbols(code, barrier))


def _at(instruction: Instruction) -> str:
    return f" in line {instruction.location.line}" if instruction.location else ""
