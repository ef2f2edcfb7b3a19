"""Modifiers in the order of the PTX ISA, as the table has them; ptxas takes them in any order."""

from __future__ import annotations

import re

from tmaasync.emulate.frontend.ptx.row import TYPES

__all__ = ["in_isa_order"]

# The kinds of modifiers, in the order in which the ISA writes them. Two of one kind, such as the
# spaces of a copy or the types of a conversion, keep their order, as ptxas demands.
_KINDS = (
    r"sync",
    r"aligned",
    r"idx|up|down|bfly|ballot|m\d+n\d+k\d+|m\d+n\d+|eq|ne|lt|le|gt|ge|ltu|leu|gtu|geu|equ|neu|num|nan",
    r"row|col",
    r"x[124]",
    r"trans",
    r"weak|volatile|mmio|relaxed|acquire|release|acq_rel|sc",
    rf"{TYPES['SCOPE']}",
    r"global|shared(?:::(?:cta|cluster))?|local|const|param",
    r"nc",
    r"add|min|max|inc|dec|and|or|xor|exch|cas",
    r"noftz",
    r"tile(?:::gather4|::scatter4)?|im2col(?:::w(?:::128)?)?",
    r"mbarrier::complete_tx::bytes|bulk_group",
    r"multicast::cluster",
    r"cta_group::[12]",
    r"approx|full|rn|rz|rm|rp|rs|rna|rni|rzi|rmi|rpi",
    r"ftz",
    r"sat",
    r"satfinite",
    r"relu",
    r"NaN",
    r"ca|cg|cs|lu|cv|wb|wt",
    r"L1::\w+",
    r"L1|L2(?:::evict_\w+)?",
    r"L2::cache_hint",
    r"cp_mask",
    r"L2::\d+B",
    r"v[248]",
    rf"{TYPES['ANY']}|\w+x[24]|tf32|pred",
)
_RANKS = tuple(re.compile(kind) for kind in _KINDS)
# The words before the modifiers. In some instructions they look like modifiers.
_NAME = re.compile(
    r"cp\.async\.bulk(?:\.tensor\.[1-5]d|\.\w+)|cp\.async\.c[ag]|barrier\.cluster\.\w+"
    r"|mbarrier\.\w+(?:\.(?:parity|expect_tx|noComplete))?|(?:wgmma|setmaxnreg|barrier|bar)\.\w+|(?:st|red)\.async|fence\.(?:proxy|mbarrier_init)\S*"
    r"|cp\.reduce\S*|match\.\w+|griddepcontrol\.\w+|(?:mul|mad)\.\w+|\w+"
)


def in_isa_order(opcode: str) -> str:
    """Return an opcode with its modifiers in the order of the PTX ISA.

    >>> in_isa_order("ld.L1::no_allocate.global.v4.nc.s32")
    'ld.global.nc.L1::no_allocate.v4.s32'
    >>> in_isa_order("stmatrix.sync.aligned.x2.m8n8.shared.b16.trans")
    'stmatrix.sync.aligned.m8n8.x2.trans.shared.b16'
    >>> in_isa_order("cvt.bf16x2.rn.f32")
    'cvt.rn.bf16x2.f32'
    """
    name = _NAME.match(opcode)
    if name is None:
        return opcode
    modifiers = opcode[name.end() :].split(".")[1:]
    if not all(map(_is_known, modifiers)):
        return opcode
    return ".".join((name[0], *sorted(modifiers, key=_rank)))


def _is_known(modifier: str) -> bool:
    return any(kind.fullmatch(modifier) for kind in _RANKS)


def _rank(modifier: str) -> int:
    return next(rank for rank, kind in enumerate(_RANKS) if kind.fullmatch(modifier))
