"""Reduce the C++ compiler's log to the one error that matters to the kernel's author."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tmaasync._source.compile import Source, namespace_hint
from tmaasync._source.paths import header_of_names, include_dir
from tmaasync._source.tokens import tokens, without_comments, words

_ERROR = re.compile(
    r"^(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$"
)
_NEXT = re.compile(r"^\S[^:]*:(?:\d+:)* |^In (?:file included|function|member function)|^\s+from ")
# The rule of a static_assert, or of one of our functions that no kernel may call (g++, clang++).
_RULE = re.compile(
    r"(?:static assertion failed(?: due to requirement '.*')?"
    r"|declared with (?:attribute error|'error' attribute)): (.*)$"
)
# The instance of our template that states a rule: g++ reports it before the error, clang after it.
_INSTANCE = re.compile(r"[Ii]n instantiation of .*'(?:struct )?tmaasync::(StoredSide<[^']*>)")
# The use of a header's template: g++ reports it before the error, clang after it.
_USED = ("required from", "requested here", "in expansion of macro")
# The call of a header's function: g++ reports the calls before the error, the innermost first.
_CALLED = re.compile(r"^\s+inlined from '.*' at (?P<file>[^:]+):(?P<line>\d+)")


class _Missing(NamedTuple):
    """A CUDA feature that the CPU back end lacks, the beginnings of its names, and the remedy."""

    what: str
    names: tuple[str, ...]
    remedy: str


_WITHOUT_SYNC = ("shfl", "shfl_up", "shfl_down", "shfl_xor", "any", "all", "ballot")
_DIMENSIONS = ("1D", "2D", "3D", "Cubemap")
_MISSING = (
    _Missing(
        "textures",
        ("cudaTextureObject_t", *(f"tex{one}" for one in _DIMENSIONS)),
        "Read the array itself, load its tiles with TMA, or pass arrays on a GPU",
    ),
    _Missing(
        "surfaces",
        ("cudaSurfaceObject_t", *(f"surf{one}" for one in _DIMENSIONS)),
        "Access the array itself, store its tiles with TMA, or pass arrays on a GPU",
    ),
    _Missing(
        "kernels that launch kernels (dynamic parallelism)",
        ("<<<",),
        "Launch them from Python",
    ),
    _Missing(
        "warp functions without _sync, and no GPU since compute capability 7.0 has them",
        tuple(f"__{one}(" for one in _WITHOUT_SYNC),
        "Call the function of the same name that ends in _sync, with the mask of its lanes",
    ),
    _Missing(
        "matrix instructions of 1 and 4 bits",
        ("wmma::experimental", "bmma_sync"),
        "Use signed char, or pass arrays on a GPU",
    ),
)


class _Error(NamedTuple):
    """One error: file, line, text, and its line in the log."""

    file: str
    line: int
    text: str
    at: int

    @property
    def rule(self) -> str | None:
        """The message of a ``static_assert``, or of a function that no kernel may call."""
        found = _RULE.search(self.text)
        return None if found is None else found[1]


def refusal(
    source: Source, log: str, compiler: str, undefined: Sequence[str], folders: Sequence[Path]
) -> str:
    """Return one sentence with the line and the remedy, then the compiler's first error.

    Args:
        source: The compiled source.
        log: The compiler's output.
        compiler: The compiler's name.
        undefined: Names that the log reports as unknown.
        folders: The include path, which is removed from file names.
    """
    lines = log.strip().splitlines()
    if missing := _missing(source, log):
        return missing
    errors = tuple(_errors(lines))
    if not errors:
        return f"{source.name} does not compile ({compiler}):\n{log.strip()}"
    error = _decisive(source, errors)
    if source.expression and error.file.endswith((f"the entry of {source.name}", "/entry.hpp")):
        return (
            f"name is {source.expression!r}; {source.name} has no single __global__ function of "
            "this name: pass its namespaces too, and a value for each template parameter.\n"
            f"{compiler}: {error.text}"
        )
    place = _own_place(source, lines, errors, error)
    shown = "\n".join(_shown(lines, error))
    if instance := next(filter(None, map(_INSTANCE.search, lines)), None):
        shown += f"\nin {instance[1]}"
    for folder in folders:
        shown = shown.replace(f"{folder}/", "")
    where = f"{source.name}:{place}" if place else f"{Path(error.file).name}:{error.line}"
    words = (error.rule or error.text).rstrip(".")
    end = "" if words.endswith("?") else "."
    hint = _hint(source, error, tuple(dict.fromkeys(undefined)))
    return f"{source.name} does not compile, at {where}: {words}{end}{hint}\n{compiler}: {shown}"


def _missing(source: Source, log: str) -> str | None:
    """Return the first unsupported CUDA feature on a line that the log refers to."""
    for line, code in enumerate(source.text.splitlines(), 1):
        if not any(f"{source.name}:{line}{end}" in log for end in ":,"):
            continue
        texts = words(tokens(code))
        for missing in _MISSING:
            for at, word in enumerate(texts):
                using = "".join(texts[at : at + 3])
                name = next((one for one in missing.names if using.startswith(one)), None)
                if name is not None:
                    return (
                        f"{source.name}:{line} uses {max(word, name.rstrip('('), key=len)}: the "
                        f"CPU back end does not have {missing.what}. {missing.remedy}."
                    )
    return None


def _errors(lines: Sequence[str]) -> Iterator[_Error]:
    for at, line in enumerate(lines):
        found = _ERROR.match(line)
        if found is not None:
            yield _Error(found["file"], int(found["line"]), found["text"], at)


def _decisive(source: Source, errors: Sequence[_Error]) -> _Error:
    """Return the first error; among errors in headers, the first with a stated rule."""
    if errors[0].file == source.name:
        return errors[0]
    return next((error for error in errors if error.rule), errors[0])


def _own_place(
    source: Source, lines: Sequence[str], errors: Sequence[_Error], error: _Error
) -> int | None:
    """Return the line of the source that has the error, or that uses the code with the error."""
    if error.file == source.name:
        return error.line
    above = itertools.takewhile(bool, map(_CALLED.match, reversed(lines[: error.at])))
    calls = [int(one["line"]) for one in above if one and one["file"] == source.name]
    if calls:
        return calls[-1]
    after = next((other.at for other in errors if other.at > error.at), len(lines))
    candidates = (*reversed(lines[: error.at]), *lines[error.at : after])
    prefix = f"{source.name}:"
    for line in candidates:
        number = line.removeprefix(prefix).partition(":")[0]
        if line.startswith(prefix) and number.isdecimal() and any(one in line for one in _USED):
            return int(number)
    return None


def _shown(lines: Sequence[str], error: _Error) -> Iterator[str]:
    """Yield the error and the code below it."""
    yield lines[error.at]
    for line in lines[error.at + 1 :]:
        if _NEXT.match(line):
            return
        yield line


_NO_MEMBER = re.compile(r"'(\w+)' is not a member of 'tmaasync::(\w+)'")


def _enumerator_hint(text: str) -> str:
    """Name the enumerator of a library's enum that a kernel may mean, and all that there are."""
    found = _NO_MEMBER.search(text)
    header = None if found is None else header_of_names().get(found[2])
    if found is None or header is None:
        return ""
    definition = re.compile(rf"enum class {found[2]}\b[^{{;]*{{([^}}]*)}}")
    listed = definition.search(
        without_comments((include_dir() / header).read_text(encoding="utf-8"))
    )
    names = re.findall(r"(?:^|,)\s*(\w+)", listed[1]) if listed else []
    if not names:
        return ""
    bare = {name.lower().removeprefix("k"): name for name in names}
    wanted = found[1].lower().removeprefix("k")
    near = bare.get(wanted) or next(
        (bare[one] for one in bare if sorted(one) == sorted(wanted)), ""
    )
    meant = f"Did you mean {found[2]}::{near}? " if near else ""
    return f"\n{meant}{found[2]} has {', '.join(names)}."


def _hint(source: Source, error: _Error, undefined: Sequence[str]) -> str:
    if enumerators := _enumerator_hint(error.text):
        return enumerators
    if not {*undefined}.intersection(words(tokens(error.text.replace("'", " ")))):
        return ""  # the undefined names follow from another mistake
    hint, others = namespace_hint(source, undefined)
    pairs = set(pairwise(words(tokens(source.text))))
    called = [name for name in others if (name, "(") in pairs]
    supplied = [name for name in others if name not in called]
    if supplied:
        hint += (
            f"\nNot defined: {', '.join(supplied)}. If the host should supply one of them, pass "
            "types={'Name': tile} or constants={'NAME': value} to Kernel."
        )
    if called:
        hint += (
            f"\nNot defined: {', '.join(called)}. Include the header that declares it, or define "
            "it as a __device__ function. The CPU back end lacks some functions of CUDA: call "
            "another one there, or pass arrays on a GPU."
        )
    return hint
