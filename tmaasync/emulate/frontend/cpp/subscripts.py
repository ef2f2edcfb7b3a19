"""Accesses by a kernel's pointer parameter, as in ``scale[row]`` and ``*(scale + row)``.

Compiled code keeps no array with an address. But g++ gives a load the column of the subscript's
``]`` (in templates ``[``) or of the ``*``, the load of a struct that initialises a variable the
column of its name, and a store the column of the assignment, so that an instruction leads
to the text. A parameter is known in the whole kernel only if nothing there can give it another
array: no assignment, no reference, no second variable of its name. A local pointer is known if it
begins as a known one, as in ``const float* row = scale + 8;``. Other accesses are left out.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from tmaasync._source.entries import function_name
from tmaasync._source.tokens import Token, closing, parts, tokens, words
from tmaasync.emulate.line_table import line_tables

Places = Mapping[tuple[int, int], tuple[int, bool]]
"""For line and column (in bytes) a parameter's number, and whether the access is a store."""

_MARKER = re.compile(r'#\s*(?:line\s+)?(\d+)(?:\s+"((?:[^"\\]|\\.)*)")?[^\n]*')
_DEFINITION = re.compile(r"^[ \t]*#[ \t]*define\b(?:\\\n|[^\n])*", re.MULTILINE)
_QUALIFIERS = ("const", "volatile", "__restrict__", "__restrict", "restrict")
_STATEMENTS = ("return", "else", "do", "case", "co_return", "and", "or", "not")
_TYPES = ("void", "bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double")
_DIRECTIVES = ("if", "ifdef", "ifndef", "elif", "else", "define", "undef", "include")
# Signs before a parameter's name where it is no declaration.
_BEFORE = "(),={;}[+-*/<?:!&|%^~"
# Signs after it where it gets no new array: p[i], p + i, p += i, p->x, p ? a : b.
_AFTER = ("[", "+", "-", "->", "?")
_BEFORE_TARGETS = ("(", ")", ";", "{", "}", "=", ",", ":", "?", *_STATEMENTS)
_COMPOUND = "+-*/%&|^"


def places(text: str, name: str, file: str, macros: Sequence[str]) -> Places:
    """Return the places of the accesses by a kernel's parameters in the text to compile.

    Args:
        text: The text to compile, whose line markers name the source's own lines.
        name: The kernel.
        file: The source's name.
        macros: Texts whose macros may stand in the kernel; none if it is preprocessed.
    """
    own = _Lines(text, file)
    code = tokens(own.text)
    found = list(_definitions(code, function_name(name)))
    if len(found) != 1:
        return {}
    parameters, start, end = found[0]
    body = code[start:end]
    if _is_unknown(body):
        return {}
    defined = {word for one in macros for word in _words_of_macros(one)}
    pointers = {
        known: number
        for number, parameter in enumerate(parameters)
        if (known := _pointer(parameter)) and known not in defined and _keeps(body, known)
    }
    pointers = _with_copies(body, pointers)
    accesses = (*_subscripts(body), *_dereferences(body))
    return {
        own.place(body[at].start): (pointers[pointer], is_store)
        for at, pointer, is_store in accesses
        if pointer in pointers and own.is_unique(body[at].start)
    }


def instructions(library: bytes, file: str, known: Places) -> list[tuple[int, int, int, int]]:
    """Return the ranges of a library's code at these places, by increasing address.

    Each has its first address, its end, the parameter's number, and 1 for a store.
    """
    if not known:
        return []
    found = []
    for table in line_tables(library):
        for rows in table.sequences():
            for row, after in pairwise(rows):
                access = known.get((row.line, row.column))
                if access and after.address > row.address and table.file_name(row.file) == file:
                    found.append((row.address, after.address, access[0], int(access[1])))
    return sorted(found)


class _Lines:
    """The lines of one file in a text of several, and their numbers."""

    def __init__(self, text: str, file: str) -> None:
        """Take the lines by the markers before them."""
        self._lines: list[str] = []
        self._numbers: list[int] = []
        number, is_own = 0, False
        for line in text.split("\n"):
            if line.startswith("#") and (marker := _MARKER.fullmatch(line)):
                number = int(marker[1])
                is_own = marker[2] == file if marker[2] is not None else is_own
                continue
            if is_own and line.strip():
                self._lines.append(line)
                self._numbers.append(number)
            number += 1
        self.text = "\n".join(self._lines)
        self._starts = list(accumulate((len(line) + 1 for line in self._lines), initial=0))
        self._counts = Counter(self._numbers)

    def place(self, offset: int) -> tuple[int, int]:
        """Return the line's number, and the column in bytes, from 1."""
        line = bisect.bisect_right(self._starts, offset) - 1
        before = self._lines[line][: offset - self._starts[line]]
        return self._numbers[line], len(before.encode(errors="surrogateescape")) + 1

    def is_unique(self, offset: int) -> bool:
        """Return whether no other line has the same number."""
        return self._counts[self.place(offset)[0]] == 1


