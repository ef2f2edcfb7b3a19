"""Write the reference of device headers, in reStructuredText: arguments are headers or folders.

`docs/conf.py` calls it when the documentation is built. A header's section shows the comment before
its namespace, and every public declaration with the comment before it. Private members,
specialisations without a comment and bodies of functions are left out.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[1] / "kernels" / "include"

_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*)
    | (?P<directive>^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)
    | (?P<literal>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<blank>\n(?:[ \t]*\n)+)
    | (?P<space>\s+)
    | (?P<word>\w+)
    | (?P<mark>.)
    """,
    re.VERBOSE | re.MULTILINE,
)
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
# Specifiers that do not matter to a caller, or that Sphinx does not parse.
_IGNORED = re.compile(
    r"\b(?:__device__|__forceinline__|__host__|__noinline__|inline)\b ?"
    r"|\balignas\((?:[^()]|\([^()]*\))*\) ?|\[\[(?:noreturn|nodiscard)\]\] ?"
)
_SCOPE = re.compile(r"(?P<kind>namespace|struct|class|enum class|enum) (?P<rest>.*)")
_FUNCTION_HEAD = re.compile(r"\)(?: const)?(?: noexcept)?(?P<members> : .*)?$")
_CALLED = re.compile(r"(operator\W+|\w+) ?\(")
_SECTION = re.compile(r"^--- (.*?) -+$")
_MANY_OVERLOADS = 8


@dataclass(frozen=True)
class Declaration:
    """A public declaration, or a comment that stands by itself (kind ``text`` or ``section``)."""

    kind: str
    text: str
    comment: str = ""
    members: tuple[Declaration, ...] = ()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def declarations(source: str) -> tuple[Declaration, ...]:
    """Return the declarations of a header, in order; a namespace has members."""
    return _Reader(source).scope()


