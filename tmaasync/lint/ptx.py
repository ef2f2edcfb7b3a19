"""Reads PTX as NVRTC writes it: kernels, their instructions, and the source lines of these."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tmaasync._source.tokens import at_commas, without_comments
from tmaasync.errors import BackendError

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_HEADER = re.compile(
    r"^(?:\.(?:visible|weak)\s+)?\.entry\s+(?P<name>[\w$]+)\s*(?:\([^)]*\))?(?P<directives>[^;{]*)\{",
    re.MULTILINE,
)
_MAX_THREADS = re.compile(r"\.(?:max|req)ntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:,\s*function_name\s+[^,\n]+,"
    r"\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?[^\n]*"
)
_TOKEN = re.compile(
    rf"\s+|(?P<loc>{_LOC.pattern})|(?P<open>\{{)|(?P<close>\}})"
    r"|(?P<label>[$\w]+)[ \t]*:(?!:)|(?P<statement>[^;]+);"
)
_STATEMENT = re.compile(r"(?:@!?[%$\w]+\s+)?([\w.:]+)\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Location:
    """A source line: the file as the compiler names it, and the line, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, ``opcode operands``.

    ``line`` is the line of the PTX, counted from 1; ``location`` its line in the source.
    """

    opcode: str
    operands: tuple[str, ...]
    line: int
    location: Location | None

    def has(self, *parts: str) -> bool:
        """True if all of these are parts of the opcode, as in ``setmaxnreg.inc.sync``."""
        own = self.opcode.split(".")
        return all(part in own for part in parts)


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel's instructions in text order.

    ``max_threads`` is what ``__launch_bounds__`` has; None without it.
    """

    name: str
    max_threads: int | None
    instructions: tuple[Instruction, ...]

    def find(self, wanted: Callable[[Instruction], bool]) -> list[Instruction]:
        """Return the instructions of a kind."""
        return [one for one in self.instructions if wanted(one)]

    @property
    def calls(self) -> bool:
        """True if it calls a function, whose arrays are not known."""
        return any(one.opcode.startswith("call") for one in self.instructions)


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
        self._open_braces = 1
        self._instructions: list[Instruction] = []

    def read(self, text: str, header: re.Match[str]) -> Function:
        position = header.end()
        self._line = text.count("\n", 0, position) + 1
        while self._open_braces:
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
        )

    def _take(self, token: re.Match[str]) -> None:
        if token["loc"]:
            self._locate(token["loc"])
        elif token["statement"] and not token["statement"].startswith("."):
            self._instructions.append(self._instruction(token["statement"]))
        else:
            self._open_braces += bool(token["open"]) - bool(token["close"])

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

    def _instruction(self, statement: str) -> Instruction:
        found = _STATEMENT.match(statement)
        if found is None:
            raise BackendError(
                f"line {self._line} of the PTX is {statement!r}, which is not understood. Please "
                "report it, with the version of NVRTC."
            )
        opcode, operands = found.groups()
        return Instruction(opcode, tuple(at_commas(operands)), self._line, self._location)


def _max_threads(directives: str) -> int | None:
    found = _MAX_THREADS.search(directives)
    if found is None:
        return None
    x, y, z = (int(extent or 1) for extent in found.groups())
    return x * y * z
