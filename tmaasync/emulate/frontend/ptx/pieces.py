"""The text of a unit of PTX in pieces: statements, braces and labels, with their lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tmaasync._source.tokens import COMMENT
from tmaasync.emulate.frontend.ptx.program import UNIQUE, Unit
from tmaasync.emulate.frontend.ptx.statements import AsmStatement

__all__ = ["HELD", "Piece", "pieces_of", "pieces_of_asm"]

_REFERENCE = re.compile(r"%(?:(\d+)|\[(\w+)\]|(=)|(%))")
HELD = "\x01"
"""Stands before the number of an operand of the statement, which \\x02 ends."""
_GAP = re.compile(r"[\s;]*")
_LABEL = re.compile(r"([$%\w\x03.]+)\s*:(?!:)")
_LINE = re.compile(r"\.loc\b[^\n;]*")


class Piece(NamedTuple):
    """One statement of PTX, a brace or a label, and its line."""

    text: str
    line: int


def pieces_of(unit: Unit, text: str, line_at: Callable[[int], int]) -> Iterator[Piece]:
    """Yield the pieces of a text without comments.

    Args:
        unit: The unit, for errors.
        text: Its text.
        line_at: Returns the line of a character.

    Raises:
        CompileError: The last statement has no semicolon.
    """
    position = _GAP.match(text, 0).end()  # type: ignore[union-attr]  # it matches nothing, too
    while position < len(text):
        line = line_at(position)
        if text[position] in "{}":
            yield Piece(text[position], line)
            end = position + 1
        elif label := _LABEL.match(text, position):
            yield Piece(f"{label[1]}:", line)
            end = label.end()
        elif directive := _LINE.match(text, position):
            end = directive.end()
        else:
            end = text.find(";", position)
            piece = Piece(text[position : end if end >= 0 else len(text)].strip(), line)
            if end < 0:
                raise unit.refusal(line, piece.text, "has no semicolon.")
            yield piece
        position = _GAP.match(text, end).end()  # type: ignore[union-attr]


def pieces_of_asm(statement: AsmStatement) -> Iterator[Piece]:
    """Yield the pieces of an ``asm`` statement, with its operands marked."""
    text, lines = _Marked(statement).text()
    return pieces_of(statement, text, lines.__getitem__)


class _Marked:
    """The text of a statement with operands marked and without comments."""

    def __init__(self, statement: AsmStatement) -> None:
        self._statement = statement
        self._names = {
            operand.name: index for index, operand in enumerate(statement.operands) if operand.name
        }

    def text(self) -> tuple[str, list[int]]:
        """Return the text, and each character's line."""
        text, lines = self._statement.text.characters, self._statement.text.lines
        kept: list[str] = []
        at: list[int] = []
        position = 0
        while position < len(text):
            found = COMMENT.match(text, position)
            if found is not None:
                position = found.end()
                new = " "
            elif self._statement.operands and (found := _REFERENCE.match(text, position)):
                position = found.end()
                new = self._reference(found, lines[found.start()])
            elif text.startswith("%%", position):
                position, new = position + 2, "%"
            elif text.startswith("%=", position):
                position, new = position + 2, UNIQUE
            else:
                new = text[position]
                position += 1
            kept.append(new)
            at += [lines[min(position, len(lines)) - 1]] * len(new)
        return "".join(kept), at

    def _reference(self, found: re.Match[str], line: int) -> str:
        if found[3]:
            return UNIQUE
        if found[4]:
            return "%"
        index = int(found[1]) if found[1] else self._names.get(found[2], -1)
        if not 0 <= index < len(self._statement.operands):
            raise self._statement.refusal(
                line,
                found[0],
                f"names an operand that the statement does not have; it has "
                f"{len(self._statement.operands)}.",
            )
        return f"{HELD}{index}\x02"
