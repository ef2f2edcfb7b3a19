"""Inline PTX on the CPU: ``asm`` statements become calls of the emulator's functions.

`statements` finds them in preprocessed C++, `program` reads their text, `table` has the
instructions, and `translate` writes the C++.
"""

from tmaasync.emulate.frontend.ptx.translate import ASM_SUFFIX, Translated, has_asm, translated

__all__ = ["ASM_SUFFIX", "Translated", "has_asm", "translated"]
