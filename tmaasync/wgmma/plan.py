"""Plan of a tile's multiplication: instructions, registers and shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tmaasync._hardware import WARPGROUP_THREADS
from tmaasync._kinds import is_integer, not_flags, not_integers
from tmaasync.errors import ArgumentError, Violation
from tmaasync.modes import Swizzle
from tmaasync.wgmma.forms import INSTRUCTION_M, MmaForm, instruction_n, not_a_form
from tmaasync.wgmma.operand import (
    WGMMADescriptorParams,
    compute_a_descriptor_params,
    compute_b_descriptor_params,
)

_REGISTERS_OF_A = 4
_MAX_REGISTERS = 255
_SWIZZLES = (Swizzle.B128, Swizzle.B64, Swizzle.B32, Swizzle.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WgmmaPlan:
    """One GEMM tile, M x N and K deep, and the warpgroups that multiply it.

    The warpgroups form a grid; each takes an equal share of the rows and of the columns, and in it
    the 64-row atoms follow one another.

    Args:
        m: Rows of the tile: a multiple of 64 for each warpgroup along M.
        n: Columns: a multiple of 8 for each warpgroup along N.
        k: Depth of what lies in shared memory at a time; a multiple of 32 bytes.
        form: The types, from `mma_form`.
        warpgroups_m: Warpgroups along M.
        warpgroups_n: Warpgroups along N.
        a_in_registers: Whether A is multiplied from registers; it takes no shared memory here.
        a_is_k_major: Whether K is the contiguous side of A in shared memory.
        b_is_k_major: Whether K is the contiguous side of B.

    Raises:
        ArgumentError: The tile does not divide, or does not fit into the registers; every reason,
            with a remedy.

    >>> from tmaasync.wgmma import mma_form
    >>> plan = WgmmaPlan(m=128, n=256, k=64, form=mma_form("bfloat16"), warpgroups_m=2)
    >>> plan.instruction
    'wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16'
    >>> plan.atoms_m, plan.atoms_n, plan.k_steps, plan.accumulator_registers, plan.shared_bytes
    (1, 1, 4, 128, 49152)
    """

    m: int
    n: int
    k: int
    form: MmaForm
    warpgroups_m: int = 1
    warpgroups_n: int = 1
    a_in_registers: bool = False
    a_is_k_major: bool = True
    b_is_k_major: bool = True

    def __post_init__(self) -> None:
        """Check that whole instructions cover the tile, and that the registers do."""
        ArgumentError.raise_for(self._kind_violations())
        ArgumentError.raise_for(self._side_violations())
        ArgumentError.raise_for(self._register_violations())

    # --- instructions -------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        """Threads of all warpgroups."""
        return WARPGROUP_THREADS * self.warpgroups_m * self.warpgroups_n

    @property
    def instruction_n(self) -> int:
        """Columns of one instruction."""
        panel = 8 if self.b_is_k_major else self.b_swizzle.span_bytes // self.form.itemsize
        return instruction_n(self.n // self.warpgroups_n, self.form, panel=panel)

    @property
    def instruction(self) -> str:
        """Name of the instruction."""
        return self.form.instruction(self.instruction_n)

    @property
    def atoms_m(self) -> int:
        """Instructions along M of one warpgroup."""
        return self.m // self.warpgroups_m // INSTRUCTION_M

    @property
    def atoms_n(self) -> int:
        """Instructions along N of one warpgroup."""
        return self.n // self.warpgroups_n // self.instruction_n

    @property
    def k_steps(self) -> int:
        """Instructions along K."""
        return self.k // self.form.k

    # --- registers of a thread ----------------------------------------------------------------

    @property
    def accumulator_registers(self) -> int:
        """32-bit registers of a thread for the accumulators."""
        return self.atoms_m * self.form.registers(self.n // self.warpgroups_n)

    @property
    def a_registers(self) -> int:
        """Registers of a thread for A of the whole depth, if A is in registers."""
        return _REGISTERS_OF_A * self.atoms_m * self.k_steps if self.a_in_registers else 0

    # --- shared memory ------------------------------------------------------------------------

    @property
    def a_swizzle(self) -> Swizzle:
        """The widest swizzle that A's contiguous side fills."""
        return _swizzle((self.k if self.a_is_k_major else self.m) * self.form.itemsize)

    @property
    def b_swizzle(self) -> Swizzle:
        """The widest swizzle that B's contiguous side fills, in every warpgroup's share."""
        side = self.k if self.b_is_k_major else self.n // self.warpgroups_n
        return _swizzle(side * self.form.itemsize)

    @property
    def a_bytes(self) -> int:
        """Bytes of A's tile in shared memory."""
        return 0 if self.a_in_registers else self.m * self.k * self.form.itemsize

    @property
    def b_bytes(self) -> int:
        """Bytes of B's tile in shared memory."""
        return self.n * self.k * self.form.itemsize

    @property
    def shared_bytes(self) -> int:
        """Bytes of both tiles: one stage of a pipeline."""
        return self.a_bytes + self.b_bytes

    def a_descriptor_params(self) -> WGMMADescriptorParams:
        """Descriptor parameters of A in shared memory."""
        shape = (self.m, self.k) if self.a_is_k_major else (self.k, self.m)
        return compute_a_descriptor_params(
            shape, self.form.a, swizzle=self.a_swizzle, is_k_major=self.a_is_k_major
        )

    def b_descriptor_params(self) -> WGMMADescriptorParams:
        """Descriptor parameters of B in shared memory."""
        shape = (self.n, self.k) if self.b_is_k_major else (self.k, self.n)
        return compute_b_descriptor_params(
            shape,
            self.form.b,
            swizzle=self.b_swizzle,
            is_k_major=self.b_is_k_major,
            columns=self.instruction_n,
        )

    # --- what a plan must be ------------------------------------------------------------------

    def _kind_violations(self) -> list[Violation]:
        numbers = ("m", "n", "k", "warpgroups_m", "warpgroups_n")
        flags = ("a_in_registers", "a_is_k_major", "b_is_k_major")
        return [
            *not_integers(**{name: getattr(self, name) for name in numbers}),
            *not_flags(**{name: getattr(self, name) for name in flags}),
            *not_a_form(self.form),
            *self._warpgroup_violations(),
        ]

    def _warpgroup_violations(self) -> Iterator[Violation]:
        for name in ("warpgroups_m", "warpgroups_n"):
            value = getattr(self, name)
            if is_integer(value) and value < 1:
                yield Violation(name, value, "a tile has at least one warpgroup", "Pass 1 or more")

    def _side_violations(self) -> Iterator[Violation]:
        for argument, multiple, why in (
            ("m", INSTRUCTION_M * self.warpgroups_m, "64 rows for each warpgroup along M"),
            ("n", 8 * self.warpgroups_n, "8 columns for each warpgroup along N"),
            ("k", self.form.k, f"32 bytes of {self.form.a}"),
        ):
            value = getattr(self, argument)
            if value < 1 or value % multiple:
                yield Violation(
                    argument,
                    value,
                    f"it must be a multiple of {multiple}, {why}",
                    f"Use {max(-(-value // multiple), 1) * multiple}",
                )
        if not self.form.has_transposes and not (self.a_is_k_major and self.b_is_k_major):
            yield Violation(
                "a_is_k_major, b_is_k_major",
                f"{self.a_is_k_major}, {self.b_is_k_major}",
                f"only 16-bit operands may have M or N contiguous, and {self.form.a} is not one",
                "Lay both out with K contiguous",
            )

    def _register_violations(self) -> Iterator[Violation]:
        held = self.accumulator_registers + self.a_registers
        if held > _MAX_REGISTERS:
            yield Violation(
                "m x n",
                f"{self.m} x {self.n}",
                f"accumulators and A take {held} registers of a thread, which has {_MAX_REGISTERS}",
                "Use more warpgroups, or a smaller tile",
            )


def _swizzle(side_bytes: int) -> Swizzle:
    return next(mode for mode in _SWIZZLES if side_bytes % mode.span_bytes == 0)
