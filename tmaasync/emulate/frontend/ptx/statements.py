"""The ``asm`` statements of preprocessed C++: their text, their operands, and their lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tmaasync._source.tokens import TOKEN
from tmaasync.emulate.frontend.ptx.program import AsmOperand, refusal
from tmaasync.errors import CompileError

__all__ = ["AsmStatement", "Findings", "Function", "Text", "statements"]

_TOKEN = re.compile(
    rf"(?P<marker>^\#[^\n]*)|{TOKEN.pattern}", re.VERBOSE | re.DOTALL | re.MULTILINE
)
_KINDS_OF_ONE_LINE = ("word", "number", "sign")
_MARKER = re.compile(r'#\s*(?:line\s+)?(\d+)(?:\s+"((?:[^"\\]|\\.)*)"(.*))?')
_ASM = ("asm", "__asm__", "__asm")
_QUALIFIERS = ("volatile", "__volatile__", "__volatile", "inline", "__inline__", "goto")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]+)|([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "b": "\b"}


@dataclass(frozen=True)
class Text:
    """Characters, and the source line of each."""

    characters: str
    lines: tuple[int, ...]


@dataclass(frozen=True)
class AsmStatement:
    """One statement, and its position in the preprocessed text."""

    start: int
    end: int
    file: str
    line: int
    end_line: int
    text: Text = field(repr=False)
    operands: tuple[AsmOperand, ...]
    outputs: int
    is_body = False

    def refusal(self, line: int, text: str, reason: str) -> CompileError:
        """Return the error of an instruction that cannot be translated."""
        return refusal(self.file, line, text, reason)


@dataclass
class Function:
    """A function definition: its name, and the range of its body after the first brace."""

    name: str
    name_start: int
    start: int
    line: int
    file: str
    end: int = 0
    end_line: int = 0
    tokens: int = 0  # number in the body, outside of asm statements
    words: set[str] = field(default_factory=set)
    has_asm: bool = False


@dataclass(frozen=True)
class Findings:
    """The statements, and the functions that wrap an instruction of PTX."""

    statements: tuple[AsmStatement, ...]
    wrappers: tuple[Function, ...]


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int
    line: int


_NOTHING = _Token("", "", 0, 0, 0)
_WRAPPER_TOKENS = 80
_CALLER_TOKENS = 30
_NO_NAMES = (
    *("if", "constexpr", "consteval", "for", "while", "switch", "catch"),
    *("operator", "__attribute__", "alignas", "decltype", "noexcept", "requires"),
)
_NO_TYPES = ("operator", "else", "do", "return")


def statements(
    preprocessed: str, is_translated: Callable[[str, str], bool], kernels: Collection[str] = ()
) -> Findings:
    """Return the ``asm`` statements in the author's files, and the functions around them.

    Args:
        preprocessed: The preprocessor's output, with its line markers.
        is_translated: Whether to translate the statements of a file, by its name and flags.
        kernels: The names of ``__global__`` functions.
    """
    reader = _Reader(preprocessed, is_translated)
    functions = _Functions()
    found: list[AsmStatement] = []
    for token in reader.tokens():
        is_asm = token.text in _ASM and functions.is_inside
        statement = reader.statement(token) if is_asm else None
        if statement is None:
            functions.pass_by(token, reader.file)
        else:
            found.append(statement)
            functions.note_asm()
    return Findings(tuple(found), tuple(_wrappers(functions.defined, kernels)))


def _wrappers(functions: Sequence[Function], kernels: Collection[str]) -> Iterator[Function]:
    """Yield short functions around an asm statement, or around a call of one."""
    names: set[str] = set()
    for function in functions:  # in the order of definition: callees come first
        if function.name in kernels:
            continue
        calls_one = bool(names & function.words) and function.tokens <= _CALLER_TOKENS
        if (function.has_asm and function.tokens <= _WRAPPER_TOKENS) or calls_one:
            names.add(function.name)
            yield function


class _Functions:
    """Tracks the function that the current token belongs to."""

    def __init__(self) -> None:
        self.defined: list[Function] = []
        self._last = [_NOTHING, _NOTHING]
        self._parentheses: list[list[_Token]] = []
        self._header = [_NOTHING, _NOTHING]  # type and name before a parameter list
        self._braces: list[bool] = []  # for each open brace, whether it begins a function
        self._has_parameters = False
        self._inside: Function | None = None
        self._outside = 0  # the depth at which the function ends

    @property
    def is_inside(self) -> bool:
        """Whether the current token is in a function's body, not in a declaration."""
        return any(self._braces)

    def note_asm(self) -> None:
        if self._inside is not None:
            self._inside.has_asm = True

    def pass_by(self, token: _Token, file: str) -> None:
        if self._inside is not None:
            self._inside.tokens += 1
            self._inside.words.add(token.text)
        if token.kind == "sign":
            self._pass_by_sign(token, file)
        self._last = [self._last[1], token]

    def _pass_by_sign(self, token: _Token, file: str) -> None:
        if token.text == "(":
            self._parentheses.append(self._last)
            self._has_parameters = True
        elif token.text == ")" and self._parentheses:
            self._header = self._parentheses.pop()
        elif token.text == "{":
            self._open(token, file)
        elif token.text == "}":
            self._close(token)
        if token.text in (";", "{", "}"):
            self._has_parameters = False

    def _open(self, token: _Token, file: str) -> None:
        kind, name = self._header
        is_function = self._last[1].text in (")", "const", "noexcept", "override", "final")
        is_plain = (kind.kind == "word" and kind.text not in _NO_TYPES) and (
            name.kind == "word" and name.text not in _NO_NAMES
        )
        if is_function and is_plain and self._inside is None:
            self._inside = Function(name.text, name.start, token.end, token.line, file)
            self._outside = len(self._braces)
        self._braces.append(self._has_parameters)

    def _close(self, token: _Token) -> None:
        if self._braces:
            self._braces.pop()
        if self._inside is not None and len(self._braces) == self._outside:
            self._inside.end, self._inside.end_line = token.end, token.line
            self.defined.append(self._inside)
            self._inside = None