class _Reader:
    def __init__(self, source: str) -> None:
        tokens = (_Token(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(source))
        self._tokens = list(_first_branches(tokens))
        self._position = 0

    def scope(self, *, is_public: bool = True) -> tuple[Declaration, ...]:
        """Read the public declarations up to the brace that closes the scope."""
        found: list[Declaration] = []
        comment: list[str] = []
        while (token := self._next()) is not None and token.text != "}":
            if token.kind == "comment":
                comment.append(token.text.removeprefix("//").removeprefix(" "))
            elif token.kind == "blank":
                found += _free_standing(comment)
                comment = []
            elif token.text in ("public", "protected", "private") and self._peek() == ":":
                is_public = token.text == "public"
            elif token.kind in ("word", "literal") or token.text in ("[", "~"):
                declared = self._declaration(token, "\n".join(comment))
                comment = []
                if is_public and declared is not None:
                    found.append(declared)
        return tuple(found)

    def _declaration(self, first: _Token, comment: str) -> Declaration | None:
        self._position -= 1
        head = self._head()
        named = _IGNORED.sub("", _without_template(head))
        scope = _SCOPE.match(named)
        members: tuple[Declaration, ...] = ()
        if self._peek(-1) == "{" and scope:
            kind, text = scope["kind"], _template(head) + scope["rest"]
            is_enum = kind.startswith("enum")
            members = self._enumerators() if is_enum else self.scope(is_public=kind != "class")
        else:
            kind, text = _kind(named), _IGNORED.sub("", head)
            comment = self._trailing_comment() or comment
        if kind == "" or (head.startswith("template <>") and not comment):
            return None
        return Declaration(kind, _signature(kind, text), comment, members)

    def _enumerators(self) -> tuple[Declaration, ...]:
        names = self._block()[:-1].split(",")
        return tuple(Declaration("enumerator", " ".join(n.split())) for n in names if n.strip())

    def _head(self) -> str:
        """Read a declaration up to its semicolon or the brace of its scope; skip its body."""
        text = ""
        while (token := self._next()) is not None and token.text != ";":
            if token.text == "{":
                if _SCOPE.match(_IGNORED.sub("", _without_template(text.strip()))):
                    break
                block = token.text + self._block()
                if text.strip() == 'extern "C"':
                    break
                if function := _FUNCTION_HEAD.search(text.strip()):
                    self._skip_body(starts_with_members=bool(function["members"]))
                    break
                text += block
            elif token.text in _CLOSED_BY:
                text += token.text + self._block(_CLOSED_BY[token.text])
            elif token.kind not in ("comment", "directive"):
                text += " " if token.kind in ("space", "blank") else token.text
        return " ".join(text.split())

    def _skip_body(self, *, starts_with_members: bool) -> None:
        """Skip the rest of a function whose first block in braces was read."""
        while starts_with_members and self._peek() in ("{", ","):
            while (token := self._next()) is not None and token.text != "{":
                pass
            self._block()

    def _block(self, closed_by: str = "}") -> str:
        """Read up to and including the bracket that closes the last one."""
        text = ""
        while (token := self._next()) is not None:
            if token.kind in ("comment", "directive"):
                continue
            text += " " if token.kind in ("space", "blank") else token.text
            if token.text == closed_by:
                break
            if token.text in _CLOSED_BY:
                text += self._block(_CLOSED_BY[token.text])
        return text

    def _trailing_comment(self) -> str:
        """Read the comment that ends the current line."""
        rest = self._tokens[self._position : self._position + 2]
        if [token.kind for token in rest] != ["space", "comment"] or "\n" in rest[0].text:
            return ""
        self._position += 2
        return rest[1].text.removeprefix("//").strip()

    def _next(self) -> _Token | None:
        if self._position == len(self._tokens):
            return None
        self._position += 1
        return self._tokens[self._position - 1]

    def _peek(self, offset: int = 0) -> str:
        """Look at the next word or mark, or at the last one."""
        position = self._position + offset
        while 0 <= position < len(self._tokens) and self._tokens[position].kind in (
            "space",
            "blank",
        ):
            position += 1
        return self._tokens[position].text if position < len(self._tokens) else ""


def _free_standing(comment: Sequence[str]) -> Iterator[Declaration]:
    lines = [line for line in comment if not line.startswith("clang-format")]
    if not lines:
        return
    section = _SECTION.match(lines[0])
    yield Declaration("section", section[1]) if section else Declaration("text", "\n".join(lines))


def _first_branches(tokens: Iterable[_Token]) -> Iterator[_Token]:
    """Drop the branches of #else and #elif, which declare the same names again."""
    skipped = [False]  # of the file, and of each #if that is open
    for token in tokens:
        directive = token.text.strip(" \t#") if token.kind == "directive" else ""
        if directive.startswith("if"):
            skipped.append(skipped[-1])
        elif directive.startswith("el"):
            skipped[-1] = True
        elif directive.startswith("endif"):
            skipped.pop()
        if not skipped[-1]:
            yield token


def _kind(head: str) -> str:
    """Return what kind of thing a head declares; empty if a reference does not show it."""
    if head.startswith(("static_assert", "friend", "extern", "class ")):
        return ""  # Only the definition of a class, which is a scope, is shown.
    if re.match(r"\w+\(.*\) -> ", head):
        return ""  # A deduction guide: its struct is shown.
    if head.startswith("using"):
        return "type" if " = " in head else ""
    if head.startswith(("struct ", "enum ")):
        return "struct" if head.startswith("struct ") else "enum"
    return "function" if "(" in head.partition(" = ")[0] else "member"


def _signature(kind: str, text: str) -> str:
    template = _template(text).replace("< ", "<", 1)
    bare = _without_template(text)
    if kind == "function":
        bare = re.sub(r"(\)(?: const)?) : .*$", r"\1", bare)
    bare = re.sub(r"^(?:using|struct) ", "", bare)
    return (template + bare).replace("( ", "(").replace(" )", ")")


def _template(head: str) -> str:
    """Return the ``template <...>`` before a declaration with a trailing space, or nothing."""
    if not head.startswith("template <"):
        return ""
    angles = parentheses = 0
    for index, letter in enumerate(head):
        parentheses += (letter == "(") - (letter == ")")
        if parentheses == 0:
            angles += (letter == "<") - (letter == ">")
            if letter == ">" and angles == 0:
                return head[: index + 1] + " "
    return ""


def _without_template(head: str) -> str:
    return head[len(_template(head)) :]


# --- as text --------------------------------------------------------------------------------------


def reference(name: str) -> str:
    """Return a section for a header, or for each header of a folder, of the include path."""
    return "\n".join(header_text(path) for path in headers(name))


def headers(name: str) -> list[Path]:
    """List a header of the include path, or all headers of a folder such as ``tmaasync/ptx``."""
    path = INCLUDE / name
    return [path] if path.is_file() else sorted(path.glob("*.cuh"))


def header_text(path: Path) -> str:
    """Return the section of one header."""
    title = f"``<{path.relative_to(INCLUDE).as_posix()}>``"
    lines = [title, "-" * len(title), ""]
    for declared in declarations(path.read_text()):
        lines += _lines(declared)
    return "\n".join(lines) + "\n"


def _lines(declared: Declaration) -> Iterator[str]:
    if declared.kind == "text":
        yield from (*_paragraphs(declared.text), "")
    elif declared.kind == "section":
        yield from (f".. rubric:: {_escaped(declared.text)}", "")
    elif declared.kind == "namespace":
        yield from _paragraphs(declared.comment)
        yield from ("", f".. cpp:namespace:: {declared.text}", "")
        yield from _members(declared)
    else:
        directive = "enum-class" if declared.kind == "enum class" else declared.kind
        yield from (f".. cpp:{directive}:: {declared.text}", "")
        body = [*_paragraphs(declared.comment), "", *_members(declared)]
        yield from (f"   {line}" if line else "" for line in body)


def _members(scope: Declaration) -> Iterator[str]:
    names = Counter(map(_name, scope.members))
    shown: set[str] = set()
    for member in scope.members:
        name = _name(member)
        if names[name] <= _MANY_OVERLOADS:
            yield from _lines(member)
        elif name not in shown:
            shown.add(name)
            more = f"One of {names[name]} overloads of this name."
            yield from _lines(replace(member, comment=f"{member.comment}\n\n{more}".strip()))


def _name(declared: Declaration) -> str:
    """Return the name of a function, or the text of anything else without its value."""
    bare = _without_template(declared.text)
    called = _CALLED.search(bare) if declared.kind == "function" else None
    return called[1] if called else bare.partition(" = ")[0]


def _paragraphs(comment: str) -> Iterator[str]:
    """Split a comment into paragraphs; indented lines are kept as they are."""
    was_drawn = False
    for line in comment.splitlines():
        is_drawn = line.startswith("  ")
        if is_drawn and not was_drawn:
            yield from ("", "::", "")
        elif was_drawn and not is_drawn:
            yield ""
        yield line if is_drawn else _escaped(line)
        was_drawn = is_drawn


def _escaped(line: str) -> str:
    """Escape markup, and keep `code` as code."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([\\*_|`])", r"\\\1", line)
    for number, part in enumerate(parts):
        parts[number] = f"``{part}``" if number % 2 else re.sub(r"([\\*_|])", r"\\\1", part)
    return "".join(parts)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(reference(name))
