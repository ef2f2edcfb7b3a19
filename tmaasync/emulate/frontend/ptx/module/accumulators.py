"""The registers that wgmma keeps, laid out in arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tmaasync.emulate.frontend.ptx.program import Instruction, Operand, Register, Vector

__all__ = ["Accumulators"]


@dataclass
class Accumulators:
    """The arrays of a function's accumulators.

    The emulator writes the results of a wgmma when the thread waits for them, into one array. PTX
    names registers in any order, but compilers name the same ones in the same order each time.
    Where b follows a in a list, it follows a in an array. A list that contradicts this is copied.

    Attributes:
        chains: The registers of each array, by their C++ names.
        copied: The lists that need a copy, by the lists, with the names of their arrays.
    """

    chains: list[list[str]] = field(default_factory=list)
    copied: dict[tuple[str, ...], str] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Iterable[object]) -> Accumulators:
        """Lay out the registers of a function's wgmma."""
        lists = dict.fromkeys(
            names_of(step.operands[0])
            for step in steps
            if isinstance(step, Instruction) and is_wgmma(step)
        )
        made, after, before = cls(), dict[str, str](), dict[str, str]()
        laid_out: dict[str, None] = {}
        for names in lists:
            pairs = list(itertools.pairwise(names))
            agrees = all(after.get(a, b) == b and before.get(b, a) == a for a, b in pairs)
            closes = names and names[0] in _reached(after, names[-1])
            if not agrees or closes or len(set(names)) < len(names):
                made.copied[names] = f"tmaasync_copied_{len(made.copied)}"
                continue
            after |= dict(pairs)
            before |= {b: a for a, b in pairs}
            laid_out |= dict.fromkeys(names)
        firsts = (name for name in laid_out if name not in before)
        made.chains = [[first, *_reached(after, first)] for first in firsts]
        return made


def _reached(after: dict[str, str], name: str) -> list[str]:
    found: list[str] = []
    while name := after.get(name, ""):
        found.append(name)
    return found


def is_wgmma(step: Instruction) -> bool:
    """Return whether an instruction is a wgmma with accumulators."""
    return step.opcode.startswith("wgmma.mma_async") and bool(step.operands)


def names_of(operand: Operand) -> tuple[str, ...]:
    """Return the registers of a vector, by their C++ names."""
    items: Sequence[Operand] = operand.items if isinstance(operand, Vector) else ()
    return tuple(item.cpp for item in items if isinstance(item, Register))
