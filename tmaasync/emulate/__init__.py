"""The CPU back end: kernels on host memory, every CUDA thread a fiber under a scheduler of ours.

A kernel launched on NumPy arrays runs here, compiled from the same source by the system's C++
compiler. `scheduled` chooses how threads and asynchronous copies are interleaved.

>>> with scheduled("random", seed=7):
...     pass  # launches in here replay the same interleaving every time

`trace` keeps what launches do, event by event; `plot` draws it.

>>> with trace() as kept:
...     pass  # ops.matmul(a, b), then kept.save("gemm.json") and plot(kept, "gemm.png")
"""

from tmaasync.emulate.build import EmulatedProgram, build
from tmaasync.emulate.run import (
    LIMITS,
    EmulatedLaunch,
    EmulatedRun,
    Extent,
    Schedule,
    current_schedule,
    scheduled,
)
from tmaasync.emulate.trace import Trace, plot
from tmaasync.emulate.trace import record as trace

__all__ = [
    "LIMITS",
    "EmulatedLaunch",
    "EmulatedProgram",
    "EmulatedRun",
    "Extent",
    "Schedule",
    "Trace",
    "build",
    "current_schedule",
    "plot",
    "scheduled",
    "trace",
]
