"""Findings of tcgen05 in a kernel: an instruction without the one that must follow it."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.lint.finding import Finding
from tmaasync.lint.ptx import Function

UNFINISHED = "tcgen05-unfinished"

# PTX ISA, "tcgen05 Memory Consistency Model" and "Tensor Memory Allocation": an instruction, the one
# that some thread must execute after it, what is wrong without, and the remedy.
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
        found = function.find(lambda one, name=first: _is(one.opcode, name))
        if found and not function.find(lambda one, name=then: _is(one.opcode, name)):
            reason_text = f"the kernel has {first} and no {then}: {reason}."
            yield Finding(UNFINISHED, function.name, found[0].location, reason_text, remedy)


def _is(opcode: str, name: str) -> bool:
    return opcode == name or opcode.startswith(f"{name}.")
