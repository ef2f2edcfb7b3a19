"""From a function's body to a program: the symbols, calls and jump tables that asm lacks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from tmaasync.emulate.frontend.ptx.module.lines import Lines
from tmaasync.emulate.frontend.ptx.module.reader import (
    Function,
    Module,
    Variable,
    declared_variable,
)
from tmaasync.emulate.frontend.ptx.parser import Parser, Scope, plain
from tmaasync.emulate.frontend.ptx.pieces import Piece, pieces_of
from tmaasync.emulate.frontend.ptx.program import AsmOperand, Operand, Symbol, Vector
from tmaasync.errors import CompileError

__all__ = ["Body", "BodyParser", "address_of"]

_CALLS = ("call", "call.uni")
_TABLES = ("brx.idx", "brx.idx.uni")
_DECLARES = (".param", ".local", ".shared")
_TARGETS = ".branchtargets"
_SKIPPED = (".callprototype", _TARGETS, ".calltargets")


class Body:
    """The body of a function, as a unit."""

    operands: Sequence[AsmOperand] = ()
    is_body = True

    def __init__(self, module: Module, function: Function) -> None:
        self.module = module
        self.function = function
        self.lines = Lines(module, function)

    def refusal(self, line: int, text: str, reason: str) -> CompileError:
        """Return the error of an instruction that cannot be translated."""
        shown = " ".join(text.split())
        return CompileError(
            f"{self.module.name} does not run on the CPU, at {self.lines.shown(line)}: "
            f"`{shown}` {reason}"
        )

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the body, with the lines of the module."""
        begin, end = self.function.body or (0, 0)
        return pieces_of(
            self, self.module.text[begin:end], lambda at: self.module.line_at(begin + at)
        )


def address_of(cpp: str) -> str:
    """Return the C++ for a variable's address."""
    return f"reinterpret_cast<::std::uint64_t>(&{cpp})"


class BodyParser(Parser):
    """The state of reading one body.

    Attributes:
        variables: The variables in the frame, by their C++ names.
        shared: The shared variables that the body declares.
    """

    def __init__(
        self, body: Body, unique: str, symbols: Mapping[str, Symbol], shared: Callable[[str], str]
    ) -> None:
        super().__init__(body, body.pieces(), unique)
        self.body = body
        self._symbols = symbols
        self._shared_name = shared
        self.variables: dict[str, Variable] = {}
        self.shared: dict[str, Variable] = {}

    def _labels_of(self, pieces: Sequence[Piece], start: int) -> tuple[Scope, int]:
        scope, end = super()._labels_of(pieces, start)
        for label, piece in itertools.pairwise(pieces[start:end]):
            if piece.text.startswith(_TARGETS):
                names = map(str.strip, piece.text.removeprefix(_TARGETS).split(","))
                scope.tables[label.text[:-1]] = tuple(names)
        return scope, end

    def _read(self, piece: Piece, pieces: Sequence[Piece], index: int) -> None:
        if piece.text.startswith(_DECLARES):
            self._declare_variable(piece)
        elif not piece.text.startswith(_SKIPPED):
            super()._read(piece, pieces, index)

    def _declare_variable(self, piece: Piece) -> None:
        variable = declared_variable(piece.text)
        if variable is None:
            raise self._refusal(piece, "declares no variable of a known type.")
        if variable.space == "shared":
            cpp = self._shared_name(variable.name)
            self.shared[cpp] = variable
            symbol = Symbol(f"::tmaasync_ptx::converted_to_shared({address_of(cpp)})")
        else:
            cpp = f"{plain(variable.name)}_v{len(self.variables)}"
            self.variables[cpp] = variable
            symbol = Symbol(address_of(cpp))
        self._scopes[-1].symbols[variable.name] = symbol

    def _named(self, name: str) -> Operand | None:
        register = self._register(name)
        if register is not None:
            return register
        found = (scope.symbols.get(name) for scope in reversed(self._scopes))
        return next(filter(None, found), None) or self._symbols.get(name)

    def _operands(self, opcode: str, texts: Sequence[str], piece: Piece) -> tuple[Operand, ...]:
        if opcode in _CALLS:
            return self._call(list(texts), piece)
        if opcode in _TABLES:
            labels = next(
                (one.tables[texts[1]] for one in self._scopes[::-1] if texts[1] in one.tables), ()
            )
            targets = tuple(Symbol(self._target(label, piece)) for label in labels)
            return self._scalar(texts[0], piece), Vector(targets)
        return super()._operands(opcode, texts, piece)

    def _call(self, texts: list[str], piece: Piece) -> tuple[Operand, ...]:
        """Return the results, the function, and the arguments."""
        results = self._listed(texts, piece)
        function = self._scalar(texts.pop(0), piece)
        return results, function, self._listed(texts, piece)

    def _listed(self, texts: list[str], piece: Piece) -> Vector:
        """Take the list in parentheses that comes next; it may be missing."""
        text = texts.pop(0)[1:-1] if texts and texts[0].startswith("(") else ""
        names = filter(None, map(str.strip, text.split(",")))
        return Vector(tuple(self._scalar(name, piece) for name in names))
