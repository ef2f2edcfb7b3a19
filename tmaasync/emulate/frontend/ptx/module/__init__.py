"""PTX modules on the CPU: each function's body is a unit, as an ``asm`` statement is.

`reader` finds the functions and variables of a module, and `lines` the source line of each line.
`register_parameters` puts the parameters of functions into memory. `body` reads a function into a
program, `accumulators` lays out the registers that wgmma keeps, and `function`, `variables` and
`code` write the C++. `target` is its chip.
"""

from tmaasync.emulate.frontend.ptx.module.code import ModuleCode, included, module_code
from tmaasync.emulate.frontend.ptx.module.lines import paths_of_lines, without_inlined
from tmaasync.emulate.frontend.ptx.module.target import target_of

__all__ = [
    "ModuleCode",
    "included",
    "module_code",
    "paths_of_lines",
    "target_of",
    "without_inlined",
]