class _Reader:
    """Iterates over the tokens of the author's files, and tracks the file and the line."""

    def __init__(self, text: str, is_translated: Callable[[str, str], bool]) -> None:
        self._text = text
        self._matches = _TOKEN.finditer(text)
        self._is_translated = is_translated
        self._skips = False
        self.file, self._line = "", 1

    def tokens(self) -> Iterator[_Token]:
        return iter(self._next, None)

    def _next(self) -> _Token | None:
        """Return the next token that is neither white space nor a line marker."""
        while (found := next(self._matches, None)) is not None:
            kind = found.lastgroup or "sign"
            if kind == "marker":
                self._mark(found)
                continue
            text, line = found[0], self._line
            if kind not in _KINDS_OF_ONE_LINE:
                self._line += text.count("\n")
            if kind != "gap":
                return _Token(kind, text, found.start(), found.end(), line)
        return None

    def _mark(self, marker: re.Match[str]) -> None:
        found = _MARKER.match(marker[0])  # else a pragma
        if found is not None:
            self._line = int(found[1]) - 1  # the line break after it counts
            if found[2] is not None:
                self.file = found[2]
                self._skips = not self._is_translated(self.file, found[3])
        if self._skips:
            after = self._text.find("\n#", marker.end())
            self._matches = _TOKEN.finditer(self._text, len(self._text) if after < 0 else after)

    def statement(self, first: _Token) -> AsmStatement | None:
        """Read a statement to its semicolon; None if it is outside all functions."""
        token = self._next()
        while token is not None and token.text in _QUALIFIERS:
            token = self._next()
        if token is None or token.text != "(":
            return None
        sections = self._sections()
        end = self._next()
        if end is None or end.text != ";":
            return None
        outputs = [_operand(tokens, self._text) for tokens in _by_commas(sections, 1)]
        inputs = [_operand(tokens, self._text) for tokens in _by_commas(sections, 2)]
        return AsmStatement(
            start=first.start,
            end=end.end,
            file=self.file,
            line=first.line,
            end_line=end.line,
            text=_text(sections[0]),
            operands=(*outputs, *inputs),
            outputs=len(outputs),
        )

    def _sections(self) -> list[list[_Token]]:
        """Return the tokens between the colons, up to the closing parenthesis."""
        sections: list[list[_Token]] = [[]]
        depth = 1
        while (token := self._next()) is not None:
            depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
            if depth == 0:
                break
            if token.text in (":", "::") and depth == 1:
                sections += [[] for _ in token.text]
            else:
                sections[-1].append(token)
        return sections


def _text(tokens: list[_Token]) -> Text:
    characters: list[str] = []
    lines: list[int] = []
    for token in tokens:
        if token.text.startswith("R"):
            body = token.text[token.text.index("(") + 1 : token.text.rindex(")")]
            line = token.line
            for letter in body:
                characters.append(letter)
                lines.append(line)
                line += letter == "\n"
        elif token.kind == "string":
            for letter in _unescaped(token.text[1:-1]):
                characters.append(letter)
                lines.append(token.line)
    return Text("".join(characters), tuple(lines))


def _unescaped(text: str) -> str:
    def letter(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        if found[2]:
            return chr(int(found[2], 8))
        return _LETTERS.get(found[3], found[3])

    return _ESCAPE.sub(letter, text)


def _by_commas(sections: list[list[_Token]], index: int) -> list[list[_Token]]:
    """Return the operands of a section."""
    operands: list[list[_Token]] = [[]]
    depth = 0
    for token in sections[index] if index < len(sections) else ():
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if token.text == "," and depth == 0:
            operands.append([])
        else:
            operands[-1].append(token)
    return [operand for operand in operands if operand]


def _operand(tokens: list[_Token], text: str) -> AsmOperand:
    name = ""
    if tokens[0].text == "[":
        name, tokens = tokens[1].text, tokens[3:]
    strings = [token for token in tokens if token.kind == "string"]
    constraint = ""
    rest = tokens
    while rest and rest[0].kind == "string":
        constraint += rest[0].text[1:-1]
        rest = rest[1:]
    if not strings or len(rest) < 2:
        return AsmOperand(name, constraint, "0")
    return AsmOperand(name, constraint, text[rest[0].start : rest[-1].end])
