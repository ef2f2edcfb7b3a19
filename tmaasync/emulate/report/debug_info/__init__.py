"""DWARF debug information of a compiled kernel: names in shared memory, and source lines."""

from tmaasync.emulate.report.debug_info.dwarf_unit import Frame
from tmaasync.emulate.report.debug_info.library import DebugInfo, debug_info, source_frame

__all__ = ["DebugInfo", "Frame", "debug_info", "source_frame"]
