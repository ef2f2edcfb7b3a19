"""Forms of ``tcgen05.mma``: kinds, types, shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tmaasync._elements import SHORT_NAMES
from tmaasync._kinds import check_flags, check_integers
from tmaasync.errors import ArgumentError, Violation

__all__ = ["ELEMENT_BITS", "TYPE_CODES", "MmaForm", "mma_form", "operand_name"]

_SMALL_FLOATS = {
    "float8_e4m3fn": 0,
    "float8_e5m2": 1,
    "float6_e2m3fn": 3,
    "float6_e3m2fn": 4,
    "float4_e2m1fn": 5,
}
TYPE_CODES = {
    "f16": {"float16": 0, "bfloat16": 1},
    "tf32": {"tfloat32": 2},
    "f8f6f4": _SMALL_FLOATS,
    "i8": {"uint8": 0, "int8": 1},
    "mxf8f6f4": _SMALL_FLOATS,
    "mxf4": {"float4_e2m1fn": 1},
    "mxf4nvf4": {"float4_e2m1fn": 1},
}
"""Codes of the operands' types in the instruction descriptor, by kind."""

ELEMENT_BITS = {
    **dict.fromkeys(("float16", "bfloat16"), 16),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "uint8", "int8"), 8),
    **dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn"), 6),
    "tfloat32": 32,
    "float4_e2m1fn": 4,
}

