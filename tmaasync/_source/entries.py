"""The ``__global__`` functions that a source declares, and the names that hosts have for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tmaasync._source.tokens import Token, closing, parts, spelled, tokens, words
from tmaasync.errors import ArgumentError


class Declaration(NamedTuple):
    """A declaration of a ``__global__`` function: its name, its parameters, and its template's.

    ``start`` is the position of the name in the text; ``template`` is None for a function that is
    no template. ``attributes`` has the arguments of ``__launch_bounds__`` and the like.
    """

    name: str
    start: int
    parameters: list[Sequence[Token]]
    template: list[Sequence[Token]] | None
    attributes: dict[str, list[Sequence[Token]]]
    is_c: bool


def declarations(text: str) -> Iterator[Declaration]:
    """Yield the declarations of ``__global__`` functions."""
    code = tokens(text)
    c_ends = -1  # of an extern "C" block
    head = 0
    for at, (word, _, _) in enumerate(code):
        if word == "{" and words(code[at - 2 : at]) == ["extern", '"C"']:
            c_ends = max(c_ends, closing(code, at))
        if word in (";", "{", "}"):
            head = at + 1
        opening = _opening(text, code, at) if word == "__global__" else None
        if opening is not None:
            name = code[opening - 1]
            before = _without_directives(text, code[head:opening])
            yield Declaration(
                name.text,
                name.start,
                parts(code, opening),
                _template(before),
                _attributes(before),
                at < c_ends or '"C"' in words(before),
            )


# They end the search: brackets after them belong to no name.
_AFTER_PARAMETERS = (";", "{", "}", "#", "->", "noexcept", "requires")


def _opening(text: str, code: Sequence[Token], at: int) -> int | None:
    """Return the index of the parameter list's bracket: the last, after attributes and macros."""
    is_of_macro = _directive(text, code[at])
    found = None
    while at < len(code) and code[at].text not in _AFTER_PARAMETERS:
        if code[at].text == "(":
            name = code[at - 1].text
            if name.isidentifier() and not name.endswith("__"):
                found = at
                if is_of_macro:
                    break
            at = closing(code, at)
        at += 1
    return found


def _directive(text: str, token: Token) -> bool:
    """Return whether a token stands on the line of a preprocessor's directive."""
    return text[text.rfind("\n", 0, token.start) + 1 : token.start].lstrip().startswith("#")


def _without_directives(text: str, code: Sequence[Token]) -> Sequence[Token]:
    """Leave out the lines of directives, unless ``__global__`` stands on one: a macro's text."""
    own = [token for token in code if not (token.text == "#" or _directive(text, token))]
    return own if any(token.text == "__global__" for token in own) else code


def _template(head: Sequence[Token]) -> list[Sequence[Token]] | None:
    """Return the parameters of the last template that a declaration begins with."""
    texts = words(head)
    if "template" not in texts:
        return None
    return parts(head, len(texts) - texts[::-1].index("template"))


def _attributes(head: Sequence[Token]) -> dict[str, list[Sequence[Token]]]:
    return {
        name.text: parts(head, at)
        for at, (name, bracket) in enumerate(pairwise(head), 1)
        if bracket.text == "(" and name.text.endswith("__")
    }


def entry_names(text: str) -> tuple[str, ...]:
    """Return the ``__global__`` functions that the text defines.

    >>> entry_names('extern "C" __global__ void __launch_bounds__(32, 1) f(int x) {}')
    ('f',)
    """
    return tuple(dict.fromkeys(one.name for one in declarations(text)))


def function_name(name: str) -> str:
    """Return the function of a name expression, without its namespaces and template arguments.

    >>> function_name("layers::softmax<float, 128>")
    'softmax'
    """
    return name.partition("<")[0].rpartition("::")[2].strip()


def declaring_text(text: str, name: str, headers: Callable[[], Iterable[str]]) -> str:
    """Return the text that declares a kernel: the source, or one of its headers.

    Macros that stand for ``__global__``, such as CUTLASS_GLOBAL, are spelled out.
    """
    function = function_name(name)
    if function in entry_names(text):
        return text
    texts = (text, *headers())
    macros = {macro for one in texts if "__global__" in one for macro in _global_macros(one)}
    for one in texts:
        if function not in one:
            continue
        spelled_out = _with_global(one, macros)
        if function in entry_names(spelled_out):
            return spelled_out
    return text


def _global_macros(text: str) -> Iterator[str]:
    """Yield the macros whose line has ``__global__``."""
    code = tokens(text)
    for at, token in enumerate(code):
        if token.text == "__global__":
            line = text.rfind("\n", 0, token.start) + 1
            first = at
            while first and code[first - 1].start >= line:
                first -= 1
            if words(code[first : first + 2]) == ["#", "define"] and first + 2 < at:
                yield code[first + 2].text


def _with_global(text: str, macros: Iterable[str]) -> str:
    """Return a text with ``__global__`` in place of macros."""
    end, pieces = 0, []
    for token in tokens(text):
        if token.text in macros:
            pieces += [text[end : token.start], "__global__"]
            end = token.end
    return "".join(pieces) + text[end:]


def check_entry(text: str, source_name: str, name: str) -> None:
    """Check that the text has the function, and that a template comes with its arguments.

    Raises:
        ArgumentError: With the functions that there are.
    """
    names, function = entry_names(text), function_name(name)
    if function not in names:
        known = ", ".join(names) or "none"
        raise ArgumentError.broken(
            "name",
            f"{name!r}",
            f"{source_name} has no __global__ function of that name",
            f"It has: {known}",
        )
    parameters = template_of(text, function)
    if parameters is not None and "<" not in name:
        raise ArgumentError.broken(
            "name",
            f"{name!r}",
            f"{source_name} declares it as template <{parameters}>",
            f"Name an instance: '{name}<...>' with a value for each parameter",
        )


def expression_of(text: str, name: str) -> str:
    """Return the name if the compiler has to look it up, else an empty text.

    A function with C linkage has its own name in the machine code. Instances of templates, and
    functions that are not ``extern "C"``, have others.
    """
    if name != function_name(name):
        return name
    linkages = [one.is_c for one in declarations(text) if one.name == name]
    # Without a declaration, a header may declare it.
    return name if linkages and not any(linkages) else ""


def template_of(text: str, function: str) -> str | None:
    """Return the parameters of a ``__global__`` template, as written; None if it is no template."""
    found = (one.template for one in declarations(text) if one.name == function and one.template)
    return next((", ".join(map(spelled, template)) for template in found), None)
