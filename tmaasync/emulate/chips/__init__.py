"""The chips that the emulator knows: one description per architecture, which is data."""

from tmaasync.emulate.chips.description import Chip
from tmaasync.emulate.chips.sm_90a import SM_90A

__all__ = ["SM_90A", "Chip"]
