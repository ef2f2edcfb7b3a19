"""A function of a module in C++."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tmaasync.emulate.chips import Chip
from tmaasync.emulate.frontend.ptx.instructions import Instructions
from tmaasync.emulate.frontend.ptx.module.accumulators import Accumulators, is_wgmma, names_of
from tmaasync.emulate.frontend.ptx.module.body import Body, BodyParser
from tmaasync.emulate.frontend.ptx.module.late_copies import after_waits
from tmaasync.emulate.frontend.ptx.operands import Operands
from tmaasync.emulate.frontend.ptx.program import (
    Immediate,
    Instruction,
    Label,
    Operand,
    Register,
    Symbol,
    Vector,
    bits_of,
)
from tmaasync.emulate.frontend.ptx.row import cpp_type
from tmaasync.emulate.frontend.ptx.row_code import PTX

__all__ = ["BYTES", "function_code", "held_as"]

BYTES = "unsigned char*"
"""The type of every parameter and result of a ``.func``: a pointer to its memory."""
_WAIT = "wgmma.wait_group.sync.aligned"
_COMMIT = "wgmma.commit_group.sync.aligned"
_COMMITTED = "tmaasync_committed"


def held_as(bits: int) -> str:
    """Return the C++ type of a register of this size."""
    return "bool" if bits == 1 else cpp_type(f"b{bits}")


def function_code(head: str, body: Body, parser: BodyParser, chip: Chip) -> str:
    """Return the definition of a function.

    Args:
        head: Its declaration.
        body: Its body.
        parser: The parser of the body.
        chip: The chip that it runs on.

    Raises:
        CompileError: The body has what the CPU lacks.
    """
    return _Writer(head, body, parser, chip).code()


class _Writer:
    def __init__(self, head: str, body: Body, parser: BodyParser, chip: Chip) -> None:
        self._head = head
        self._body = body
        self._program = parser.program()
        self._variables = parser.variables
        self._operands = Operands(body)
        self._instructions = Instructions(body, self._operands, chip)
        self._accumulators = Accumulators.of(self._program.steps)

    def code(self) -> str:
        steps = "".join(self._steps())
        begin = self._body.lines.marker(self._body.function.line)
        return f"{begin}{self._head} {{ {' '.join(self._declared())}\n{steps}\n}}\n"

    def _declared(self) -> Iterator[str]:
        yield from self._declared_accumulators()
        laid_out = {name for chain in self._accumulators.chains for name in chain}
        for name, kind in self._program.registers:
            if name not in laid_out:
                yield f"{held_as(bits_of(kind))} {name};"
        for cpp, variable in self._variables.items():
            yield f"alignas({variable.align}) unsigned char {cpp}[{max(1, variable.size_bytes)}];"
        for bits in sorted(self._operands.sinks):
            yield f"{held_as(bits)} tmaasync_sink_{bits};"

    def _declared_accumulators(self) -> Iterator[str]:
        for number, chain in enumerate(self._accumulators.chains):
            array = f"tmaasync_accumulators_{number}"
            yield f"::std::uint32_t {array}[{len(chain)}];"
            for index, name in enumerate(chain):
                yield f"::std::uint32_t& {name} = {array}[{index}];"
        for names, array in self._accumulators.copied.items():
            yield f"::std::uint32_t {array}[{len(names)}];"
            yield f"bool {array}_held = false; int {array}_group = 0;"
        if self._accumulators.copied:
            yield f"int {_COMMITTED} = 0;"

    def _steps(self) -> Iterator[str]:
        """Yield the steps; the steps of one source line stand on one line."""
        last = ""
        for step in after_waits(self._program.steps):
            marker = self._body.lines.marker(step.line)
            if marker != last:
                yield f"\n{marker}"
                last = marker
            yield self._step(step)

    def _step(self, step: Label | Instruction) -> str:
        if isinstance(step, Label):
            return f"{step.cpp}: ; "
        code = self._code(step)
        if step.guard is None:
            return f"{{ {code}; }} "
        guard = self._operands.value(step.guard, "pred")
        return f"if ({'!' if step.guard_is_negated else ''}{guard}) {{ {code}; }} "

    def _code(self, step: Instruction) -> str:
        name = step.opcode.removesuffix(".uni")
        if step.target:
            return f"goto {step.target}"
        if name == "ret":
            return "return"
        if name == "call":
            return self._call(step)
        if name == "brx.idx":
            return self._jump(step)
        if self._accumulators.copied:
            return self._with_copies(step)
        return self._instructions.cpp(step)

    # --- control flow ---

    def _call(self, step: Instruction) -> str:
        results, function, arguments = step.operands
        given = [
            f"{PTX}generic_pointer({one.cpp})"
            for one in (*_items(results), *_items(arguments))
            if isinstance(one, Symbol)
        ]
        if len(given) != len(_items(results)) + len(_items(arguments)):
            raise self._body.refusal(step.line, step.text, "passes a register; it takes .param.")
        address = self._operands.value(function, "u64")
        kind = f"void (*)({', '.join(BYTES for _ in given)})"
        return f"reinterpret_cast<{kind}>({address})({', '.join(given)})"

    def _jump(self, step: Instruction) -> str:
        index, labels = step.operands
        targets = [one.cpp for one in _items(labels) if isinstance(one, Symbol)]
        if not targets:
            raise self._body.refusal(step.line, step.text, "names no .branchtargets.")
        cases = " ".join(f"case {number}: goto {label};" for number, label in enumerate(targets))
        return (
            f"switch ({self._operands.value(index, 'u32')}) {{ {cases} }} __builtin_unreachable()"
        )

    # --- accumulators in no array ---

    def _with_copies(self, step: Instruction) -> str:
        """Copy lists that contradict another one into their array, and back after the wait."""
        if is_wgmma(step) and (array := self._accumulators.copied.get(names_of(step.operands[0]))):
            names = names_of(step.operands[0])
            held = Vector(tuple(Register(f"{array}[{i}]", "b32") for i in range(len(names))))
            filled = " ".join(f"{array}[{i}] = {name};" for i, name in enumerate(names))
            code = self._instructions.cpp(replace(step, operands=(held, *step.operands[1:])))
            begin = f"if (!{array}_held) {{ {filled} }} {array}_held = true;"
            return f"{begin} {array}_group = {_COMMITTED}; {code}"
        code = self._instructions.cpp(step)
        if step.opcode == _COMMIT:
            return f"{code}; ++{_COMMITTED}"
        if step.opcode == _WAIT and isinstance(step.operands[0], Immediate):
            return f"{code}; {' '.join(self._copied_back(step.operands[0].text))}"
        return code

    def _copied_back(self, pending: str) -> Iterator[str]:
        for names, array in self._accumulators.copied.items():
            back = " ".join(f"{name} = {array}[{i}];" for i, name in enumerate(names))
            is_done = f"{_COMMITTED} - {array}_group > int({pending})"
            yield f"if ({array}_held && {is_done}) {{ {back} {array}_held = false; }}"


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)
