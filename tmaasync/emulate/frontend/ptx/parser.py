"""From the text of a unit to a program."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tmaasync._source.tokens import at_commas
from tmaasync.emulate.frontend.ptx.pieces import HELD, Piece, pieces_of_asm
from tmaasync.emulate.frontend.ptx.program import (
    Address,
    AsmReference,
    Immediate,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    Program,
    Register,
    Sink,
    Special,
    Symbol,
    Unit,
    Vector,
    bits_of,
)
from tmaasync.emulate.frontend.ptx.statements import AsmStatement
from tmaasync.errors import CompileError

__all__ = ["Parser", "Scope", "parsed", "plain"]

_INSTRUCTION = re.compile(
    r"(?:@\s*(!?)\s*(\x01\d+\x02|[%$\w\x03]+)\s+)?([\w.:\x01\x02]+)\s*(.*)", re.DOTALL
)
_REGISTER = re.compile(r"[%$A-Za-z_\x03][%$\w\x03]*")
_INTEGER = re.compile(r"([+-]?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)[uU]?")
_FLOAT_BITS = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
_DECIMAL = frozenset("0123456789.eE+-")


def parsed(statement: AsmStatement, unique: str) -> Program:
    """Read the text of a statement.

    Args:
        statement: The statement.
        unique: A word that no other statement has, for the names of labels.

    Raises:
        CompileError: The text is not PTX.
    """
    return Parser(statement, pieces_of_asm(statement), unique).program()


@dataclass
class Scope:
    """The names that a pair of braces declares."""

    registers: dict[str, Register] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, Symbol] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of brx.idx


_WORDS: dict[str, Operand] = {"_": Sink(), "WARP_SZ": Immediate("32")}


class Parser:
    """The state of reading one unit."""

    def __init__(self, unit: Unit, pieces: Iterable[Piece], unique: str) -> None:
        """Store the unit; ``unique`` is a word that no other unit of the C++ has."""
        self._unit = unit
        self._all_pieces = pieces
        self._unique = unique
        self._scopes = [Scope()]
        self._declared = 0
        self._used: dict[str, str] = {}
        self._steps: list[Label | Instruction] = []

    def program(self) -> Program:
        """Read the unit.

        Raises:
            CompileError: The text is not PTX.
        """
        pieces = tuple(self._all_pieces)
        self._scopes = [self._labels_of(pieces, 0)[0]]
        for index, piece in enumerate(pieces):
            self._read(piece, pieces, index)
        if len(self._scopes) != 1:
            raise self._refusal(pieces[-1], "leaves a brace open.")
        return Program(tuple(self._steps), tuple(self._used.items()))

    def _refusal(self, piece: Piece, reason: str) -> CompileError:
        return self._unit.refusal(piece.line, piece.text, reason)

    # --- scopes ---

    def _labels_of(self, pieces: Sequence[Piece], start: int) -> tuple[Scope, int]:
        """Return the labels of the scope that begins here, because branches may go forward."""
        scope, depth = Scope(), 0
        for index in range(start, len(pieces)):
            text = pieces[index].text
            depth += (text == "{") - (text == "}")
            if depth < 0:
                return scope, index
            if depth == 0 and text.endswith(":"):
                scope.labels[text[:-1]] = f"{plain(text[:-1])}_{self._unique}_{start}"
        return scope, len(pieces)

    def _read(self, piece: Piece, pieces: Sequence[Piece], index: int) -> None:
        if piece.text == "{":
            self._scopes.append(self._labels_of(pieces, index + 1)[0])
        elif piece.text == "}":
            if len(self._scopes) == 1:
                raise self._refusal(piece, "closes no scope.")
            self._scopes.pop()
        elif piece.text.endswith(":"):
            self._steps.append(Label(self._scopes[-1].labels[piece.text[:-1]], piece.line))
        elif piece.text.startswith(".reg"):
            self._declare(piece)
        elif not piece.text.startswith((".pragma", ".loc")):
            self._steps.append(self._instruction(piece))

    def _declare(self, piece: Piece) -> None:
        kind, names = (*piece.text.removeprefix(".reg").split(maxsplit=1), "", "")[:2]
        kind = kind.removeprefix(".")
        if not bits_of(kind):
            raise self._refusal(piece, "declares no register of a known type.")
        for name in map(str.strip, names.split(",")):
            stem, is_range, count = map(str.strip, name.removesuffix(">").partition("<"))
            if not _REGISTER.fullmatch(stem) or (is_range and not count.isdecimal()):
                raise self._refusal(piece, f"declares {name!r}, which is no name.")
            for each in [f"{stem}{i}" for i in range(int(count))] if is_range else [stem]:
                cpp = f"{plain(each)}_{self._declared}"
                self._declared += 1
                self._scopes[-1].registers[each] = Register(cpp, kind)

    # --- instructions ---

    def _instruction(self, piece: Piece) -> Instruction:
        found = _INSTRUCTION.fullmatch(piece.text)
        if found is None:
            raise self._refusal(piece, "is no instruction.")
        negated, guard, opcode, rest = found.groups()
        guarded = self._operand(guard, piece) if guard else None
        texts = tuple(at_commas(rest))
        if opcode in ("bra", "bra.uni"):
            target = self._target(texts[0] if texts else "", piece)
            return Instruction(guarded, negated == "!", opcode, (), piece.line, piece.text, target)
        operands = self._operands(opcode, texts, piece)
        return Instruction(guarded, negated == "!", opcode, operands, piece.line, piece.text)

    def _operands(self, opcode: str, texts: Sequence[str], piece: Piece) -> tuple[Operand, ...]:
        del opcode  # of a module, calls have operands of their own
        return tuple(self._operand(text, piece) for text in texts)

    def _target(self, label: str, piece: Piece) -> str:
        for scope in reversed(self._scopes):
            if label in scope.labels:
                return scope.labels[label]
        raise self._refusal(piece, "branches to a label that the text does not have.")

    def _operand(self, text: str, piece: Piece) -> Operand:
        if text.startswith("["):
            return self._address(text, piece)
        if text.startswith("{"):
            if not text.endswith("}"):
                raise self._refusal(piece, "has a brace that nothing closes.")
            return Vector(tuple(self._operand(item, piece) for item in at_commas(text[1:-1])))
        if "|" in text:
            first, _, second = text.partition("|")
            return Pair(self._operand(first.strip(), piece), self._operand(second.strip(), piece))
        if text.startswith("!"):
            return Not(self._operand(text[1:].strip(), piece))
        return self._scalar(text, piece)

    def _scalar(self, text: str, piece: Piece) -> Operand:
        if text.startswith("-" + HELD):
            return Immediate(f"-({_constant(int(text[2:-1]))})")
        if text.startswith(HELD) and text.endswith("\x02") and text.count(HELD) == 1:
            index = int(text[1:-1])
            return AsmReference(index, self._unit.operands[index].letter)
        known = self._named(text) or _WORDS.get(text) or _number(text)
        if known is not None:
            return known
        if text.startswith("%"):
            return Special(text[1:])
        if _REGISTER.fullmatch(text):
            raise self._refusal(piece, f"names {text}, which the text declares nowhere.")
        raise self._refusal(piece, f"has the operand `{text}`, which is none.")

    def _named(self, name: str) -> Operand | None:
        """Return the register, or in a module the symbol, of a name."""
        return self._register(name)

    def _register(self, name: str) -> Register | None:
        found = (scope.registers.get(name) for scope in reversed(self._scopes))
        register = next(filter(None, found), None)
        if register is not None:
            self._used[register.cpp] = register.kind
        return register

    def _address(self, text: str, piece: Piece) -> Address:
        if not text.endswith("]"):
            raise self._refusal(piece, "has a bracket that nothing closes.")
        parts = list(at_commas(text[1:-1]))
        if not parts:
            raise self._refusal(piece, "has an empty address.")
        base, sign, offset = _sum(parts[0])
        moved: Operand | None = None
        if offset:
            moved = self._scalar(offset, piece)
            if sign == "-" and isinstance(moved, Immediate):
                moved = Immediate(f"-({moved.text})")
        more = tuple(self._operand(part, piece) for part in parts[1:])
        return Address(self._scalar(base, piece), moved, more)


def plain(name: str) -> str:
    """Return the beginning of a name in C++ for a register or label."""
    return "tmaasync_" + "".join(letter if letter.isalnum() else "_" for letter in name)


def _constant(index: int) -> str:
    """Return the C++ name of an operand with the constraint ``n``."""
    return f"tmaasync_a{index}"


def _sum(text: str) -> tuple[str, str, str]:
    """Split ``base + offset``."""
    signs = (at for at, letter in enumerate(text) if letter in "+-" and text[:at].strip())
    at = next(signs, len(text))
    offset = text[at + 1 :].strip().lstrip("+").strip()
    return (text[:at].strip(), text[at], offset) if offset else (text.strip(), "", "")


def _number(text: str) -> Immediate | None:
    found = _FLOAT_BITS.fullmatch(text)
    if found is not None:
        return Immediate(f"0x{found[1] or found[2]}", 32 if found[1] else 64)
    found = _INTEGER.fullmatch(text)
    if found is not None:
        sign = "-" if found[1] == "-" else ""
        return Immediate(f"{sign}{found[2]}{'ll' if sign else 'ull'}")
    if not _DECIMAL.issuperset(text) or text.lstrip("+-").isdecimal():
        return None
    with contextlib.suppress(ValueError):
        float(text)
        return Immediate(text, -1)
    return None
