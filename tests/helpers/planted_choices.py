"""One text with many defects, of which a launch has the one that a variable of the kernel names.

A defect becomes a choice where it replaces whole statements of a function that declare nothing.
Then a kernel is compiled once for all of them, and its debug information is read once. The others
stay texts of their own: `Defect.plant`.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec

import numpy as np
from planted import Defect, Edit, edited, source_of

from tmaasync import Kernel
from tmaasync.emulate.frontend.cpp.build import build
from tmaasync.errors import CompileError
from tmaasync.kernel.observed import SeenKernel
from tmaasync.kernel.variables import Variable

__all__ = ["Choices", "choices", "choosing"]

_Parameters = ParamSpec("_Parameters")

_NONE = -1
_SELECTOR = (
    f"__device__ int chosen_defect = {_NONE}; "
    '[[gnu::no_sanitize("thread")]] inline __device__ bool has_defect(int number) '
    "{ return chosen_defect == number; }\n"
    "#line 1\n"
)
_CONTROL = ("if", "for", "while", "switch")
_DECLARES = (
    *("auto", "case", "class", "const", "constexpr", "default", "else", "enum", "namespace"),
    *("private", "public", "static", "struct", "template", "typedef", "using"),
)
_MOST_WORDS = 120  # of a statement that each of its defects repeats


@dataclass(frozen=True, slots=True)
class Choices:
    """A text, and a text with a choice among its defects, as far as they can be chosen."""

    original: str
    text: str
    defects: tuple[Defect, ...]

    def text_with(self, defect: Defect | None) -> str:
        """Return the text of all choices, or one with a defect that cannot be chosen."""
        if defect is None or defect in self.defects:
            return self.text
        return defect.plant(self.original)

    def choose(self, kernel: Kernel, defect: Defect | None) -> None:
        """Have the kernel, of `text_with` this defect, run with it from now on; None is sound."""
        if defect is None or defect in self.defects:
            _selector_of(kernel).write(np.int32(self._number(defect)))

    def choose_in(self, kernels: Iterable[SeenKernel], defect: Defect | None) -> None:
        """Do the same where an operation made the kernels: `observe` has seen them."""
        for kernel in kernels:
            if kernel.source.text == self.text:
                library = build(kernel.source, kernel.name).library
                ctypes.c_int.in_dll(library, "chosen_defect").value = self._number(defect)

    def _number(self, defect: Defect | None) -> int:
        return _NONE if defect is None else self.defects.index(defect)

    def kernel(
        self,
        defect: Defect | None,
        name: str,
        types: Mapping[str, Any],
        constants: Mapping[str, Any],
    ) -> Kernel:
        """Return the kernel that runs with a defect; each text is built once."""
        kernel = _built(
            self.text_with(defect), name, *map(tuple, (types.items(), constants.items()))
        )
        self.choose(kernel, defect)
        return kernel

    @contextmanager
    def chosen(self, defect: Defect | None) -> Iterator[str]:
        """Yield the text with a defect, which kernels of `choosing` builders have meanwhile."""
        _CHOSEN.append((self, defect))
        try:
            yield self.text_with(defect)
        finally:
            _CHOSEN.pop()


_CHOSEN: list[tuple[Choices, Defect | None]] = []


def choosing(build: Callable[_Parameters, Kernel]) -> Callable[_Parameters, Kernel]:
    """Return a cached builder, whose kernels run with the defect of `Choices.chosen`."""
    cached: Callable[..., Kernel] = functools.cache(build)

    def built(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Kernel:
        kernel = cached(*args, **kwargs)
        for found, defect in _CHOSEN[-1:]:
            found.choose(kernel, defect)
        return kernel

    return built


@functools.cache
def _built(text: str, name: str, types: tuple[Any, ...], constants: tuple[Any, ...]) -> Kernel:
    return Kernel(text, name, types=dict(types), constants=dict(constants))


@functools.lru_cache(maxsize=32)
def _selector_of(kernel: Kernel) -> Variable:
    return kernel.variable("chosen_defect", device="cpu")


@functools.lru_cache(maxsize=32)
def choices(text: str, defects: tuple[Defect, ...]) -> Choices:
    """Return the text with a choice at every place of the defects that can be chosen."""
    statements, widened = Statements(text), dict[Defect, list[tuple[int, int]]]()
    for defect in defects:
        spans = [statements.around(*place) for edit in defect.edits for place in edit.places(text)]
        if spans and None not in spans and CompileError not in defect.reported:
            widened[defect] = [span for span in spans if span is not None]
    chosen = text
    for start, stop in reversed(_united(span for spans in widened.values() for span in spans)):
        parts = [
            f"if (has_defect({number})) {_block(text, defect.edits, start, stop)} else "
            for number, (defect, spans) in enumerate(widened.items())
            if any(start <= first < stop for first, _ in spans)
        ]
        others = f"{_block(text, (), start, stop)}\n#line {_line(text, stop)}\n{chosen[stop:]}"
        chosen = "".join((chosen[:start], *parts, others))
    return Choices(text, _SELECTOR + chosen, tuple(widened))


def _block(text: str, edits: Iterable[Edit], start: int, stop: int) -> str:
    """Return a part of the text with edits, as a block whose lines keep their numbers.

    A statement that depends on a condition may be gone: its place takes an empty one.
    """
    return f"{{\n#line {_line(text, start)}\n{edited(text, edits, start, stop)}\n;}}"


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _united(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans in order, those that overlap as one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


class Statements:
    """The statements of a text's functions."""

    def __init__(self, text: str) -> None:
        """Find every bracket's other one."""
        source = source_of(text)
        self._words, self._spans = source.words, source.spans
        self._close: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._around: list[int] = []  # the bracket around each word, or -1
        inside = [-1]
        for at, word in enumerate(self._words):
            if word in ")]}":
                opening = inside.pop()
                self._close[opening], self._open[at] = at, opening
            self._around.append(inside[-1])
            if word in "([{":
                inside.append(at)

    def around(self, first: int, last: int) -> tuple[int, int] | None:
        """Return the span of the statements that these words belong to.

        None where they declare something, are too long, or belong to no function that runs.
        """
        block = self._around[first]
        while block >= 0 and not self._is_block(block):
            first, block = block, self._around[block]
        if block < 0 or not self._is_function(block):
            return None
        start = self._start(first, block)
        end = start - 1
        while end < last:
            begin = end + 1
            stop = self._end(begin)
            if stop is None or self._declares(begin):
                return None
            end = stop
        is_short = end - start < _MOST_WORDS
        has_else = self._words[end + 1 : end + 2] == ["else"]
        return (self._spans[start][0], self._spans[end][1]) if is_short and not has_else else None

    def _is_block(self, opening: int) -> bool:
        """Return whether a bracket opens statements, and no arguments, values or members."""
        if self._words[opening] != "{":
            return False
        before = self._words[opening - 1]
        if before in (")", "else", "do", "{", "}", ";", "const", "noexcept", "mutable"):
            return True
        head = "".join(self._words[max(opening - 8, 0) : opening])
        return bool(re.search(r"->[\w:<>]+$", head))

    def _is_function(self, block: int) -> bool:
        """Return whether the statements run, and not while the text is compiled."""
        while block >= 0:
            start = self._start(block, self._around[block])
            head = self._words[start:block]
            if "constexpr" in head and head[0] not in _CONTROL:
                return False
            block = self._around[block]
            while block >= 0 and not self._is_block(block):
                block = self._around[block]
        return True

    def _start(self, at: int, block: int) -> int:
        """Return the first word of the statement of a block that a word belongs to."""
        while at - 1 > block:
            before = self._words[at - 1]
            if before == ";" or before.startswith("#"):
                break
            if before in (")", "]", "}"):
                opening = self._open[at - 1]
                if before == "}" and self._is_block(opening):
                    break
                at = opening
            else:
                at -= 1
        return at

    def _end(self, at: int) -> int | None:
        """Return the last word of the statement that begins at a word."""
        word = self._words[at]
        if word == "{":
            return self._close[at]
        if word in _CONTROL:
            condition = at + 1 + (self._words[at + 1] == "constexpr")
            end = self._end(self._close[condition] + 1)
            while word == "if" and end is not None and self._words[end + 1] == "else":
                end = self._end(end + 2)
            return end
        if word == "do" or word.startswith("#"):
            return None
        while self._words[at] != ";":
            if self._words[at] == "}":
                return None
            at = self._close.get(at, at) + 1
        return at

    def _declares(self, at: int) -> bool:
        """Return whether a statement declares a name: it begins with a type and a name."""
        words = self._words
        if words[at] in (*_CONTROL, "return", "asm", "{"):
            return False
        if words[at] in _DECLARES or not re.match(r"\w", words[at]):
            return words[at] in _DECLARES
        while words[at + 1 : at + 3] == [":", ":"]:
            at += 3
        if words[at + 1] == "<":
            depth, at = 1, at + 2
            while depth:
                depth += (words[at] == "<") - (words[at] == ">")
                at += 1
            at -= 1
        after = words[at + 1]
        is_name = re.match(r"[A-Za-z_]", after) is not None
        is_reference = after in "&*" and words[at + 2] not in ("=", "&")
        return is_name or (is_reference and words[at + 3] in ("=", "{", "(", ";"))
