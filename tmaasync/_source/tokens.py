"""Tokens and comments of CUDA C++ and PTX, for the facts that are read before a compilation."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

_STRING = r'R"(?P<end>[^()\\\s"]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"'
TOKEN = re.compile(
    rf"""(?P<gap>\s+|\\\n|{COMMENT.pattern}|\[\[[^\]]*\]\]|\#[ \t]*include\b[^\n]*)
    |(?P<string>{_STRING})
    |(?P<letter>'(?:\\.|[^'\\\n])+')
    |(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)
    |(?P<word>[\w$]+)
    |(?P<sign>::|->|.)""",
    re.DOTALL | re.VERBOSE,
)
_STRING_OR_COMMENT = re.compile(rf"({_STRING}|'\"')|{COMMENT.pattern}", re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Token(NamedTuple):
    """A name, number, string or sign, and where it lies in the text.

    Of the signs of several characters only ``::`` and ``->`` are one token, so that ``>>`` closes
    two templates.
    """

    text: str
    start: int
    end: int


@functools.lru_cache(maxsize=32)
def tokens(text: str) -> tuple[Token, ...]:
    """Return the tokens of a text; includes, comments and [[attributes]] are none.

    >>> words(tokens("f<g<2>>(1'000.5, '(', /* ) */ x); // ..."))[:7]
    ['f', '<', 'g', '<', '2', '>', '>']
    """
    found = TOKEN.finditer(text)
    return tuple(Token(one[0], one.start(), one.end()) for one in found if one["gap"] is None)


def without_comments(text: str) -> str:
    r"""Return a source with a space for each comment; its lines keep their numbers.

    >>> without_comments('f("//x"); /* one\ntwo */ g();  // three')
    'f("//x");  \n g();   '
    """
    return _STRING_OR_COMMENT.sub(lambda one: one[1] or " " + "\n" * one[0].count("\n"), text)


def words(code: Iterable[Token]) -> list[str]:
    """Return the texts of tokens."""
    return [token.text for token in code]


def spelled(code: Sequence[Token]) -> str:
    """Return the tokens on one line, with a space where the text has one, a comment or a line end.

    >>> spelled(tokens("const  float* /* rows */ x"))
    'const float* x'
    """
    return "".join(
        token.text if token.start == before.end else f" {token.text}"
        for before, token in zip((*code[:1], *code), code, strict=False)
    ).lstrip()


def joined(code: Iterable[str]) -> str:
    """Return words in the one spelling that a type has, with spaces between names alone.

    >>> joined(["unsigned", "long", "*", "const"]), joined(["Box", "<", "8", ",", "32", ">"])
    ('unsigned long*const', 'Box<8,32>')
    """
    text = ""
    for word in code:
        is_apart = text[-1:].isidentifier() and word[0].isidentifier()
        text += f" {word}" if is_apart else word
    return text


def closing(code: Sequence[Token], at: int) -> int:
    """Return the index of the bracket that closes the one at an index; the length if none does.

    >>> closing(tokens("<(a > b), c<d>> x"), 0)
    11
    """
    bracket = code[at].text
    close = _CLOSING[bracket]
    at += 1
    while at < len(code) and code[at].text != close:
        inner = code[at].text
        if inner in _CLOSING and (inner != "<" or bracket == "<"):
            at = closing(code, at)
        at += 1
    return min(at, len(code))


def parts(code: Sequence[Token], at: int) -> list[Sequence[Token]]:
    """Return what stands between the commas of the bracket at an index.

    >>> [spelled(part) for part in parts(tokens("(Box<8, 32> a, int b = f(1, 2))"), 0)]
    ['Box<8, 32> a', 'int b = f(1, 2)']
    """
    end = closing(code, at)
    begin = at = at + 1
    found = []
    while at < end:
        if code[at].text == ",":
            found.append(code[begin:at])
            begin = at + 1
        elif code[at].text in _CLOSING:
            at = min(closing(code, at), end)
        at += 1
    return [part for part in (*found, code[begin:end]) if part]


def at_commas(text: str) -> Iterator[str]:
    """Yield what stands between the commas of a text that no bracket encloses.

    >>> list(at_commas("%r1, [%rd2, {%r3, %r4}]"))
    ['%r1', '[%rd2, {%r3, %r4}]']
    """
    depth, start = 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    if last := text[start:].strip():
        yield last