def _definitions(
    code: Sequence[Token], name: str
) -> Iterator[tuple[list[Sequence[Token]], int, int]]:
    """Yield the parameters and the body's range of each function of this name."""
    for at, (token, after) in enumerate(pairwise(code)):
        if token.text == name and after.text == "(":
            brace = closing(code, at + 1) + 1
            if brace < len(code) and code[brace].text == "{":
                end = closing(code, brace)
                if end < len(code):
                    yield parts(code, at + 1), brace + 1, end


def _pointer(parameter: Sequence[Token]) -> str | None:
    """Return the name of a parameter that is declared with one ``*``, else None."""
    texts = [text for text in words(parameter) if text not in _QUALIFIERS]
    is_plain = texts.count("*") == 1 and not {"&", "[", "(", "=", "."} & set(texts)
    return texts[-1] if is_plain and len(texts) > 1 and texts[-2] == "*" else None


def _words_of_macros(text: str) -> Iterator[str]:
    for definition in _DEFINITION.findall(text):
        yield from re.findall(r"\w+", definition)


def _is_unknown(body: Sequence[Token]) -> bool:
    """Return whether a kernel has branches of the preprocessor, or names of unknown classes."""
    texts = [*words(body), "", ""]
    return any(
        (text == "#" and texts[at + 1] in _DIRECTIVES)
        or (text in ("struct", "class", "union") and ":" in texts[at + 1 : at + 3])
        or text in ("decltype", "typeof", "__typeof__")
        for at, text in enumerate(texts)
    )


def _keeps(body: Sequence[Token], name: str, declaration: int = -1) -> bool:
    """Return whether a name means the same pointer with the same array in the whole body."""
    texts = ["{", "{", "{", *words(body), "}", "}"]
    return all(
        _is_use(texts[at - 3 : at], texts[at + 1 : at + 3])
        for at, text in enumerate(texts)
        if text == name and at - 3 != declaration
    )


def _with_copies(body: Sequence[Token], pointers: Mapping[str, int]) -> dict[str, int]:
    """Return the known parameters, and the local pointers that begin as one of them."""
    known = dict(pointers)
    for at, token in enumerate(body):
        if token.text != "=" or not _is_pointer_declared(body, at - 1):
            continue
        name, source = body[at - 1].text, _origin(words(body[at + 1 : _end(body, at)]))
        if source in known and name not in known and _keeps(body, name, at - 1):
            known[name] = known[source]
    return known


def _is_pointer_declared(body: Sequence[Token], at: int) -> bool:
    """Return whether a name is declared here with one ``*`` after a type, or with ``auto``."""
    texts = ["{", "{", *words(body[max(0, at - 4) : at])]
    while texts[-1] in _QUALIFIERS:
        texts.pop()
    if texts[-1] != "*":
        return texts[-1] == "auto"
    before = texts[-2]
    is_type = before == ">" or (before.isidentifier() and before not in _STATEMENTS)
    return is_type and body[at].text.isidentifier()


def _end(body: Sequence[Token], at: int) -> int:
    """Return where the initialiser ends that begins after a token."""
    depth = 0
    for end in range(at + 1, len(body)):
        text = body[end].text
        if depth == 0 and text in (";", ",", ")"):
            return end
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
    return at + 1


def _origin(code: Sequence[str]) -> str:
    """Return the pointer that an initialiser takes, moved by elements; empty if it is not known.

    Known are ``p``, ``p + n``, ``p - n``, ``&p[n]``, and casts of one of them.
    """
    if code and code[0] in ("reinterpret_cast", "static_cast") and ">" in code:
        code = code[code.index(">") + 1 :]
    elif code and code[0] == "(" and "*" in code and list(code).index("*") + 1 == code.index(")"):
        code = code[code.index(")") + 1 :]
    if code and code[0] == "(" and code[-1] == ")":
        code = code[1:-1]
    if not code or {"?", "=", ",", "(", ")"} & set(code):
        return ""
    if code[0] == "&":
        return code[1] if code[2:3] == ["["] and code[-1] == "]" else ""
    return code[0] if code[1:2] in ([], ["+"], ["-"]) else ""


