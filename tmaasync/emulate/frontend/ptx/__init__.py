"""PTX on the CPU: instructions become calls of the emulator's functions.

A unit is an ``asm`` statement, which `statements` finds in preprocessed C++, or a function of a
`module`. `pieces` splits its text, and `parser` reads it into a `program`. `translate` and `module`
write the C++: `instructions` finds the row of each in `table`, `operands` writes its
operands, and `row_code` fills them in.
"""

from tmaasync.emulate.frontend.ptx.module import (
    ModuleCode,
    included,
    module_code,
    paths_of_lines,
    target_of,
    without_inlined,
)
from tmaasync.emulate.frontend.ptx.translate import ASM_SUFFIX, Translated, has_asm, translated

__all__ = [
    "ASM_SUFFIX",
    "ModuleCode",
    "Translated",
    "has_asm",
    "included",
    "module_code",
    "paths_of_lines",
    "target_of",
    "translated",
    "without_inlined",
]
