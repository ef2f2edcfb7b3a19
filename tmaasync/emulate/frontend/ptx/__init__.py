"""Inline PTX on the CPU: ``asm`` statements become calls of the emulator's functions.

`statements` finds them in preprocessed C++, `parser` reads their text into a `program`, and
`translate` writes the C++: `instructions` finds the row of each in `table`, `operands` writes its
operands, and `row_code` fills them in.
"""

from tmaasync.emulate.frontend.ptx.translate import ASM_SUFFIX, Translated, has_asm, translated

__all__ = ["ASM_SUFFIX", "Translated", "has_asm", "translated"]
