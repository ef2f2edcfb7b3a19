"""Instructions of a unit in C++: calls of the emulator's functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tmaasync.emulate.chips import Chip
from tmaasync.emulate.chips.instructions import missing, not_emulated
from tmaasync.emulate.frontend.ptx.modifiers import in_isa_order
from tmaasync.emulate.frontend.ptx.operands import MisfitError, Operands, items_of
from tmaasync.emulate.frontend.ptx.program import Instruction, Operand, Pair, Sink, Unit
from tmaasync.emulate.frontend.ptx.refused import REFUSED
from tmaasync.emulate.frontend.ptx.row import Row, Spec, family_of
from tmaasync.emulate.frontend.ptx.row_code import filled, kind_of
from tmaasync.emulate.frontend.ptx.table import rows_by_family
from tmaasync.errors import CompileError

__all__ = ["Instructions"]

_HELD_TEXT = re.compile(r"\x01(\d+)\x02")
_MOST_TEXTS = 2
# Placeholders for operands "C" in an opcode.
_TEXTS = (
    *("", "ca", "cg", "rn", "rz", "relaxed", "acquire", "release", "cta", "cluster", "gpu", "sys"),
    *("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch"),
    *("b32", "u32", "s32", "b64", "u64", "s64", "f16", "bf16", "f16x2", "bf16x2", "f32", "f64"),
    *("noftz.f16", "noftz.bf16", ".L2::64B", ".L2::128B", ".L2::256B", ".L2::cache_hint"),
)


class Instructions:
    """Writes the instructions of one unit."""

    def __init__(self, unit: Unit, operands: Operands, chip: Chip) -> None:
        """Begin a unit."""
        self._unit = unit
        self._chip = chip
        self._operands = operands

    def cpp(self, step: Instruction) -> str:
        """Return the call, or one call for every text of operands "C"."""
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
            conditions = " && ".join(
                f'__builtin_strcmp(tmaasync_a{index}, "{of[index]}") == 0' for index in texts
            )
            code = self._plain_instruction(replace(step, opcode=opcode))
            yield f"if constexpr ({conditions}) {{ {code}; }} else "
        yield "::tmaasync_emulate::fail(::tmaasync_emulate::FaultKind::kOperandText)"

    def _plain_instruction(self, step: Instruction) -> str:
        if reason := missing(self._chip, step.opcode, len(step.operands)):
            raise self._refusal(step, reason)
        rows = rows_by_family().get(family_of(step.opcode), ())
        if family_of(step.opcode) == "wmma" and not self._unit.is_body:
            raise self._refusal(step, "is of PTX modules. Use nvcuda::wmma of <mma.h>.")
        misfit = ""
        matches = [(row, row.matcher.fullmatch(step.opcode)) for row in rows]
        if not any(found for _, found in matches):
            ordered = in_isa_order(step.opcode)
            matches = [(row, row.matcher.fullmatch(ordered)) for row in rows]
        for row, found in matches:
            if found is None:
                continue
            captures = {name: text or "" for name, text in found.groupdict().items()}
            references = set(self._operands.references)
            try:
                return self._call(row, captures, step)
            except MisfitError as error:
                self._operands.references = references
                misfit = misfit or str(error)
        if misfit:
            raise self._refusal(step, misfit)
        reason = not_emulated(self._chip, step.opcode, len(step.operands))
        raise self._refusal(step, reason or _unknown(step.opcode, rows))

    def _refusal(self, step: Instruction, reason: str) -> CompileError:
        return self._unit.refusal(step.line, step.text, reason)

    def _call(self, row: Row, captures: dict[str, str], step: Instruction) -> str:
        named: dict[str, str] = {}
        given = list(step.operands)
        for spec in row.specs:
            if not given:
                if not spec.is_optional:
                    raise MisfitError(f"has too few operands: {row.operands.replace(' ', '')}.")
                named.update(self._missing(spec, named))
                continue
            named.update(self._given(spec, given.pop(0), captures, step))
        if given:
            raise MisfitError(f"has too many operands: {row.operands.replace(' ', '')}.")
        code = filled(row.code, named, captures)
        result = next((spec for spec in row.specs if spec.mark == "="), None)
        if result is None:
            return code
        target = step.operands[row.specs.index(result)]
        return self._operands.setting(target, kind_of(result.kind, captures), code)

    def _missing(self, spec: Spec, named: dict[str, str]) -> dict[str, str]:
        return {spec.name: named.get(spec.default, spec.default)}

    def _given(
        self, spec: Spec, operand: Operand, captures: dict[str, str], step: Instruction
    ) -> dict[str, str]:
        if spec.mark == "[":
            return self._operands.address(spec, operand, captures, step.opcode)
        if spec.mark == "@":
            return {spec.name: ", ".join(self._operands.held(item) for item in items_of(operand))}
        kind = kind_of(spec.kind, captures)
        if "|" in spec.name:
            first, second = spec.name.split("|")
            pair = operand if isinstance(operand, Pair) else Pair(operand, Sink())
            target = self._operands.target
            return {first: target(pair.first, ""), second: target(pair.second, kind)}
        items = items_of(operand) if spec.is_many else (operand,)
        if spec.mark in "=&":
            texts = [self._operands.result(item, kind) for item in items]
        else:
            texts = [self._operands.value(item, kind) for item in items]
        return {spec.name: ", ".join(texts)}


def _unknown(opcode: str, rows: Sequence[Row]) -> str:
    for refused in REFUSED:
        if re.match(refused.opcodes, opcode):
            return f"{refused.reason}. {refused.remedy}."
    if not rows:
        return f"is an instruction that the CPU does not have: {opcode.split('.')[0]}."
    shown = "; ".join(dict.fromkeys(row.shown for row in rows[:12]))
    more = f" and {len(rows) - 12} more" if len(rows) > 12 else ""
    return f"has a form that the CPU does not have. It has: {shown}{more}."
