"""Instructions that only some chips have, by family.

Which architectures have a family was read off ptxas 13.0, which assembles it for those alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tmaasync.emulate.chips.description import Chip

_BLACKWELL = ("sm_100a", "sm_103a", "sm_120a")
_DATA_CENTER = ("sm_100a", "sm_103a")


@dataclass(frozen=True, slots=True)
class Family:
    """Instructions that exist on the same chips.

    Attributes:
        name: What documents call it.
        opcodes: The beginning of the opcodes, as a regular expression.
        archs: The architectures that have them.
        instead: What other chips have; empty for instructions of tensor cores, of which every chip
            has its own.
        operands: The number of operands, if only this form is of the family.
    """

    name: str
    opcodes: str
    archs: tuple[str, ...]
    instead: str = ""
    operands: int | None = None

    def has(self, opcode: str, operands: int) -> bool:
        """Return whether an instruction is of this family."""
        is_form = self.operands in (None, operands)
        return is_form and re.match(self.opcodes, opcode) is not None


WGMMA = Family("wgmma", r"wgmma\b", ("sm_90a",))
TCGEN05 = Family("tcgen05, all others", r"tcgen05\b", _DATA_CENTER)
F32X2 = Family(
    "add, sub, mul and fma of f32x2",
    r"(?:add|sub|mul|fma)\b.*\.f32x2\b",
    _BLACKWELL,
    "the instruction of f32 for each half",
)
CLUSTER_LAUNCH_CONTROL = Family(
    "clusterlaunchcontrol",
    r"clusterlaunchcontrol\b",
    _BLACKWELL,
    "a counter of tiles and atomicAdd()",
)
TENSOR_COPIES = Family(
    "TMA of CTA pairs, scatter4, wide im2col",
    r"cp\.(?:reduce\.)?async\.bulk\b.*(?:\.cta_group::|::scatter4\b|\.im2col::w\b)",
    _DATA_CENTER,
    "a copy for each CTA, row or window",
)
BYTE_MASK = Family(
    "bulk stores with a byte mask",
    r"cp\.async\.bulk\b.*\.cp_mask\b",
    _BLACKWELL,
    "a copy for each run of bytes",
)
MMA_KINDS = Family("mma.sync and mma.sp with a kind", r"mma\b.*\.kind::", ("sm_120a",))
WIDE_ACCESS = Family(
    "loads and stores of 256 bits",
    r"(?:ld|st)\b(?!.*\.(?:async|shared|local|const|param)\b)"
    r"(?:(?=.*\.v8\b).*\.[busf]32\b|(?=.*\.v4\b).*\.[busf]64\b)",
    _BLACKWELL,
    "two instructions of 128 bits",
)
REDUX_F32 = Family(
    "redux.sync of f32", r"redux\b.*\.f32\b", _DATA_CENTER, "shfl.sync.bfly and min or max"
)
STOCHASTIC = Family("cvt.rs", r"cvt\.rs\b", _DATA_CENTER, "cvt.rn")
SMALL_FLOATS = Family(
    "cvt of e2m1, e2m3, e3m2 and ue8m0",
    r"cvt\b.*\.(?:e2m1x[24]|e2m3x[24]|e3m2x[24]|ue8m0x2)\b",
    _BLACKWELL,
    "the functions of <cuda_fp4.h>, <cuda_fp6.h> and <cuda_fp8.h>",
)
BYTE_MATRICES = Family(
    "ldmatrix and stmatrix of bytes",
    r"(?:ld|st)matrix\b.*\.(?:m16n16|m8n16|m16n8)\b",
    _BLACKWELL,
    "the forms of m8n8",
)
FAMILIES = (
    WGMMA,
    Family("tcgen05.ld.red", r"tcgen05\.ld\.red\b", ("sm_103a",)),
    Family("tcgen05.mma of kind::i8", r"tcgen05\b.*\.kind::i8\b", ("sm_100a",)),
    TCGEN05,
    MMA_KINDS,
    CLUSTER_LAUNCH_CONTROL,
    Family(
        "wide im2col into .shared::cta",
        r"cp\.async\.bulk\.tensor\b(?!.*\.cta_group)(?=.*\.shared::cta\.global\b).*\.im2col::w\.",
        _BLACKWELL,
        "a copy for each window",
    ),
    TENSOR_COPIES,
    Family(
        "gather4 into .shared::cluster, and its prefetch",
        r"cp\.async\.bulk\b(?=.*\.(?:shared::cluster|prefetch)\b).*::gather4\b",
        _DATA_CENTER,
        "a copy for each row",
    ),
    Family(
        "gather4 into .shared::cta",
        r"cp\.async\.bulk\b.*::gather4\b",
        _BLACKWELL,
        "a copy for each row",
    ),
    BYTE_MASK,
    Family("st.bulk", r"st\.bulk\b", _BLACKWELL, "st.shared in a loop"),
    Family(
        "tensormap.replace of the swizzle's atom",
        r"tensormap\.replace\b.*\.swizzle_atomicity\b",
        _BLACKWELL,
        "a map made on the host",
    ),
    F32X2,
    WIDE_ACCESS,
    Family(
        "add, sub and fma of a half to f32",
        r"(?:add|sub|fma)\b.*\.f32\.b?f16\b",
        _BLACKWELL,
        "cvt to f32, and the instruction of f32",
    ),
    REDUX_F32,
    Family(
        "min and max of three floats",
        r"(?:min|max)\b.*\.f32\b",
        _BLACKWELL,
        "two instructions of two inputs",
        operands=4,
    ),
    STOCHASTIC,
    SMALL_FLOATS,
    BYTE_MATRICES,
)


def missing(chip: Chip, opcode: str, operands: int) -> str | None:
    """Return why a chip lacks an instruction, and what to use instead; None if it has it.

    Args:
        chip: The chip.
        opcode: The opcode with its modifiers.
        operands: The number of operands.
    """
    family = _family_of(opcode, operands)
    return None if family is None or chip.arch in family.archs else why_missing(chip, family)


def why_missing(chip: Chip, family: Family) -> str:
    """Return a predicate for the instructions of a family that a chip lacks.

    >>> from tmaasync.emulate.chips import SM_120A
    >>> why_missing(SM_120A, WGMMA).partition(". ")[0]
    'is of sm_90a, and the kernel is compiled for sm_120a, whose tensor cores take mma.sync'
    """
    own = "" if family.instead else f", whose tensor cores take {chip.tensor_cores}"
    both = "" if chip.tensor_cores == _EVERYWHERE else f" or {_EVERYWHERE}"
    instead = family.instead or f"{chip.tensor_cores}{both}"
    return (
        f"is of {_listed(family.archs)}, and the kernel is compiled for {chip.arch}{own}. "
        f'Use {instead}, or pass arch="{family.archs[0]}" to Kernel.'
    )


_EVERYWHERE = "mma.sync"  # the tensor core instructions that every chip has


def not_emulated(chip: Chip, opcode: str, operands: int) -> str | None:
    """Return a predicate for an instruction of a family that the chip has and the CPU lacks.

    None for an instruction of no family.
    """
    family = _family_of(opcode, operands)
    if family is None:
        return None
    return (
        f"is of {_listed(family.archs)}, and the CPU does not emulate it yet. "
        f"Use {family.instead or _EVERYWHERE}, or pass arrays on a {chip.gpu}."
    )


def _family_of(opcode: str, operands: int) -> Family | None:
    return next((family for family in FAMILIES if family.has(opcode, operands)), None)


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
