"""Values of registers: the symbols, constants and special registers that make them up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tmaasync.lint.ptx import Function, Instruction

__all__ = ["Address", "Values"]

_COPIES = ("mov", "cvta", "cvt")
_DEPTH = 64
_SUMS = (*_COPIES, "add", "sub", "selp", "or", "and")


@dataclass(frozen=True, slots=True)
class Address:
    """A sum: names (registers, symbols) and a number of bytes."""

    names: frozenset[str]
    offset: int

    def is_elsewhere(self, other: Address) -> bool:
        """True if the two differ by a known number of bytes."""
        return self.names == other.names and self.offset != other.offset


class Values:
    """The writers of the registers of one function."""

    def __init__(self, function: Function) -> None:
        self._writers: dict[str, list[Instruction]] = defaultdict(list)
        for instruction in function.instructions:
            for name in instruction.writes:
                self._writers[name].append(instruction)

    def origins(self, *names: str, sums_only: bool = False) -> tuple[set[str], list[Instruction]]:
        """Return names without a writer that these values depend on, and the writers of the others.

        What decides between several writers of a register is not followed.

        Args:
            names: Registers.
            sums_only: Whether to follow copies and sums alone: from an address to its base, but
                not into the index of a multiplication.
        """
        seen, pending = set(names), list(names)
        sources: set[str] = set()
        definitions: dict[int, Instruction] = {}
        while pending:
            name = pending.pop()
            writers = self._writers.get(name)
            if not writers:
                sources.add(name)
                continue
            for writer in writers:
                definitions[id(writer)] = writer
                if sums_only and writer.opcode.split(".")[0] not in _SUMS:
                    continue
                guard = (writer.guard.lstrip("!"),) if writer.guard else ()
                fresh = [read for read in (*writer.reads, *guard) if read not in seen]
                seen.update(fresh)
                pending.extend(fresh)
        return sources, list(definitions.values())

    @staticmethod
    def base(operand: str) -> str:
        """Return the register or symbol that an operand such as ``[%r1+16]`` begins with."""
        return _base_and_offset(operand)[0]

    def address(self, operand: str) -> Address:
        """Return the sum that an operand such as ``[%r1+16]`` is, as far as additions lead."""
        name, offset = _base_and_offset(operand)
        if name == operand:
            return Address(frozenset({operand}), 0)
        base = self._sum(name, 0)
        return Address(base.names, base.offset + offset)

    def _sum(self, name: str, depth: int) -> Address:
        if (number := _integer(name)) is not None:
            return Address(frozenset(), number)
        writers = self._writers.get(name, [])
        is_opaque = any(one.guard or len(one.writes) > 1 for one in writers)
        if not writers or is_opaque or depth > _DEPTH:
            return Address(frozenset({name}), 0)
        if len(writers) > 1:
            return self._start_of_loop(name, writers, depth + 1)
        return self._written(name, writers[0], depth + 1)

    def _written(self, name: str, writer: Instruction, depth: int) -> Address:
        """Return the sum that the only writer of a register leaves there."""
        kind, terms = writer.opcode.split(".")[0], writer.operands[1:]
        if writer.has("hi"):
            return Address(frozenset({name}), 0)
        if kind in (*_COPIES, "add"):
            return _added([self._sum(term, depth) for term in terms])
        if kind == "mad":
            return _added([Address(frozenset({name}), 0), self._sum(terms[2], depth)])
        if kind in ("shl", "mul") and (factor := _integer(terms[1])) is not None:
            scale = 1 << factor if kind == "shl" else factor
            index = self._sum(terms[0], depth)
            names = frozenset(f"{scale} * {term}" for term in index.names)
            return Address(names, scale * index.offset)
        return Address(frozenset({name}), 0)

    def _start_of_loop(self, name: str, writers: list[Instruction], depth: int) -> Address:
        """Return a pointer that a loop moves on: where it starts, plus what the loop adds."""
        itself = Address(frozenset({name}), 0)
        starts = [one for one in writers if not self._depends_on(one, name)]
        if len(starts) != 1:
            return itself
        return _added([itself, self._written(name, starts[0], depth)])

    def _depends_on(self, instruction: Instruction, name: str) -> bool:
        if name in instruction.reads:
            return True
        _, definitions = self.origins(*instruction.reads)
        return any(name in one.writes for one in definitions)


def _base_and_offset(operand: str) -> tuple[str, int]:
    """Return the terms of ``[%r1+16]``; other operands have no offset."""
    if not operand.startswith("["):
        return operand, 0
    base, _, offset = operand[1:].partition(",")[0].rstrip("] ").partition("+")
    return base.strip(), _integer(offset.strip()) or 0


def _integer(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None


def _added(parts: list[Address]) -> Address:
    names = frozenset().union(*(part.names for part in parts))
    return Address(names, sum(part.offset for part in parts))
