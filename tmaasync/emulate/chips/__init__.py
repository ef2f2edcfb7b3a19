"""The chips that the emulator knows: one description per architecture, which is data."""

from collections.abc import Mapping

from tmaasync.emulate.chips.description import Chip, TensorMemory
from tmaasync.emulate.chips.sm_90a import SM_90A
from tmaasync.emulate.chips.sm_100a import SM_100A, SM_103A
from tmaasync.emulate.chips.sm_120a import SM_120A

__all__ = ["CHIPS", "SM_90A", "SM_100A", "SM_103A", "SM_120A", "Chip", "TensorMemory"]

CHIPS: Mapping[str, Chip] = {
    "sm_90": SM_90A,
    **{chip.arch: chip for chip in (SM_90A, SM_100A, SM_103A, SM_120A)},
}
"""The chips by the architectures that run on them."""
