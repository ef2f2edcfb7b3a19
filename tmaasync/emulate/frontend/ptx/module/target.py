"""The chip that a PTX module is compiled for."""

from __future__ import annotations

import re

from tmaasync.emulate.chips import CHIPS, SM_90A, Chip

__all__ = ["target_of"]

_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)


def target_of(module: str) -> Chip:
    r"""Return the chip of a module's ``.target``, else Hopper, which runs modules for older GPUs.

    >>> target_of(".version 8.8\n.target sm_120a, debug\n").gpu
    'RTX PRO 6000 Blackwell'
    """
    found = _TARGET.search(module)
    return SM_90A if found is None else CHIPS.get(found[1], SM_90A)
