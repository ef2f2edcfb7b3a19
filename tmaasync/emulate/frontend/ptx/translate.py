"""Translate the ``asm`` statements of preprocessed C++: PTX becomes calls of functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from tmaasync.emulate.chips import SM_90A, Chip
from tmaasync.emulate.frontend.ptx.instructions import Instructions
from tmaasync.emulate.frontend.ptx.operands import Operands
from tmaasync.emulate.frontend.ptx.parser import parsed
from tmaasync.emulate.frontend.ptx.program import (
    AsmReference,
    Instruction,
    Label,
    bits_of,
)
from tmaasync.emulate.frontend.ptx.row import cpp_type
from tmaasync.emulate.frontend.ptx.row_code import PTX
from tmaasync.emulate.frontend.ptx.statements import AsmStatement, statements
from tmaasync.errors import CompileError

__all__ = ["ASM_SUFFIX", "Translated", "translated"]

ASM_SUFFIX = " (asm)"
"""Debug information has this after the file's name in functions that stand for an instruction."""

# Inlined, so that reports name the line that calls a function around an asm statement. Hidden,
# because g++ inlines no function that another library may replace.
_INLINE = '__attribute__((always_inline, visibility("hidden"))) '
_KNOWN_LETTERS = frozenset("rhlfdqniC")


@dataclass(frozen=True)
class Translated:
    """C++ without ``asm`` statements, and the errors of statements that cannot be translated.

    Libraries have many functions that a kernel does not use, some for other chips. A statement
    that cannot run becomes a call that does not compile if the kernel uses its function.
    """

    text: str
    refusals: Mapping[int, CompileError]

    def refusal_in(self, log: str) -> CompileError | None:
        """Return the error of the first untranslated statement in the compiler's log."""
        found = _REFUSED.search(log)
        return None if found is None else self.refusals[int(found[1])]


def translated(
    text: str,
    is_translated: Callable[[str, str], bool],
    kernels: Collection[str] = (),
    chip: Chip = SM_90A,
) -> Translated:
    """Return preprocessed C++ whose ``asm`` statements call the emulator's functions.

    Args:
        text: The preprocessor's output, with its line markers.
        is_translated: Whether to translate the statements of a file, by its name and flags.
        kernels: The names of ``__global__`` functions, whose lines reports name.
        chip: The chip that the kernels run on.
    """
    found = statements(text, is_translated, kernels)
    edits: dict[int, tuple[int, str]] = {}
    for function in found.wrappers:
        begin = f'\n# {function.line} "{function.file}{ASM_SUFFIX}"\n'
        end = f'\n# {function.end_line} "{function.file}"\n'
        edits[function.name_start] = (function.name_start, _INLINE)
        edits[function.start] = (function.start, begin)
        edits[function.end] = (function.end, end)
    refusals: dict[int, CompileError] = {}
    for number, statement in enumerate(found.statements):
        is_wrapped = any(one.start <= statement.start < one.end for one in found.wrappers)
        file = f"{statement.file}{ASM_SUFFIX if is_wrapped else ''}"
        try:
            cpp = _Translation(statement, number, file, chip).cpp()
        except CompileError as error:
            refusals[number] = error
            cpp = _refused(statement, number)
        edits[statement.start] = (statement.end, cpp)
    return Translated("".join(_edited(text, edits)), refusals)


_REFUSED = re.compile(r"tmaasync_refused_(\d+)")


def _refused(statement: AsmStatement, number: int) -> str:
    """Return a call that compiles only if its function is unused."""
    name = f"tmaasync_refused_{number}"
    return (
        f'do {{ __attribute__((error("inline PTX"))) void {name}(); {name}(); }} while (0);'
        f'\n# {statement.end_line} "{statement.file}"\n'
    )


def _edited(text: str, edits: dict[int, tuple[int, str]]) -> Iterator[str]:
    end = 0
    for start, (next_end, new) in sorted(edits.items()):
        yield text[end:start]
        yield new
        end = next_end
    yield text[end:]


class _Translation:
    """The translation of one statement."""

    def __init__(self, statement: AsmStatement, number: int, file: str, chip: Chip) -> None:
        self._statement = statement
        self._file = file
        self._number = number
        self._written = Operands(statement)
        self._instructions = Instructions(statement, self._written, chip)

    def cpp(self) -> str:
        statement = self._statement
        self._check_constraints()
        program = parsed(statement, str(self._number))
        steps = [self._step(step) for step in program.steps]
        declared = [f"{_held_as(bits_of(kind))} {name};" for name, kind in program.registers]
        sinks = [f"{_held_as(bits)} tmaasync_sink_{bits};" for bits in sorted(self._written.sinks)]
        begin = f'\n# {statement.line} "{self._file}"\n'
        end = f'\n# {statement.end_line} "{self._file}"\n'
        return (
            f"do {{{begin}{' '.join((*self._operands(), *declared, *sinks))}\n"
            f"{''.join(steps)}{begin}{' '.join(self._results())} }} while (0);{end}"
        )

    def _check_constraints(self) -> None:
        for operand in self._statement.operands:
            if operand.letter not in _KNOWN_LETTERS:
                raise self._statement.refusal(
                    self._statement.line,
                    self._statement.text.characters,
                    f'has the constraint "{operand.constraint}"; the CPU has h, r, l, q, f, d, n '
                    "and C.",
                )

    # --- operands of the statement ---

    def _operands(self) -> Iterator[str]:
        for index, operand in enumerate(self._statement.operands):
            value, letter = f"tmaasync_a{index}", operand.letter
            if letter in "ni":
                yield f"constexpr auto {value} = {PTX}constant({operand.expression});"
                continue
            if letter == "C":
                yield f"constexpr const char* {value} = {operand.expression};"
                continue
            bits = AsmReference(index, letter).bits
            if operand.is_written or index in self._written.references:
                yield f"auto&& tmaasync_r{index} = ({operand.expression});"
            if index in self._written.references:
                continue
            source = f"tmaasync_r{index}" if operand.is_written else f"({operand.expression})"
            if operand.is_read:
                yield f"auto {value} = {PTX}operand<'{letter}'>({source});"
            else:
                yield f"{cpp_type(f'b{bits}')} {value};"

    def _results(self) -> Iterator[str]:
        for index, operand in enumerate(self._statement.operands[: self._statement.outputs]):
            if index not in self._written.references:
                call = f"{PTX}give_back<'{operand.letter}'>"
                yield f"{call}(tmaasync_r{index}, tmaasync_a{index});"

    # --- steps ---

    def _step(self, step: Label | Instruction) -> str:
        marker = f'# {step.line} "{self._file}"\n'
        if isinstance(step, Label):
            return f"{marker}{step.cpp}: ;\n"
        code = f"goto {step.target};" if step.target else f"{self._instructions.cpp(step)};"
        if step.guard is None:
            return f"{marker}{{ {code} }}\n"
        guard = self._written.value(step.guard, "pred")
        return f"{marker}if ({'!' if step.guard_is_negated else ''}{guard}) {{ {code} }}\n"


def _held_as(bits: int) -> str:
    """Return the C++ type of a register of this size."""
    return "bool" if bits == 1 else cpp_type(f"b{bits}")


def has_asm(text: str) -> bool:
    """Return whether C++ may have an ``asm`` statement."""
    # A pattern, because every header of the author's is searched.
    return re.search(r"\b(?:asm|__asm__|__asm)\b", text) is not None
