"""The types and variables that CUDA C++ declares, as far as tokens tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tmaasync._source.tokens import Token, closing, words

Code = Sequence[Token]


class Declared(NamedTuple):
    """The words of a declared type, without ``[]``, and the name; both empty for macros."""

    kind: list[str]
    name: str
    is_array: bool


_ATTRIBUTES = ("__grid_constant__", "__restrict__", "__restrict", "volatile", "struct")


def declared(texts: list[str]) -> Declared:
    """Return what a parameter or variable is declared as.

    >>> declared(["const", "float", "*", "x", "=", "0"])
    Declared(kind=['const', 'float', '*'], name='x', is_array=False)
    """
    code = texts[: texts.index("=")] if "=" in texts else texts
    if "(" in code or "#" in code:
        return Declared([], "", is_array=False)
    code = [word for word in code if word not in _ATTRIBUTES]
    is_array = "[" in code
    code = code[: code.index("[")] if is_array else code
    is_named = len(code) > 1 and code[-1].isidentifier() and code[-2] != "::"
    return Declared(code[:-1], code[-1], is_array) if is_named else Declared(code, "", is_array)


_ALIGNMENTS = ("alignas", "__align__")


def variables(code: Code, spaces: Sequence[str]) -> Iterator[tuple[Declared, int]]:
    """Yield the variables in these memory spaces, each with the index of the sign after it.

    Several variables of one declaration are one variable of no name.
    """
    for at, token in enumerate(code):
        if token.text in spaces:
            end = end_of(code, at, ";={")
            texts = words(code[at:end])
            for word in _ALIGNMENTS:
                if word in texts:
                    del texts[texts.index(word) : texts.index(")") + 1]
            yield declared([one for one in texts if not one.endswith("__")]), end


def end_of(code: Code, at: int, signs: str) -> int:
    """Return the index of the first of the signs after an index, outside of brackets before it."""
    while at < len(code) and code[at].text not in signs:
        at = closing(code, at) if code[at].text in ("(", "[") else at
        at += 1
    return min(at, len(code))


def named_types(code: Code) -> Iterator[tuple[str, Code]]:
    """Yield the names that ``using`` and ``typedef`` define, each with its type.

    The type is empty if it depends on the arguments of a template.
    """
    for at, (word, _, _) in enumerate(code):
        if word == "typedef":
            end = end_of(code, at, ";")
            yield code[end - 1].text, code[at + 1 : end - 1]
        elif word == "using" and words(code[at + 2 : at + 3]) == ["="]:
            is_template = at > 0 and code[at - 1].text == ">"
            yield code[at + 1].text, () if is_template else code[at + 3 : end_of(code, at, ";")]
