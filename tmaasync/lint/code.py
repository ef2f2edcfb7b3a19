"""One function as the rules see it, and the instructions of TMA by kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tmaasync.lint.finding import Finding
from tmaasync.lint.flow import Flow
from tmaasync.lint.ptx import Function, Instruction
from tmaasync.lint.values import Values

__all__ = [
    "Code",
    "MemberName",
    "barrier_operand",
    "is_bulk_copy",
    "is_proxy_fence",
    "is_store",
    "map_operand",
    "reads_shared",
]


MemberName = Callable[[int], str | None]
"""Returns the name of an offset in dynamic shared memory, as in ``ring.stages[2].a``."""

_DYNAMIC = "tmaasync_dynamic_shared"
# The end of a mangled name: the length of a variable's name, and the name.
_STATIC = re.compile(r"E(\d+)([A-Za-z_]\w*)$")
_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class Code:
    """A function's instructions, their order and their values; the names of shared variables."""

    function: Function
    flow: Flow
    values: Values
    shared: frozenset[str]
    name_of: MemberName

    @classmethod
    def of(cls, function: Function, shared: frozenset[str], name_of: MemberName) -> Code:
        """Return the code of one function."""
        return cls(function, Flow(function), Values(function), shared, name_of)

    def member(self, operand: str) -> str | None:
        """Return the source's name of what lies at a shared address; None if it is unknown.

        Where the address has terms that the code computes, indices are ``[i]``.
        """
        address = self.values.address(operand)
        symbols = address.names & self.shared
        if len(symbols) != 1:
            return None
        (symbol,) = symbols
        if _DYNAMIC not in symbol:
            static = _STATIC.search(symbol)
            return static[2] if static and len(static[2]) == int(static[1]) else None
        name = self.name_of(address.offset)
        return _INDEX.sub("[i]", name) if name and len(address.names) > 1 else name

    def find(self, wanted: Callable[[Instruction], bool]) -> Iterator[tuple[int, Instruction]]:
        """Yield the instructions of a kind, with their indices."""
        for index, instruction in enumerate(self.function.instructions):
            if wanted(instruction):
                yield index, instruction

    @property
    def calls(self) -> bool:
        """True if it calls a function, which may fence, wait and choose threads unseen."""
        return any(one.opcode.startswith("call") for one in self.function.instructions)

    def depends_on_thread(self, *registers: str) -> bool:
        """True if the values may differ between the threads of a block."""
        sources, definitions = self.values.origins(*registers)
        return any(name.startswith(_OF_A_THREAD) for name in sources) or any(
            one.opcode.startswith(_DIFFERS_BY_THREAD) for one in definitions
        )

    def finding(self, rule: str, at: Instruction, reason: str, remedy: str) -> Finding:
        """Return a rule's finding at an instruction."""
        return Finding(rule, self.function.name, at.location, reason, remedy)


_OF_A_THREAD = ("%tid", "%laneid", "%warpid", "%lanemask")
# Memory contents are unknown, except in local memory, which one thread owns.
_DIFFERS_BY_THREAD = ("elect.sync", "atom", "match", "activemask", "ld.local")


def is_bulk_copy(instruction: Instruction) -> bool:
    """True for a copy by TMA: a load, a store or a reduction, with or without a tensor map."""
    return instruction.opcode.startswith(("cp.async.bulk.", "cp.reduce.async.bulk.")) and not (
        {"prefetch", "commit_group", "wait_group"} & set(instruction.opcode.split("."))
    )


def is_store(instruction: Instruction) -> bool:
    """True for a bulk copy that ends in a bulk group, not at a barrier."""
    return is_bulk_copy(instruction) and instruction.has("bulk_group")


def reads_shared(instruction: Instruction) -> bool:
    """True for a bulk copy from this block's shared memory, its second operand."""
    return is_bulk_copy(instruction) and (
        "global.shared::cta" in instruction.opcode
        or "shared::cluster.shared::cta" in instruction.opcode
    )


def barrier_operand(instruction: Instruction) -> str | None:
    """Return the mbarrier that a bulk copy ends at."""
    if not is_bulk_copy(instruction) or "mbarrier::complete_tx" not in instruction.opcode:
        return None
    return instruction.operands[2 if instruction.has("tensor") else 3]


def map_operand(instruction: Instruction) -> str | None:
    """Return the tensor map that a bulk copy or prefetch goes through."""
    if not instruction.opcode.startswith(("cp.async.bulk.", "cp.reduce.async.bulk.")):
        return None
    if not instruction.has("tensor"):
        return None
    is_load = is_bulk_copy(instruction) and not is_store(instruction)
    return instruction.operands[1 if is_load else 0]


def is_proxy_fence(instruction: Instruction) -> bool:
    """True if it makes earlier writes to shared memory visible to TMA."""
    return instruction.opcode in (
        "fence.proxy.async",
        "fence.proxy.async.shared::cta",
        "fence.proxy.async.shared::cluster",
    )
