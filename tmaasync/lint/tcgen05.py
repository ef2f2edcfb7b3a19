"""Findings of tcgen05 in a kernel: an instruction without the one that must follow it."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.lint.finding import Finding
from tmaasync.lint.ptx import Function, Instruction

UNFINISHED = "tcgen05-unfinished"

# An instruction, the one that some thread must execute after it, the fault without it, and the
# remedy: PTX ISA, "tcgen05 Memory Consistency Model" and "Tensor Memory Allocation".
_PAIRS = (
    (
        "tcgen05.alloc",
        "tcgen05.dealloc",
        "the kernel ends with columns of tensor memory that nobody frees",
        "Call tcgen05_dealloc, or allocate with TmemAllocation.",
    ),
    (
        "tcgen05.ld",
        "tcgen05.wait::ld",
        "registers of the load are used before it is complete",
        "Call tmem_wait_loads() before the first use.",
    ),
    (
        "tcgen05.st",
        "tcgen05.wait::st",
        "nothing waits for the store, so no later operation is ordered after it",
        "Call tmem_wait_stores() before the fence and the barrier.",
    ),
    (
        "tcgen05.mma",
        "tcgen05.commit",
        "no barrier completes with the multiplications, so nothing may read their result",
        "Call tcgen05_commit(barrier) after the last one of a tile.",
    ),
)


def unfinished(function: Function) -> Iterator[Finding]:
    """Yield the first instruction of each kind that lacks its counterpart in the kernel."""
    if function.calls:  # the counterpart may be in the function that it calls
        return
    for first, then, reason, remedy in _PAIRS:
        found = _of(function, first)
        if found and not _of(function, then):
            reason_text = f"the kernel has {first} and no {then}: {reason}."
            yield Finding(UNFINISHED, function.name, found[0].location, reason_text, remedy)


def _of(function: Function, name: str) -> list[Instruction]:
    return function.find(lambda one: one.opcode == name or one.opcode.startswith(f"{name}."))
