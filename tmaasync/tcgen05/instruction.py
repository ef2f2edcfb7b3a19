"""The 32 bits by which ``tcgen05.mma`` knows types and shape: the instruction descriptor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tmaasync._kinds import check_flags, check_integers, shown
from tmaasync.errors import ArgumentError, Violation
from tmaasync.tcgen05.forms import TYPE_CODES, MmaForm

__all__ = ["InstructionDescriptor"]

_ACCUMULATOR_CODES = {"float16": 0, "float32": 1, "int32": 2}
_PACKED = ("mxf4", "mxf4nvf4")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionDescriptor:
    """The 32 bits by which ``tcgen05.mma`` knows its types, shape and modifiers.

    Args:
        form: The types, from `mma_form`.
        m: Rows of D, of both CTAs of a pair.
        n: Columns of D.
        is_a_k_major: Whether K is the contiguous side of A in shared memory.
        is_b_k_major: Whether K is the contiguous side of B.
        negates_a: Whether A counts with the other sign.
        negates_b: Whether B does.
        saturates: Whether sums of kind::i8 stay at the greatest or least integer.
        a_scale_id: First byte of A's scale factors in their word of tensor memory.
        b_scale_id: The same of B.

    Raises:
        ArgumentError: The fields break rules; every one is listed with a remedy.

    >>> from tmaasync.tcgen05 import mma_form
    >>> hex(InstructionDescriptor(form=mma_form("bf16"), m=128, n=256).encode())
    '0x8400490'
    """

    form: MmaForm
    m: int
    n: int
    is_a_k_major: bool = True
    is_b_k_major: bool = True
    negates_a: bool = False
    negates_b: bool = False
    saturates: bool = False
    a_scale_id: int = 0
    b_scale_id: int = 0

    def __post_init__(self) -> None:
        """Check every rule that the instruction has for its descriptor."""
        if not isinstance(self.form, MmaForm):
            raise ArgumentError.broken(
                "form", shown(self.form), "it must be an MmaForm", "Pass mma_form('bf16')"
            )
        flags = ("is_a_k_major", "is_b_k_major", "negates_a", "negates_b", "saturates")
        check_flags(**{name: getattr(self, name) for name in flags})
        check_integers(a_scale_id=self.a_scale_id, b_scale_id=self.b_scale_id)
        ArgumentError.raise_for(
            [
                *self.form.shape_violations(self.m, self.n, is_b_k_major=self.is_b_k_major),
                *self._modifier_violations(),
                *self._scale_violations(),
            ]
        )

    def encode(self) -> int:
        """Return the descriptor as an integer."""
        form, types = self.form, TYPE_CODES[self.form.kind]
        bits = form.is_sparse << 2 | types[form.a] << 7 | types[form.b] << 10
        bits |= self.negates_a << 13 | self.negates_b << 14
        bits |= (not self.is_a_k_major) << 15 | (not self.is_b_k_major) << 16
        bits |= self.n // 8 << 17 | self.m // 16 << 24
        if form.is_block_scaled:
            bits |= (form.scale_type == "ue8m0") << 23
            return bits | self.b_scale_id << 4 | self.a_scale_id << 29
        return bits | _ACCUMULATOR_CODES[form.accumulator] << 4 | self.saturates << 3

    def _modifier_violations(self) -> Iterator[Violation]:
        kind = self.form.kind
        for name in ("is_a_k_major", "is_b_k_major"):
            if kind in _PACKED and not getattr(self, name):
                rule = f"kind::{kind} reads both operands with K contiguous"
                yield Violation(name, False, rule, "Lay the operand out with K contiguous")
        for name in ("negates_a", "negates_b"):
            if kind == "i8" and getattr(self, name):
                yield Violation(name, True, "kind::i8 has no negation", "Negate the operand")
        if self.saturates and kind != "i8":
            yield Violation("saturates", True, "only kind::i8 saturates", "Pass False")

    def _scale_violations(self) -> Iterator[Violation]:
        legal = {0: (0,), 1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}[self.form.scale_vector]
        for name in ("a_scale_id", "b_scale_id"):
            value = getattr(self, name)
            if value not in legal:
                rule = f"with {self.form.scale_vector} scale factors along K they begin at byte "
                rule += " or ".join(map(str, legal))
                yield Violation(name, value, rule, "Pass one of these, and the word's own address")
