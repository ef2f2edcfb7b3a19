"""The CPU back end: runs kernels on host memory, with every CUDA thread as a scheduled fiber.

A kernel launched on NumPy arrays runs here, compiled from the same source by the system's C++
compiler. `scheduled` chooses how threads and asynchronous copies are interleaved.

>>> with scheduled("random", seed=7):
...     pass  # launches in here replay the same interleaving every time

`tmaasync.trace` records and draws the events of a launch, as for launches on a GPU.
"""

from tmaasync.emulate.chips import SM_90A
from tmaasync.emulate.chips.current import chip
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.frontend.cpp.build import build
from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.emulate.launch.last_verdict import last_verdict
from tmaasync.emulate.launch.prepared import EmulatedLaunch, EmulatedRun
from tmaasync.emulate.launch.schedule import (
    SEARCHED_WORDS,
    Schedule,
    current_schedule,
    scheduled,
)
from tmaasync.emulate.launch.verdict import LaunchVerdict, Verdict
from tmaasync.emulate.launch.verify import verify
from tmaasync.emulate.launch.world import EmulatedDevice, World, current_world, devices
from tmaasync.emulate.launch.world import other_world_of as other_world_of

LIMITS = SM_90A.device
"""What the emulated device allows, unless `chip` or a kernel names another architecture."""

__all__ = [
    "LIMITS",
    "SEARCHED_WORDS",
    "EmulatedDevice",
    "EmulatedLaunch",
    "EmulatedProgram",
    "EmulatedRun",
    "Extent",
    "LaunchVerdict",
    "Schedule",
    "Verdict",
    "World",
    "build",
    "chip",
    "current_schedule",
    "current_world",
    "devices",
    "last_verdict",
    "scheduled",
    "verify",
]
