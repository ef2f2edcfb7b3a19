"""Translate the ``asm`` statements of preprocessed C++: PTX becomes calls of functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tmaasync.emulate.frontend.ptx.modifiers import in_isa_order
from tmaasync.emulate.frontend.ptx.program import (
    Address,
    AsmReference,
    Immediate,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    Program,
    Register,
    Sink,
    Special,
    Vector,
    bits_of,
    refusal,
)
from tmaasync.emulate.frontend.ptx.row import Row, Spec, cpp_type, family_of
from tmaasync.emulate.frontend.ptx.statements import AsmStatement, statements
from tmaasync.emulate.frontend.ptx.table import SPECIAL_REGISTERS, rows_by_family
from tmaasync.errors import CompileError

__all__ = ["ASM_SUFFIX", "Translated", "translated"]

ASM_SUFFIX = " (asm)"
"""Debug information has this after the file's name in functions that stand for an instruction."""

# Inlined, so that reports name the line that calls a function around an asm statement. Hidden,
# because g++ inlines no function that another library may replace.
_INLINE = '__attribute__((always_inline, visibility("hidden"))) '
_PTX = "::tmaasync_ptx::"
_WORD = re.compile(r"(?<![\w:.])([A-Za-z_]\w*)(?=\s*\(|<|::)")
_NAME = re.compile(r"(?<![\w:.>])([A-Za-z_]\w*)(?!\w|::)")
_CAPTURE = re.compile(r"<(\w+)>")
_PLAIN = ("std", "static_cast", "void", "float", "double", "unsigned")
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_NARROW = {
    "f16": "HalfBits",
    "f16x2": "HalfBits",
    "bf16": "BfloatBits",
    "bf16x2": "BfloatBits",
    "e4m3x2": "E4M3Bits",
    "e5m2x2": "E5M2Bits",
}
_ELEMENTS = {"b32": "U32", "b64": "U64"}
_NAMES = ("cmp", "bool", "op", "class", "vote", "mode")
_ENUMS = {"round": "Round", "order": "Order", "scope": "Reach"}
_HELD_TEXT = re.compile(r"\x01(\d+)\x02")
_MOST_TEXTS = 2
# Placeholders for operands "C" in an opcode.
_TEXTS = (
    *("", "ca", "cg", "rn", "rz", "relaxed", "acquire", "release", "cta", "cluster", "gpu", "sys"),
    *("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch"),
    *("b32", "u32", "s32", "b64", "u64", "s64", "f16", "bf16", "f16x2", "bf16x2", "f32", "f64"),
    *("noftz.f16", "noftz.bf16", ".L2::64B", ".L2::128B", ".L2::256B", ".L2::cache_hint"),
)
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
    text: str, is_translated: Callable[[str, str], bool], kernels: Collection[str] = ()
) -> Translated:
    """Return preprocessed C++ whose ``asm`` statements call the emulator's functions.

    Args:
        text: The preprocessor's output, with its line markers.
        is_translated: Whether to translate the statements of a file, by its name and flags.
        kernels: The names of ``__global__`` functions, whose lines reports name.
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
            cpp = _Translation(statement, number, file).cpp()
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


class _MisfitError(Exception):
    """The operands do not match the row."""


class _Translation:
    """The translation of one statement."""

    def __init__(self, statement: AsmStatement, number: int, file: str) -> None:
        self._statement = statement
        self._file = file
        self._number = number
        self._references: set[int] = set()  # operands that wgmma keeps
        self._sinks: set[int] = set()

    def cpp(self) -> str:
        statement = self._statement
        self._check_constraints()
        program = Program.parse(statement, str(self._number))
        steps = [self._step(step) for step in program.steps]
        declared = [f"{_held_as(bits_of(kind))} {name};" for name, kind in program.registers]
        sinks = [f"{_held_as(bits)} tmaasync_sink_{bits};" for bits in sorted(self._sinks)]
        begin = f'\n# {statement.line} "{self._file}"\n'
        end = f'\n# {statement.end_line} "{self._file}"\n'
        return (
            f"do {{{begin}{' '.join((*self._operands(), *declared, *sinks))}\n"
            f"{''.join(steps)}{begin}{' '.join(self._results())} }} while (0);{end}"
        )

    def _check_constraints(self) -> None:
        for operand in self._statement.operands:
            if operand.letter not in _KNOWN_LETTERS:
                raise refusal(
                    self._statement.file,
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
                yield f"constexpr auto {value} = {_PTX}constant({operand.expression});"
                continue
            if letter == "C":
                yield f"constexpr ::std::string_view {value} = {operand.expression};"
                continue
            bits = AsmReference(index, letter).bits
            if operand.is_written or index in self._references:
                yield f"auto&& tmaasync_r{index} = ({operand.expression});"
            if index in self._references:
                continue
            source = f"tmaasync_r{index}" if operand.is_written else f"({operand.expression})"
            if operand.is_read:
                yield f"auto {value} = {_PTX}operand<'{letter}'>({source});"
            else:
                yield f"{cpp_type(f'b{bits}')} {value};"

    def _results(self) -> Iterator[str]:
        for index, operand in enumerate(self._statement.operands[: self._statement.outputs]):
            if index not in self._references:
                call = f"{_PTX}give_back<'{operand.letter}'>"
                yield f"{call}(tmaasync_r{index}, tmaasync_a{index});"

    # --- steps ---

    def _step(self, step: Label | Instruction) -> str:
        marker = f'# {step.line} "{self._file}"\n'
        if isinstance(step, Label):
            return f"{marker}{step.cpp}: ;\n"
        code = f"goto {step.target};" if step.target else f"{self._instruction(step)};"
        if step.guard is None:
            return f"{marker}{{ {code} }}\n"
        guard = self._value(step.guard, "pred")
        return f"{marker}if ({'!' if step.guard_is_negated else ''}{guard}) {{ {code} }}\n"

    def _instruction(self, step: Instruction) -> str:
        texts = sorted({int(number) for number in _HELD_TEXT.findall(step.opcode)})
        if not texts:
            return self._plain_instruction(step)
        return "".join(self._choices(step, texts))

    def _choices(self, step: Instruction, texts: Sequence[int]) -> Iterator[str]:
        """Yield the instruction for every text that its operands "C" may stand for."""
        if len(texts) > _MOST_TEXTS:
            raise self._refusal(step, f'has more than {_MOST_TEXTS} operands "C".')
        for chosen in itertools.product(_TEXTS, repeat=len(texts)):
            of = dict(zip(texts, chosen, strict=True))
            opcode = step.opcode
            for index, text in of.items():
                opcode = opcode.replace(f"\x01{index}\x02", text)
            rows = rows_by_family().get(family_of(opcode), ())
            if not any(row.matcher.fullmatch(opcode) for row in rows):
                continue
            conditions = " && ".join(f'tmaasync_a{index} == "{of[index]}"' for index in texts)
            code = self._plain_instruction(replace(step, opcode=opcode))
            yield f"if constexpr ({conditions}) {{ {code}; }} else "
        yield '::tmaasync_emulate::fail("an operand \\"C\\" of inline PTX has an unknown text")'

    def _plain_instruction(self, step: Instruction) -> str:
        rows = rows_by_family().get(family_of(step.opcode), ())
        misfit = ""
        matches = [(row, row.matcher.fullmatch(step.opcode)) for row in rows]
        if not any(found for _, found in matches):
            ordered = in_isa_order(step.opcode)
            matches = [(row, row.matcher.fullmatch(ordered)) for row in rows]
        for row, found in matches:
            if found is None:
                continue
            captures = {name: text or "" for name, text in found.groupdict().items()}
            references = set(self._references)
            try:
                return self._call(row, captures, step)
            except _MisfitError as error:
                self._references = references
                misfit = misfit or str(error)
        if misfit:
            raise self._refusal(step, misfit)
        raise self._refusal(step, _unknown(step.opcode, rows))

    def _refusal(self, step: Instruction, reason: str) -> CompileError:
        return refusal(self._statement.file, step.line, step.text, reason)

    def _call(self, row: Row, captures: dict[str, str], step: Instruction) -> str:
        named: dict[str, str] = {}
        given = list(step.operands)
        for spec in row.specs:
            if not given:
                if not spec.is_optional:
                    raise _MisfitError(f"has too few operands: {row.operands.replace(' ', '')}.")
                named.update(self._missing(spec, named))
                continue
            named.update(self._given(spec, given.pop(0), captures, step))
        if given:
            raise _MisfitError(f"has too many operands: {row.operands.replace(' ', '')}.")
        code = _filled(row.code, named, captures)
        result = next((spec for spec in row.specs if spec.mark == "="), None)
        if result is None:
            return code
        kind = cpp_type(_kind(result.kind, captures).rstrip("+"))
        return f"{_PTX}set<{kind}>({named[result.name]}, {code})"

    def _missing(self, spec: Spec, named: dict[str, str]) -> dict[str, str]:
        return {spec.name: named.get(spec.default, spec.default)}

    def _given(
        self, spec: Spec, operand: Operand, captures: dict[str, str], step: Instruction
    ) -> dict[str, str]:
        if spec.mark == "[":
            return self._address(spec, operand, captures, step)
        if spec.mark == "@":
            return {spec.name: ", ".join(self._held(item) for item in _items(operand))}
        kind = _kind(spec.kind, captures)
        if "|" in spec.name:
            first, second = spec.name.split("|")
            pair = operand if isinstance(operand, Pair) else Pair(operand, Sink())
            return {first: self._target(pair.first, ""), second: self._target(pair.second, kind)}
        items = _items(operand) if spec.is_many else (operand,)
        if spec.mark in "=&":
            texts = [self._result(item, kind) for item in items]
        else:
            texts = [self._value(item, kind) for item in items]
        return {spec.name: ", ".join(texts)}

    # --- operands of an instruction ---

    def _held(self, operand: Operand) -> str:
        if not isinstance(operand, AsmReference) or operand.letter not in "rf":
            raise _MisfitError(
                "takes operands of the statement with the constraint f or r, as in {%0, %1}."
            )
        self._references.add(operand.index)
        return f"tmaasync_r{operand.index}"

    def _constant(self, operand: Operand) -> str:
        if isinstance(operand, Immediate) and operand.float_bits == 0:
            return operand.text
        if isinstance(operand, AsmReference) and operand.letter in "ni":
            return f"tmaasync_a{operand.index}"
        raise _MisfitError('takes a constant here: a number, or an operand "n".')

    def _target(self, operand: Operand, kind: str) -> str:
        wanted = bits_of(kind)
        if isinstance(operand, Sink):
            bits = wanted or 32
            self._sinks.add(bits)
            return f"tmaasync_sink_{bits}"
        if isinstance(operand, Register):
            _check_size(operand.cpp, bits_of(operand.kind), kind)
            return operand.cpp
        if isinstance(operand, AsmReference) and operand.bits:
            if not self._statement.operands[operand.index].is_written:
                raise _MisfitError(f"writes %{operand.index}, which is an input of the statement.")
            _check_size(f"%{operand.index}", operand.bits, kind)
            return f"tmaasync_a{operand.index}"
        raise _MisfitError("needs a register for its result.")

    def _result(self, operand: Operand, kind: str) -> str:
        return (
            self._unpacked(operand, kind)
            if isinstance(operand, Vector)
            else self._target(operand, kind)
        )

    def _unpacked(self, operand: Vector, kind: str) -> str:
        """Return the parts of a register joined, low bits first."""
        parts = [
            self._target(item, f"b{bits_of(kind) // len(operand.items)}") for item in operand.items
        ]
        return f"{_PTX}Parts{{{', '.join(parts)}}}"

    def _value(self, operand: Operand, kind: str) -> str:
        if kind == "imm":
            return self._constant(operand)
        if kind == "pred":
            return self._predicate(operand)
        cpp = cpp_type(kind.rstrip("+"))
        if isinstance(operand, Vector):
            bits = bits_of(kind) // max(1, len(operand.items))
            parts = ", ".join(self._value(item, f"b{bits}") for item in operand.items)
            return f"{_PTX}as<{cpp}>({_PTX}joined_parts({parts}))"
        if isinstance(operand, Immediate):
            return _number(operand, kind.rstrip("+"), cpp)
        if isinstance(operand, Special):
            return self._special(operand, cpp)
        return self._register(operand, kind, cpp)

    def _register(self, operand: Operand, kind: str, cpp: str) -> str:
        if isinstance(operand, Register):
            _check_size(operand.cpp, bits_of(operand.kind), kind)
            return f"{_PTX}as<{cpp}>({operand.cpp})"
        if isinstance(operand, AsmReference) and operand.bits == 0:
            return f"static_cast<{cpp}>(tmaasync_a{operand.index})"
        if isinstance(operand, AsmReference):
            _check_size(f"%{operand.index}", operand.bits, kind)
            return f"{_PTX}as<{cpp}>(tmaasync_a{operand.index})"
        raise _MisfitError("has an operand of another form than the instruction takes.")

    def _special(self, operand: Special, cpp: str) -> str:
        known = SPECIAL_REGISTERS.get(operand.name)
        if known is None:
            names = ", ".join(f"%{name}" for name in SPECIAL_REGISTERS)
            raise _MisfitError(f"reads %{operand.name}, which the CPU lacks. It has {names}.")
        return f"static_cast<{cpp}>({known[0]})"

    def _predicate(self, operand: Operand) -> str:
        if isinstance(operand, Not):
            return f"!{self._predicate(operand.of)}"
        if isinstance(operand, Register) and operand.kind == "pred":
            return operand.cpp
        if isinstance(operand, Immediate):
            return f"({operand.text} != 0)"
        if isinstance(operand, AsmReference) and operand.letter in "ni":
            return f"(tmaasync_a{operand.index} != 0)"
        if isinstance(operand, Special) and SPECIAL_REGISTERS.get(operand.name, ("", 0))[1] == 1:
            return SPECIAL_REGISTERS[operand.name][0]
        raise _MisfitError("takes a predicate here, a register of .reg .pred.")

    def _address(
        self, spec: Spec, operand: Operand, captures: dict[str, str], step: Instruction
    ) -> dict[str, str]:
        if not isinstance(operand, Address):
            raise _MisfitError("takes an address in brackets here.")
        address = self._sum(operand)
        if spec.kind == "tensor":
            return self._tensor(spec, operand, address, captures, step)
        if operand.more:
            raise _MisfitError("takes an address without coordinates here.")
        is_shared = ".shared" in step.opcode
        if spec.kind == "s":
            function = "shared_address" if is_shared else "shared_of_generic"
        elif spec.kind == "map":
            function = "map_at" if captures.get("space") else "generic_pointer"
        else:
            in_shared = spec.kind == "g" and captures.get("space", "").startswith("shared")
            function = "shared_pointer" if in_shared else "generic_pointer"
        return {spec.name: f"{_PTX}{function}({address})"}

    def _tensor(
        self,
        spec: Spec,
        operand: Address,
        address: str,
        captures: dict[str, str],
        step: Instruction,
    ) -> dict[str, str]:
        if len(operand.more) != 1:
            raise _MisfitError("takes [map, {coordinates}] here.")
        items = _items(operand.more[0])
        rank = int(captures["n"])
        if len(items) != rank:
            raise _MisfitError(f"has {len(items)} coordinates and takes {rank}.")
        return {
            spec.name: f"{_PTX}generic_pointer({address})",
            f"{spec.name}_at": ", ".join(self._value(item, "s32") for item in items),
        }

    def _sum(self, address: Address) -> str:
        base = self._base(address.base)
        if address.offset is None:
            return base
        return f"{base} + ({self._base(address.offset)})"

    def _base(self, operand: Operand) -> str:
        if isinstance(operand, Register):
            return f"::std::uint64_t({operand.cpp})"
        if isinstance(operand, AsmReference):
            return f"::std::uint64_t(tmaasync_a{operand.index})"
        if isinstance(operand, Immediate) and operand.float_bits == 0:
            return f"::std::uint64_t({operand.text})"
        raise _MisfitError("has an address whose base is no register and no number.")


def _held_as(bits: int) -> str:
    """Return the C++ type of a register of this size."""
    return "bool" if bits == 1 else cpp_type(f"b{bits}")


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _kind(kind: str, captures: dict[str, str]) -> str:
    """Return the PTX type of an operand."""
    if kind == "<wide>":
        return _WIDE[captures["t"]]
    return _CAPTURE.sub(lambda found: captures[found[1]], kind)


def _check_size(name: str, bits: int, kind: str) -> None:
    wanted = bits_of(kind.rstrip("+"))
    if not wanted or bits == wanted or (kind.endswith("+") and bits > wanted):
        return
    raise _MisfitError(f"takes an operand of {wanted} bits where it has {name} of {bits}.")


def _number(operand: Immediate, kind: str, cpp: str) -> str:
    if operand.float_bits == 32:
        return f"{_PTX}as<{cpp}>(::std::uint32_t({operand.text}))"
    if operand.float_bits == 64:
        value = f"{_PTX}as<double>(::std::uint64_t({operand.text}))"
        return f"static_cast<{cpp}>({value})" if kind == "f32" else value
    if operand.float_bits:
        return f"static_cast<{cpp}>({operand.text})"
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        return f"{_PTX}as<{cpp}>({cpp_type(f'b{bits_of(kind)}')}({operand.text}))"
    return f"static_cast<{cpp}>({operand.text})"


def _filled(code: str, named: dict[str, str], captures: dict[str, str]) -> str:
    """Return the C++ of a row with its captures and operands."""

    def qualify(found: re.Match[str]) -> str:
        return found[1] if found[1] in _PLAIN or found[1] in named else f"{_PTX}{found[1]}"

    code = _CAPTURE.sub(lambda found: _captured(found[1], captures), code)
    code = _WORD.sub(qualify, code)
    return _NAME.sub(lambda found: named.get(found[1], found[1]), code)


def _captured(name: str, captures: dict[str, str]) -> str:
    text = captures.get(name, "") or captures.get(f"{name}1", "")
    if name.startswith("is_"):
        return "true" if text else "false"
    if name in _ENUMS:
        return f"{_PTX}{_ENUMS[name]}::k{text.title() or 'None'}"
    others = {
        "reduction": lambda: f"::tmaasync::ptx::ReduceOp::k{captures['op'].title()}",
        "element": lambda: f"::tmaasync::ptx::ElementType::k{_ELEMENTS.get(text, text.title())}",
        "narrow": lambda: f"{_PTX}{_NARROW[text]}",
        "t": lambda: cpp_type(text),
        "t1": lambda: cpp_type(text),
    }
    if name in _NAMES:
        return f"k{text.title() or 'None'}"
    return others[name]() if name in others else text or f"<{name}>"


_REASONS = (
    (r"multimem\b", "is of NVLink multicast, which the CPU does not have."),
    (
        r"(?:tcgen05|clusterlaunchcontrol)\b|.*f32x2|.*cta_group|.*gather4",
        "is of sm_100 and later.",
    ),
    (r".*\.sp\b|.*\.sp::", "is of sparse matrices, which the CPU does not multiply."),
)


def _unknown(opcode: str, rows: Sequence[Row]) -> str:
    for pattern, reason in _REASONS:
        if re.match(pattern, opcode):
            return reason
    if not rows:
        return f"is an instruction that the CPU does not have: {opcode.split('.')[0]}."
    shown = "; ".join(dict.fromkeys(row.shown for row in rows[:12]))
    more = f" and {len(rows) - 12} more" if len(rows) > 12 else ""
    return f"has a form that the CPU does not have. It has: {shown}{more}."


def has_asm(text: str) -> bool:
    """Return whether C++ may have an ``asm`` statement."""
    return re.search(r"\b(?:asm|__asm__|__asm)\b", text) is not None