_SHORT_NAMES = {
    **SHORT_NAMES,
    "float32": "tfloat32",
    "f16": "float16",
    "s8": "int8",
    "u8": "uint8",
    "e2m3": "float6_e2m3fn",
    "e3m2": "float6_e3m2fn",
    "e2m1": "float4_e2m1fn",
    "fp4": "float4_e2m1fn",
}
_DENSE_K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64}
_DENSE_K["mxf4nvf4"] = 64
_ACCUMULATORS = {"f16": ("float32", "float16"), "f8f6f4": ("float32", "float16"), "i8": ("int32",)}
_SCALES = {
    "mxf8f6f4": (("ue8m0", 32),),
    "mxf4": (("ue8m0", 32),),
    "mxf4nvf4": (("ue8m0", 32), ("ue8m0", 16), ("ue4m3", 16)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MmaForm:
    """One form of ``tcgen05.mma``: D += A B, with M and N of the CTA, or of both CTAs of a pair.

    Args:
        kind: The kind as PTX names it: f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4 or mxf4nvf4.
        a: Element type of A, by the name of NumPy or ml_dtypes.
        b: Element type of B.
        accumulator: Type of D: float32, float16 or int32.
        cta_group: 1, or 2 for a pair of CTAs.
        is_sparse: Whether A is sparse; K is then twice as deep.
        is_ws: Whether it is ``tcgen05.mma.ws`` (weight stationary).
        scale_type: Type of the scale factors, ue8m0 or ue4m3; empty without.
        scale_block: Elements along K with one scale factor, 32 or 16; 0 without.

    Raises:
        ArgumentError: No instruction has this form.
    """

    kind: str
    a: str
    b: str
    accumulator: str
    cta_group: int = 1
    is_sparse: bool = False
    is_ws: bool = False
    scale_type: str = ""
    scale_block: int = 0

    def __post_init__(self) -> None:
        """Check that the form exists."""
        check_flags(is_sparse=self.is_sparse, is_ws=self.is_ws)
        check_integers(cta_group=self.cta_group, scale_block=self.scale_block)
        ArgumentError.raise_for(self._kind_violations())
        ArgumentError.raise_for(self._violations())

    @property
    def is_block_scaled(self) -> bool:
        """True if A and B have scale factors."""
        return self.kind in _SCALES

    @property
    def k(self) -> int:
        """Elements along K of one instruction."""
        return _DENSE_K[self.kind] * (2 if self.is_sparse else 1)

    @property
    def scale_vector(self) -> int:
        """Scale factors along K of one instruction: 1, 2 or 4 (``scale_vec``); 0 without."""
        return _DENSE_K[self.kind] // self.scale_block if self.scale_block else 0

    @property
    def m_values(self) -> tuple[int, ...]:
        """Every M that an instruction may have."""
        if self.is_ws:
            return (32, 64, 128)
        if not self.is_block_scaled:
            return (64, 128) if self.cta_group == 1 else (128, 256)
        if self.cta_group == 1:
            return (128,)
        return (256,) if self.is_sparse else (128, 256)

    def n_values(self, *, is_b_k_major: bool = True) -> tuple[int, ...]:
        """Return every N that an instruction may have.

        >>> mma_form("bf16").n_values()[:3], mma_form("bf16", cta_group=2).n_values()[-1]
        ((8, 16, 24), 256)
        """
        if self.is_ws:
            return (64, 128) if self.is_sparse else (64, 128, 256)
        if self.kind == "i8":
            small = (8, 16, 24) if self.cta_group == 1 else ()
            return (*small, *range(32, 257, 16 * self.cta_group))
        is_wide = not is_b_k_major and ELEMENT_BITS[self.b] <= 8
        step = self.cta_group * (16 if is_wide else 8)
        return tuple(range(step, 257, step))

    def shape_violations(self, m: int, n: int, *, is_b_k_major: bool = True) -> list[Violation]:
        """Return the broken rules of an instruction's M and N."""
        check_integers(m=m, n=n)
        found = []
        for argument, value, legal in (
            ("m", m, self.m_values),
            ("n", n, self.n_values(is_b_k_major=is_b_k_major)),
        ):
            if value not in legal:
                near = sorted(sorted(legal, key=lambda one: abs(one - value))[:2])
                rule = f"kind::{self.kind} with cta_group::{self.cta_group} takes {_listed(legal)}"
                remedy = f"Use {' or '.join(map(str, near))}, or several instructions"
                found.append(Violation(argument, value, rule, remedy))
        return found

    def _kind_violations(self) -> Iterator[Violation]:
        if self.kind not in TYPE_CODES:
            yield Violation(
                "kind", self.kind, f"tcgen05 has {', '.join(TYPE_CODES)}", "Pass one of them"
            )
        if self.cta_group not in (1, 2):
            yield Violation(
                "cta_group", self.cta_group, "it is 1 or 2", "Pass 2 for a pair of CTAs"
            )

    def _violations(self) -> Iterator[Violation]:
        types = TYPE_CODES[self.kind]
        for argument, name in (("a", self.a), ("b", self.b)):
            if name not in types:
                rule = f"kind::{self.kind} multiplies {', '.join(types)}"
                yield Violation(argument, name, rule, "Convert the operand to one of them")
        legal = _ACCUMULATORS.get(self.kind, ("float32",))
        if self.accumulator not in legal:
            rule = f"kind::{self.kind} accumulates in {' or '.join(legal)}"
            yield Violation("accumulator", self.accumulator, rule, "Use it and convert the result")
        scales = _SCALES.get(self.kind, (("", 0),))
        if (self.scale_type, self.scale_block) not in scales:
            shown = ", ".join(f"{name} for {block} elements" for name, block in scales if name)
            yield Violation(
                "scale_type, scale_block",
                f"{self.scale_type or 'none'}, {self.scale_block}",
                f"kind::{self.kind} has {shown or 'no scale factors'}",
                "Use one of the kinds that begin with mx for scale factors",
            )
        if self.is_ws and (self.cta_group == 2 or self.is_block_scaled):
            rule = "tcgen05.mma.ws exists for cta_group::1 and without scale factors"
            yield Violation("is_ws", True, rule, "Use tcgen05.mma")


def _listed(values: tuple[int, ...]) -> str:
    if len(values) <= 4:
        return " or ".join(map(str, values))
    step = values[-1] - values[-2]
    regular = tuple(range(values[-1] % step or step, values[-1] + 1, step))
    if values == regular:
        return f"{values[0]} to {values[-1]} in steps of {step}"
    return ", ".join(map(str, values))


def operand_name(dtype: object, argument: str) -> str:
    """Return the name of a type that the tensor cores multiply; float32 as tfloat32.

    Raises:
        ArgumentError: They do not multiply it.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", "")
    if not name:
        try:
            name = np.dtype(dtype).name  # type: ignore[call-overload]
        except TypeError:
            name = repr(dtype)
    name = _SHORT_NAMES.get(name, name)
    if name not in ELEMENT_BITS:
        raise ArgumentError.broken(
            argument, name, f"tcgen05 multiplies {', '.join(ELEMENT_BITS)}", "Convert the operand"
        )
    return name


def mma_form(
    a: object,
    b: object = None,
    accumulator: object = None,
    *,
    scale_type: str = "",
    cta_group: int = 1,
    is_sparse: bool = False,
    is_ws: bool = False,
) -> MmaForm:
    """Return the form for these types.

    Args:
        a: Element type of A: a NumPy dtype, a type of ml_dtypes, or a name such as bf16 or e2m1.
            float32 is multiplied as TF32: the low 13 bits of each element are ignored.
        b: Element type of B; by default A's.
        accumulator: Type of D; by default the widest there is.
        scale_type: ue8m0 for a scale factor for every 32 elements along K (MXFP8, MXFP6, MXFP4),
            ue4m3 for one for every 16 (NVFP4). `MmaForm` has the others.
        cta_group: As in `MmaForm`.
        is_sparse: As in `MmaForm`.
        is_ws: As in `MmaForm`.

    Raises:
        ArgumentError: No instruction has this form; every reason, with a remedy.

    >>> mma_form("e2m1", scale_type="ue4m3").kind, mma_form("e4m3", "e2m1", scale_type="ue8m0").kind
    ('mxf4nvf4', 'mxf8f6f4')
    """
    left = operand_name(a, "a")
    right = left if b is None else operand_name(b, "b")
    kind = _kind_of(left, right, scale_type)
    wide = _ACCUMULATORS.get(kind, ("float32",))[0]
    name = wide if accumulator is None else str(np.dtype(accumulator).name)  # type: ignore[call-overload]
    return MmaForm(
        kind=kind,
        a=left,
        b=right,
        accumulator=name,
        cta_group=cta_group,
        is_sparse=is_sparse,
        is_ws=is_ws,
        scale_type=scale_type,
        scale_block={"": 0, "ue4m3": 16}.get(scale_type, 32),
    )


def _kind_of(a: str, b: str, scale_type: str) -> str:
    if scale_type == "ue4m3":
        return "mxf4nvf4"
    if scale_type:
        return "mxf4" if a == b == "float4_e2m1fn" else "mxf8f6f4"
    return next(kind for kind in ("f16", "tf32", "i8", "f8f6f4") if a in TYPE_CODES[kind])
