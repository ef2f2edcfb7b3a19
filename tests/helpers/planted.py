"""Planted defects: edits of a kernel's source, and the report that each must cause.

An edit finds its place by tokens of CUDA C++, within a function or type where that is needed.
Comments, line breaks and spaces are no tokens: rewording and reformatting move no edit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace
from tmaasync._source.tokens import COMMENT, without_comments

__all__ = [
    "DEADLOCK", "EVERY", "FAULT", "RACE", "Defect", "Edit", "after", "before", "defects", "edited",
    "exchanged", "lines_named", "source_of", "tokens_of", "without",
]  # fmt: skip

RACE, DEADLOCK, FAULT = (EmulatedRace,), (EmulatedDeadlock,), (EmulatedFault,)
EVERY = -1
_TOKEN = re.compile(
    rf"(?P<comment>{COMMENT.pattern})"
    # A directive.
    r'|#(?:\\\n|"(?:\\.|[^"\\\n])*"|/\*.*?\*/|(?!//)[^\n])*'
    r'|"(?:\\.|[^"\\])*"'
    r"|'(?:\\.|[^'\\])+'"
    r"|[A-Za-z_]\w*|\d(?:'?[\w.])*|\S",
    re.DOTALL,
)
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Source:
    """The tokens of a text, and where in it each begins and ends."""

    words: list[str]
    spans: list[tuple[int, int]]

    def close(self, at: int) -> int:
        """Return where the bracket that opens at a token closes."""
        depth = 0
        for index in range(at, len(self.words)):
            depth += (self.words[index] in _OPEN) - (self.words[index] in _CLOSE)
            if depth == 0:
                return index
        raise ValueError(f"nothing closes {self.words[at]!r}")

    def matches(self, pattern: list[str], start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Return the first and the last token of every place that the pattern matches."""
        for at in range(start, stop):
            if self.words[at] == pattern[0]:
                end = self._end(pattern, at, stop)
                if end:
                    yield at, end - 1

    def _end(self, pattern: list[str], at: int, stop: int) -> int:
        for number, word in enumerate(pattern):
            if word == "...":
                ends = (*pattern[number + 1 : number + 2], ";", *_CLOSE)
                while at < stop and self.words[at] not in ends:
                    at = (self.close(at) if self.words[at] in _OPEN else at) + 1
            elif at < stop and self.words[at] == word:
                at += 1
            else:
                return 0
        return at

    def scopes(self, name: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Return the functions, lambdas and types of a name: from it to the end of the body."""
        for at in range(start + 1, stop):
            if self.words[at] == name:
                body = self._body(at)
                if body:
                    yield at, self.close(body)

    def _before_attributes(self, at: int) -> str:
        depth = 0
        while at > 0:
            at -= 1
            depth += (self.words[at] in _CLOSE) - (self.words[at] in _OPEN)
            if depth <= 0 and self.words[at] != "[":
                break
        return self.words[at]

    def _body(self, at: int) -> int:
        """Return where the body opens that the name at a token defines, or 0."""
        words = self.words
        is_type = self._before_attributes(at) in ("struct", "class")
        at += 1
        if words[at : at + 2] == ["=", "["]:
            at = self.close(at + 1) + 1
        if not is_type and words[at] != "(":
            return 0
        has_initialisers = False
        while at < len(words) and words[at] not in (";", "=", ")", "}"):
            is_initialiser = has_initialisers and re.match(r"\w|>", words[at - 1])
            has_initialisers = has_initialisers or (words[at] == ":" and words[at - 1] == ")")
            if words[at] == "{" and not is_initialiser:
                return at
            at = (self.close(at) if words[at] in _OPEN else at) + 1
        return 0


@functools.lru_cache(maxsize=16)
def source_of(text: str) -> Source:
    """Return the tokens of a text, and where they lie."""
    found = [one for one in _TOKEN.finditer(text) if one["comment"] is None]
    return Source([_word(one[0]) for one in found], [one.span() for one in found])


def _word(token: str) -> str:
    if not token.startswith("#"):
        return token
    return " ".join(without_comments(token.replace("\\\n", " ")).split())


def tokens_of(text: str) -> list[str]:
    """Return the tokens of a text."""
    return source_of(text).words


def _pattern(text: str) -> list[str]:
    parts = re.split(r"(\.\.\.)", text)
    return [word for part in parts for word in ([part] if part == "..." else source_of(part).words)]


@dataclass(frozen=True, slots=True)
class Edit:
    """``new`` in place of the tokens ``old``, in which ``...`` stands for any with whole brackets.

    They occur once in ``within``, a function, lambda or type ("Ring::init"), or in all of the text.
    ``nth`` counts from 1 where they occur more often; `EVERY` replaces all. ``@@`` in ``new`` is
    the text found.
    """

    old: str
    new: str
    within: str = ""
    nth: int = 0

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where the text is replaced."""
        spans = source_of(text).spans
        return [(spans[first][0], spans[last][1]) for first, last in self.places(text)]

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return the numbers of the first and the last token of what is replaced."""
        if any(one["comment"] for one in _TOKEN.finditer(self.old)):
            raise ValueError(f"{self.old!r} has a comment; an edit is found by tokens alone")
        source, pattern = source_of(text), _pattern(self.old)
        scopes = [(0, len(source.words))]
        for name in filter(None, self.within.split("::")):
            scopes = [inner for start, stop in scopes for inner in source.scopes(name, start, stop)]
        found = sorted({one for scope in scopes for one in source.matches(pattern, *scope)})
        if (self.nth == 0 and len(found) != 1) or len(found) < max(self.nth, 1):
            raise ValueError(f"{self.old!r} occurs {len(found)} times in {self.within or 'text'}")
        return found if self.nth <= 0 else [found[self.nth - 1]]


def without(old: str, within: str = "", nth: int = 0) -> Edit:
    """Return an edit that deletes the tokens."""
    return Edit(old, "", within, nth)


def before(old: str, added: str, within: str = "", nth: int = 0) -> Edit:
    """Return an edit that adds code before the tokens."""
    return Edit(old, f"{added} @@", within, nth)


def after(old: str, added: str, within: str = "", nth: int = 0) -> Edit:
    """Return an edit that adds code after the tokens."""
    return Edit(old, f"@@ {added}", within, nth)


def exchanged(first: str, second: str, within: str = "", nth: int = 0) -> Edit:
    """Return an edit that exchanges two neighbouring pieces of code."""
    return Edit(f"{first} {second}", f"{second} {first}", within, nth)


def edited(text: str, edits: Iterable[Edit], begin: int = 0, end: int | None = None) -> str:
    """Return the text, or a part of it, with the edits that lie there.

    All find their places in the unchanged text.
    """
    places = [(span, edit.new) for edit in edits for span in edit.spans(text)]
    parts, done = [], len(text) if end is None else end
    for (start, stop), new in sorted(places, reverse=True):
        if begin <= start < done:
            if stop > done:
                raise ValueError(f"{new!r} replaces code that another edit replaces")
            old, new = text[start:stop], new.replace("@@", text[start:stop])
            # Other lines keep their numbers.
            parts += [text[stop:done], "\n" * (old.count("\n") - new.count("\n")) + new]
            done = start
    return "".join(reversed([*parts, text[begin:done]]))


@dataclass(frozen=True, slots=True)
class Defect:
    """Edits of a kernel, or a mistake of the ``host``, and the report that they cause.

    ``reported`` has several classes where the order of the threads decides, and with
    ``some_orders`` other orders end without a report. ``says`` is a pattern for the words: the
    barrier, the rule or the remedy. ``line`` is part of a line that the report names. ``debug``
    builds with checks.
    """

    kernel: str
    name: str
    edits: tuple[Edit, ...]
    reported: tuple[type[Exception], ...] = ()
    says: str = ""
    line: str = ""
    kind: str = ""
    some_orders: bool = False
    debug: bool = False
    host: Callable[[Any], Any] | None = None

    @property
    def key(self) -> str:
        """The name that is unique within a home."""
        return f"{self.kernel}: {self.name}"

    def plant(self, text: str) -> str:
        """Return the kernel's text with the defect."""
        return edited(text, self.edits)


def defects(kernel: str, *rows: tuple[Any, ...]) -> tuple[Defect, ...]:
    """Return the defects of rows: name, edit or edits, classes and pattern."""
    return tuple(
        Defect(kernel, name, (edit,) if isinstance(edit, Edit) else edit, *expected)
        for name, edit, *expected in rows
    )


def lines_named(text: str, report: str) -> list[str]:
    """Return the lines of a kernel that a report names."""
    lines = text.splitlines()
    numbers = map(int, re.findall(r"kernel\.cu:(\d+)", report))
    return [lines[number - 1].strip() for number in numbers if number <= len(lines)]
