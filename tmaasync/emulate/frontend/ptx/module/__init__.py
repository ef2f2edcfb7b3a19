"""PTX modules on the CPU: each function's body is a unit, as an ``asm`` statement is.

`reader` finds the functions and variables of a module, and `lines` the source line of each line.
`register_parameters` puts the parameters of functions into memory. `body` reads a function into a
program, `accumulators` lays out the registers that wgmma keeps, and `function`, `variables` and
`code` write the C++.
"""

import re

from tmaasync.emulate.chips import CHIPS, SM_90A, Chip
from tmaasync.emulate.frontend.ptx.module.code import ModuleCode, included, module_code
from tmaasync.emulate.frontend.ptx.module.lines import paths_of_lines, without_inlined

__all__ = [
    "ModuleCode",
    "included",
    "module_code",
    "paths_of_lines",
    "target_of",
    "without_inlined",
]

_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)


def target_of(module: str) -> Chip:
    r"""Return the chip of a module's ``.target``, else Hopper, which runs modules for older GPUs.

    >>> target_of(".version 8.8\n.target sm_120a, debug\n").gpu
    'RTX PRO 6000 Blackwell'
    """
    found = _TARGET.search(module)
    return SM_90A if found is None else CHIPS.get(found[1], SM_90A)
