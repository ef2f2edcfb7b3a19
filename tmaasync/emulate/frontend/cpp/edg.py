"""C++ that nvcc's front end (EDG) accepts and g++ refuses: repaired where g++ names the place.

Libraries for Hopper and Blackwell have four kinds of it:

* a member template of a dependent object without ``template``, as in ``plan.step<2>(1)``. g++ warns
  of each place (-Wmissing-template-keyword, g++ 12), and the keyword is inserted there;
* a member with the name of its type, as in ``using Array = Array<T, N>;`` (CUTLASS). -fpermissive
  allows it. Of all else that it allows, only an unknown function in a template without instances,
  which stands in the same headers, is accepted;
* a member or variable named like a built-in, as in ``params.gridDim``. The emulator's built-ins are
  macros, and become variables (tmaasync_emulate/position.hpp);
* ``__forceinline__`` functions that call each other, as CuTe's ``rotl`` and ``rotr`` do. The one
  that g++ names is ``inline`` alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tmaasync.emulate import toolchain

_ROUNDS = 8  # a parse error hides the rest of its function
_MISSING_TEMPLATE = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?P<column>\d+): .*'template' keyword", re.MULTILINE
)
# g++'s errors after a missing keyword, whose template it reads as a comparison.
_COMPARED = re.compile(
    r"error: (?:expected (?:primary-expression|unqualified-id|'.*' before '>' token)"
    r"|.*(?:overloaded function type|missing template arguments|member function))"
)
_RECURSIVE = re.compile(r"inlining failed in call to 'always_inline' '[^'(]*?(\w+)\(")
_ALWAYS_INLINE = r"__attribute__\(\(always_inline\)\)(?=[^;{{}}]*\b{}\s*\()"
# In the lines that a log shows: a built-in that is no beginning of threadIdx.x or the like.
_OWN_POSITION = re.compile(
    r"(?:\.|->|::)\s*{0}\b|(?<!\w){0}\b(?!\s*\.\s*[xyz]\b)".format(
        "(?:threadIdx|blockIdx|blockDim|gridDim|warpSize)"
    )
)
_POSITIONS_ARE_VARIABLES = "-DTMAASYNC_EMULATE_POSITION_VARIABLES"
_PERMITTED = re.compile(r"^.*\[-fpermissive\]$", re.MULTILINE)
_NAMED_LIKE_ITS_TYPE = "changes meaning of"
_ACCEPTED = (_NAMED_LIKE_ITS_TYPE, "there are no arguments to")
_MARKER = re.compile(r'# (\d+) "((?:[^"\\]|\\.)*)"')
_TEMPLATE_NAME = re.compile(rb"(?:operator\s*(?:\(\s*\)|[^\w\s]+?)|[A-Za-z_]\w*)\s*<")

Translation = Callable[[str], str]
Places = Mapping[tuple[str, int], Sequence[int]]


class _Attempt(Protocol):
    def __call__(
        self, options: Sequence[str], *, translate: Translation | None
    ) -> toolchain.Compiled: ...


def compiled(
    attempt: _Attempt, options: tuple[str, ...], translate: Translation | None
) -> toolchain.Compiled:
    """Compile, and compile again with g++'s own findings repaired while it names new ones.

    Args:
        attempt: Compiles with the given options and translation of the preprocessed text.
        options: The compiler's options.
        translate: The translation without repairs.

    Raises:
        RefusedError: With the log of the last attempt that had something new to repair.
    """
    repairs = _Repairs(translate)
    try:
        return attempt(options, translate=translate and repairs)
    except toolchain.RefusedError as refused:
        last = refused
    # Warnings name the places, with columns in bytes.
    reports = ("-Wmissing-template-keyword", "-fdiagnostics-column-unit=byte")
    shown = (*(one for one in options if one != "-w"), *reports)
    for _ in range(_ROUNDS):
        if _POSITIONS_ARE_VARIABLES not in shown and _OWN_POSITION.search(last.log):
            shown = (*shown, _POSITIONS_ARE_VARIABLES)
        elif "-fpermissive" not in shown and _NAMED_LIKE_ITS_TYPE in last.log:
            shown = (*shown, "-fpermissive")
        elif not repairs.may_help(last.log):
            break
        try:
            made = attempt(shown, translate=repairs)
        except toolchain.RefusedError as refused:
            last = refused
            repairs.rounds.append(_places(refused.log))
        else:
            return _strict(made, last)
    raise last


class _Repairs:
    """The translation of a preprocessed text, with the repairs that g++'s logs have asked for."""

    def __init__(self, translate: Translation | None) -> None:
        self.rounds: list[Places] = []
        self._translate = translate
        self._recursive = {"rotr"}  # CuTe's: its kernels for Blackwell need no second attempt

    def may_help(self, log: str) -> bool:
        """Note a function that is inlined in itself; return whether a new attempt may succeed."""
        if (one := _RECURSIVE.search(log)) and one[1] not in self._recursive:
            self._recursive.add(one[1])
            return True
        return not (self.rounds and not self.rounds[-1]) and bool(_COMPARED.search(log))

    def __call__(self, text: str) -> str:
        text = text if self._translate is None else self._translate(text)
        for places in self.rounds:
            text = _with_keywords(text, places)
        for name in self._recursive:
            if f"{name}(" in text:
                text = re.sub(_ALWAYS_INLINE.format(name), "", text)
        return text


def _strict(made: toolchain.Compiled, last: toolchain.RefusedError) -> toolchain.Compiled:
    """Refuse all else that -fpermissive has allowed."""
    allowed = _PERMITTED.findall(made.log)
    others = [one for one in allowed if not any(words in one for words in _ACCEPTED)]
    if others:
        log = "\n".join(one.replace(" warning: ", " error: ") for one in others)
        raise toolchain.RefusedError(last.compiler, log)
    return made


def _places(log: str) -> Places:
    """Return the columns that lack the keyword, by file and line."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for one in _MISSING_TEMPLATE.finditer(log):
        found[one["file"], int(one["line"])].add(int(one["column"]))
    return {place: sorted(columns) for place, columns in found.items()}


def _with_keywords(text: str, places: Places) -> str:
    """Insert ``template`` at the places of a preprocessed text."""
    lines = text.split("\n")
    file, number = "", 0
    for index, line in enumerate(lines):
        if marker := _MARKER.match(line):
            number, file = int(marker[1]) - 1, marker[2]
        else:
            number += 1
            if columns := places.get((file, number)):
                lines[index] = _with_keyword(line, columns)
    return "\n".join(lines)


def _with_keyword(line: str, columns: Sequence[int]) -> str:
    data = line.encode("utf-8", "surrogateescape")
    for column in reversed(columns):
        if _TEMPLATE_NAME.match(data, column - 1):
            data = data[: column - 1] + b"template " + data[column - 1 :]
    return data.decode("utf-8", "surrogateescape")