def _dereferences(body: Sequence[Token]) -> Iterator[tuple[int, str, bool]]:
    """Yield what `_subscripts` does for ``*p``, ``*p++`` and ``*(p + n)``."""
    for at, token in enumerate(body[:-2]):
        before = body[at - 1].text if at else "{"
        if token.text != "*" or not (before in _BEFORE or before in _STATEMENTS):
            continue
        name, end = _operand(body, at + 1)
        is_target = before in _BEFORE_TARGETS and _is_assignment(body[end : end + 3])
        is_factor = before == ")" and not is_target
        if not name or is_factor:
            continue
        yield at, name, False
        if words(body[end : end + 1]) == [";"]:
            yield from _initialised(body, at - 1, name)
        if is_target:
            yield end, name, True


def _operand(body: Sequence[Token], at: int) -> tuple[str, int]:
    """Return the pointer that a ``*`` before a token reads, empty if unknown, and what follows."""
    name, end = body[at].text, at + 1
    if name == "(":
        end = closing(body, at) + 1
        name = _origin(words(body[at + 1 : end - 1]))
    elif words(body[at + 1 : at + 3]) in (["+", "+"], ["-", "-"]):
        end = at + 3
    is_more = words(body[end : end + 1]) in (["["], ["("], ["."], [":"])
    return ("" if is_more or not name.isidentifier() else name), end


def _is_use(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether a name between these words can be no declaration and gets no new array."""
    first, second, last = before
    if last in (".", "->", *_STATEMENTS):  # a member of something else, or an expression
        return True
    if last not in (*_BEFORE,):  # a type, or ::
        return False
    if after[0] == "[":
        # `float* scale[4];` declares; `x = a * scale[4];` reads.
        is_declared = second in (*_TYPES, "const", ">") or first in ("{", ";", "}", "const")
        return last != "*" or not is_declared
    if after[0] in _AFTER:
        return last != "&"
    is_copied = last == "=" and after[0] == ";"  # `const float* row = scale;` is no reference
    is_declared = after[0] == ")" and after[1] in ("[", "(")  # int (*p)[4];
    is_read = last == "*" and second in "({};[=+-/<?:!&|" and not is_declared  # x = *p;
    if is_copied or is_read:
        return is_read or first == "*"
    # Compared with something, or cast: (scale == nullptr), if (scale), reinterpret_cast<T>(scale).
    is_alone = last == "(" and after[0] == ")"
    return after in (["=", "="], ["!", "="]) or (is_alone and second in ("if", ">"))


def _subscripts(body: Sequence[Token]) -> Iterator[tuple[int, str, bool]]:
    """Yield for each load and store by a subscript its token, the pointer's name, and its kind."""
    opened: list[int] = []
    for at, token in enumerate(body):
        if token.text == "[":
            opened.append(at)
        elif token.text == "]" and opened:
            begin = opened.pop()
            if begin == 0 or (begin > 1 and body[begin - 2].text in (".", "->", "::")):
                continue
            name = body[begin - 1].text
            yield at, name, False
            yield begin, name, False
            if words(body[at + 1 : at + 2]) == [";"]:
                yield from _initialised(body, begin - 2, name)
            is_target = begin < 2 or body[begin - 2].text in _BEFORE_TARGETS
            if is_target and _is_assignment(body[at + 1 : at + 4]):
                yield at + 1, name, True


def _initialised(body: Sequence[Token], at: int, name: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the variable and the sign of ``x = p[n];``: a load may have the column of either."""
    is_sign = at > 1 and body[at].text == "=" and body[at - 1].text.isidentifier()
    if is_sign and body[at - 2].text not in (".", "->", "::"):
        yield at - 1, name, False
        yield at, name, False


def _is_assignment(after: Sequence[Token]) -> bool:
    """Return whether ``=`` or ``+=`` and the like follow."""
    signs = [*words(after), "", "", ""]
    if signs[0] == "=":
        return signs[1] != "=" or after[1].start != after[0].end
    is_one = len(after) > 1 and after[1].start == after[0].end
    return signs[0] != "" and signs[0] in _COMPOUND and signs[1] == "=" and is_one
