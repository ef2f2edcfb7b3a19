"""The ``extern __shared__`` arrays of a source, by the names that they have in machine code."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["symbols_of_dynamic_arrays"]

_HIDDEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_TOKEN = re.compile(
    r"\bnamespace\b\s*(?P<namespace>[\w:\s]*)\{|(?P<open>\{)|(?P<close>\})"
    r"|\bextern\b[^;{}()]*\b__shared__\b[^;{}\[\]]*?(?P<array>\w+)\s*\[\s*\](?:\s*\[[^][]*\])*\s*;"
)


def symbols_of_dynamic_arrays(texts: Iterable[str]) -> tuple[str, ...]:
    """Return each array's symbol: a declaration in a function belongs to the namespace around it.

    >>> symbols_of_dynamic_arrays(["namespace a { void f() { extern __shared__ int x[]; } }"])
    ('_ZN1a1xE',)
    """
    symbols = (symbol for text in texts for symbol in _symbols(_HIDDEN.sub(" ", text)))
    return tuple(dict.fromkeys(symbols))


def _symbols(text: str) -> Iterable[str]:
    scopes: list[tuple[str, ...]] = []  # for each brace, the namespaces that it opens
    for token in _TOKEN.finditer(text):
        if token["array"]:
            yield _mangled([*(name for names in scopes for name in names), token["array"]])
        elif token["close"] and scopes:
            scopes.pop()
        elif not token["close"]:
            scopes.append(() if token["open"] else _namespaces(token["namespace"]))


def _namespaces(declared: str) -> tuple[str, ...]:
    names = (name.split()[-1] for name in declared.split("::") if name.strip())
    return tuple(names) or ("_GLOBAL__N_1",)


def _mangled(path: list[str]) -> str:
    if len(path) == 1:
        return path[0]
    return f"_ZN{''.join(f'{len(name)}{name}' for name in path)}E"
