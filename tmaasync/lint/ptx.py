"""Reads PTX as NVRTC writes it: kernels, their instructions, and the source lines of these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tmaasync._source.tokens import at_commas, without_comments
from tmaasync.errors import BackendError

__all__ = ["Function", "Instruction", "Location", "entries", "shared_symbols"]

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_HEADER = re.compile(
    r"^(?:\.(?:visible|weak)\s+)?\.entry\s+(?P<name>[\w$]+)\s*(?:\([^)]*\))?(?P<directives>[^;{]*)\{",
    re.MULTILINE,
)
_SHARED = re.compile(r"\.shared\s+(?:\.\w+\s+(?:\d+\s+)?)*([\w$]+)\s*(?:\[|;)")
_MAX_THREADS = re.compile(r"\.(?:max|req)ntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:,\s*function_name\s+[^,\n]+,"
    r"\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?[^\n]*"
)
_TOKEN = re.compile(
    rf"\s+|(?P<loc>{_LOC.pattern})|(?P<open>\{{)|(?P<close>\}})"
    r"|(?P<label>[$\w]+)[ \t]*:(?!:)|(?P<statement>[^;]+);"
)
_STATEMENT = re.compile(r"(?:@(!?[%$\w]+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
_NAME = re.compile(r"[%$A-Za-z_][\w$]*(?:\.[xyzw]\b)?(?:#\d+)?")
# Opcodes whose first operand is a source.
_WRITES_NO_REGISTER = ("bar", "barrier", "bra", "brx", "call", "nanosleep", "ret", "exit", "trap")


@dataclass(frozen=True, slots=True)
class Location:
    """A source line: the file as the compiler names it, and the line, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``@guard opcode operands``, the registers that it writes and reads.

    ``line`` is the line of the PTX, counted from 1; ``location`` its line in the source.
    """

    opcode: str
    operands: tuple[str, ...]
    guard: str | None
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    line: int
    location: Location | None
    scopes: tuple[int, ...] = field(repr=False)

    def has(self, *parts: str) -> bool:
        """True if all of these are parts of the opcode, as in ``cp.async.bulk.commit_group``."""
        own = self.opcode.split(".")
        return all(part in own for part in parts)


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel's instructions in text order, and the instruction that every label stands before.

    A label's key is its name and the scope that it is declared in. ``max_threads`` is what
    ``__launch_bounds__`` has; None without it.
    """

    name: str
    max_threads: int | None
    instructions: tuple[Instruction, ...]
    labels: dict[tuple[str, int], int]

    def target(self, branch: Instruction, label: str) -> int:
        """Return the index of the first instruction after this label."""
        for scope in reversed(branch.scopes):
            if (label, scope) in self.labels:
                return self.labels[label, scope]
        return len(self.instructions)


def shared_symbols(ptx: str) -> frozenset[str]:
    """Return the names of all variables in shared memory."""
    return frozenset(_SHARED.findall(without_comments(ptx)))


def entries(ptx: str, hidden: Sequence[Path] = ()) -> Iterator[Function]:
    """Yield every ``__global__`` function.

    An instruction's location is its innermost source line in a file that lies in no hidden folder.
    """
    text = without_comments(ptx)
    files = dict(_FILE.findall(ptx))
    shown = {
        number: Path(name).name
        for number, name in files.items()
        if not any(Path(name).is_relative_to(folder) for folder in hidden)
    }
    for header in _HEADER.finditer(text):
        yield _Body(shown).read(text, header)


class _Body:
    """The state of reading one function's body."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        self._callers: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._location: Location | None = None
        self._line = 0
        self._scopes = [0]
        self._renamed: list[dict[str, str]] = [{}]
        self._last_scope = 0
        self._instructions: list[Instruction] = []
        self._labels: dict[tuple[str, int], int] = {}

    def read(self, text: str, header: re.Match[str]) -> Function:
        position = header.end()
        self._line = text.count("\n", 0, position) + 1
        while self._scopes:
            token = _TOKEN.match(text, position)
            if token is None:
                break
            self._take(token)
            self._line += token[0].count("\n")
            position = token.end()
        return Function(
            name=header["name"],
            max_threads=_max_threads(header["directives"]),
            instructions=tuple(self._instructions),
            labels=self._labels,
        )

    def _take(self, token: re.Match[str]) -> None:
        if token["loc"]:
            self._locate(token["loc"])
        elif token["open"]:
            self._last_scope += 1
            self._scopes.append(self._last_scope)
            self._renamed.append({})
        elif token["close"]:
            self._scopes.pop()
            self._renamed.pop()
        elif token["label"]:
            self._labels[token["label"], self._scopes[-1]] = len(self._instructions)
        elif token["statement"]:
            self._state(token["statement"])

    def _locate(self, directive: str) -> None:
        found = _LOC.match(directive)
        assert found is not None  # noqa: S101 - the token was matched by the same pattern
        here, caller = found.group(1, 2, 3), found.group(4, 5, 6)
        if caller[0] is None:
            self._callers.pop(here, None)
        else:
            self._callers[here] = caller
        seen = set()
        while here[0] not in self._files and here in self._callers and here not in seen:
            seen.add(here)
            here = self._callers[here]
        # Line 0 is code that the compiler made up.
        if here[0] in self._files and here[1] != "0":
            self._location = Location(self._files[here[0]], int(here[1]))

    def _state(self, statement: str) -> None:
        if statement.startswith(".reg"):
            self._declare(statement.split(maxsplit=2)[2])
        elif not statement.startswith("."):
            self._instructions.append(self._instruction(statement))

    def _declare(self, names: str) -> None:
        """Rename registers of inner scopes, which hide others of the same name."""
        if len(self._scopes) > 1:
            for name in _NAME.findall(names):
                self._renamed[-1][name] = f"{name}#{self._scopes[-1]}"

    def _instruction(self, statement: str) -> Instruction:
        found = _STATEMENT.match(statement)
        if found is None:
            raise BackendError(
                f"line {self._line} of the PTX is {statement!r}, which is not understood. Please "
                "report it, with the version of NVRTC."
            )
        guard, opcode, rest = found.groups()
        operands = tuple(at_commas(self._rename(rest)))
        writes: tuple[str, ...] = ()
        if operands and operands[0][0] != "[" and opcode.split(".")[0] not in _WRITES_NO_REGISTER:
            writes = tuple(_names(operands[0]))
        read = operands[1:] if writes else operands
        return Instruction(
            opcode=opcode,
            operands=operands,
            guard=self._rename(guard) if guard else None,
            writes=writes,
            reads=tuple(name for operand in read for name in _names(operand)),
            line=self._line,
            location=self._location,
            scopes=tuple(self._scopes),
        )

    def _rename(self, operands: str) -> str:
        hidden = {name: new for scope in self._renamed for name, new in scope.items()}
        if not hidden:
            return operands
        return _NAME.sub(lambda name: hidden.get(name[0], name[0]), operands)


def _names(operand: str) -> list[str]:
    return _NAME.findall(operand)


def _max_threads(directives: str) -> int | None:
    found = _MAX_THREADS.search(directives)
    if found is None:
        return None
    x, y, z = (int(extent or 1) for extent in found.groups())
    return x * y * z
