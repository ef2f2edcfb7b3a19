"""The ``__global__`` functions that a source declares, and the names that hosts have for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tmaasync._comments import without_comments
from tmaasync.errors import ArgumentError

__all__ = [
    "check_entry",
    "declaring_text",
    "entry_names",
    "expression_of",
    "function_name",
    "template_of",
]

_BOUNDS = re.compile(
    r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\((?:[^()]|\([^()]*\))*\)"
)
_ENTRY = re.compile(r"__global__[^;(){}]*?(\w+)\s*\(")
_TEMPLATE = re.compile(r"\btemplate\s*<")
_GLOBAL_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+[^\n]*\b__global__\b", re.MULTILINE
)


def entry_names(text: str) -> tuple[str, ...]:
    """Return the ``__global__`` functions that the text defines.

    >>> entry_names('extern "C" __global__ void __launch_bounds__(32, 1) f(int x) {}')
    ('f',)
    """
    return tuple(dict.fromkeys(_ENTRY.findall(_bare(text))))


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
    macros = "|".join(dict.fromkeys(macro for one in texts for macro in _GLOBAL_MACRO.findall(one)))
    for one in texts:
        if function not in one:
            continue
        spelled = re.sub(rf"\b(?:{macros})\b", "__global__", one) if macros else one
        if function in entry_names(spelled):
            return spelled
    return text


def check_entry(text: str, source_name: str, name: str) -> None:
    """Check that the text has the function, and that a template comes with its arguments.

    Raises:
        ArgumentError: With the functions that there are.
    """
    names, function = entry_names(text), function_name(name)
    if function not in names:
        known = ", ".join(names) or "none"
        raise ArgumentError(
            f"name is {name!r}; {source_name} has no __global__ function of that name. "
            f"It has: {known}."
        )
    parameters = template_of(text, function)
    if parameters is not None and "<" not in name:
        raise ArgumentError(
            f"name is {name!r}; {source_name} declares it as template <{parameters}>. Name an "
            f"instance: '{name}<...>' with a value for each parameter."
        )


def expression_of(text: str, name: str) -> str:
    """Return the name if the compiler has to look it up, else an empty text.

    A function with C linkage has its own name in the machine code. Instances of templates, and
    functions that are not ``extern "C"``, have others.
    """
    if name != function_name(name):
        return name
    bare = _bare(text)
    declared = rf"__global__[^;(){{}}]*?\b{re.escape(name)}\s*\("
    if not re.search(declared, bare):  # a header may declare it
        return ""
    is_c = rf'extern\s*"C"[^;{{}}]*{declared}|extern\s*"C"\s*{{.*{declared}'
    return "" if re.search(is_c, bare, re.DOTALL) else name


def template_of(text: str, function: str) -> str | None:
    """Return the parameters of a ``__global__`` template, as written; None if it is no template."""
    bare = without_comments(text)
    for head in _TEMPLATE.finditer(bare):
        end = _closing_angle(bare, head.end())
        declared = re.match(
            rf"[^;{{}}]*?__global__[^;{{}}]*?\b{re.escape(function)}\s*\(", bare[end + 1 :]
        )
        if declared and not _TEMPLATE.search(declared[0]):
            return " ".join(bare[head.end() : end].split())
    return None


def _closing_angle(text: str, start: int) -> int:
    angles, brackets = 1, 0
    for found in re.finditer(r"[<>()]", text[start:]):
        brackets += {"(": 1, ")": -1}.get(found[0], 0)
        angles += {"<": 1, ">": -1}.get(found[0], 0) if brackets == 0 else 0
        if angles == 0:
            return start + found.start()
    return len(text)


def _bare(text: str) -> str:
    return _BOUNDS.sub("", without_comments(text))
