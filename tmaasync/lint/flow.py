"""Control flow: which instructions of a function may follow which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tmaasync.lint.ptx import Function, Instruction

__all__ = ["Block", "Flow"]

_ENDS = ("ret", "exit", "trap")


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions from ``start`` to ``stop`` that run one after the other."""

    start: int
    stop: int
    followers: tuple[int, ...]


class Flow:
    """A function as basic blocks, numbered in text order; 0 is the entry."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.blocks = tuple(_blocks(function))
        self._block_of = [
            number
            for number, block in enumerate(self.blocks)
            for _ in range(block.start, block.stop)
        ]
        self._back = _back_edges(self.blocks)
        self._leaders: list[list[int]] = [[] for _ in self.blocks]
        for number, block in enumerate(self.blocks):
            for follower in block.followers:
                self._leaders[follower].append(number)

    def block_of(self, index: int) -> int:
        """Return the block that an instruction lies in."""
        return self._block_of[index]

    def reached(
        self,
        start: int,
        *,
        stops: Callable[[Instruction], bool] = lambda _: False,
        forward_only: bool = False,
    ) -> Iterator[int]:
        """Yield the instructions that may run after this one, each once.

        Args:
            start: The index of an instruction.
            stops: What a path ends at; the instruction it ends at is not among the results.
            forward_only: Whether to leave out the edges that close a loop.
        """
        instructions = self.function.instructions
        seen: set[int] = set()
        pending = [(self.block_of(start), start + 1)]
        while pending:
            number, first = pending.pop()
            block = self.blocks[number]
            for index in range(first, block.stop):
                if stops(instructions[index]):
                    break
                yield index
            else:
                for follower in block.followers:
                    is_left_out = forward_only and (number, follower) in self._back
                    if follower not in seen and not is_left_out:
                        seen.add(follower)
                        pending.append((follower, self.blocks[follower].start))

    def blocks_before(self, block: int, avoiding: int | None = None) -> set[int]:
        """Return the blocks from which a path leads to this one, itself included.

        Args:
            block: The one that the paths lead to.
            avoiding: One that no path may go through.
        """
        seen = {block}
        pending = [block]
        while pending:
            for number in self._leaders[pending.pop()]:
                if number not in seen and number != avoiding:
                    seen.add(number)
                    pending.append(number)
        return seen


def _blocks(function: Function) -> Iterator[Block]:
    instructions = function.instructions
    count = len(instructions)
    starts = {0, *function.labels.values()}
    starts |= {index + 1 for index, one in enumerate(instructions) if _leaves(one)}
    edges = sorted(start for start in starts if start < count)
    number_of = {start: number for number, start in enumerate(edges)}
    for start, stop in zip(edges, [*edges[1:], count], strict=True):
        targets = _targets(function, stop - 1)
        yield Block(start, stop, tuple(number_of[target] for target in targets if target < count))


def _leaves(instruction: Instruction) -> bool:
    return instruction.opcode.split(".")[0] in ("bra", "brx", *_ENDS)


def _targets(function: Function, last: int) -> Iterable[int]:
    """Return the blocks to which the last instruction of a block leads."""
    instruction = function.instructions[last]
    name = instruction.opcode.split(".")[0]
    if name == "brx":
        return sorted(function.labels.values())
    targets = [last + 1] if instruction.guard or not _leaves(instruction) else []
    if name == "bra":
        targets.append(function.target(instruction, instruction.operands[0]))
    return dict.fromkeys(targets)


def _back_edges(blocks: tuple[Block, ...]) -> set[tuple[int, int]]:
    """Yield the edges that lead back to an open block of a depth-first search."""
    back: set[tuple[int, int]] = set()
    on_path, seen = {0}, {0}
    path = [(0, iter(blocks[0].followers))] if blocks else []
    while path:
        number, followers = path[-1]
        follower = next(followers, None)
        if follower is None:
            on_path.discard(number)
            path.pop()
        elif follower in on_path:
            back.add((number, follower))
        elif follower not in seen:
            seen.add(follower)
            on_path.add(follower)
            path.append((follower, iter(blocks[follower].followers)))
    return back
