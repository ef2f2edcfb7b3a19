"""What a launch on the CPU did, event by event, and its pictures.

>>> from tmaasync.emulate.trace import record
>>> with record() as trace:
...     pass  # launches on NumPy arrays: ops.matmul(a, b)
>>> len(trace)
0

``trace.save("gemm.json")`` is for https://ui.perfetto.dev, ``plot(trace, "gemm.svg")`` for people;
`find_rings` and `find_lanes` tell what both show.
"""

from tmaasync.emulate.trace.events import EVENT_DTYPE, NOBODY, NOTHING, Event, EventKind
from tmaasync.emulate.trace.lanes import Activity, Lane, LaneSpan, find_lanes
from tmaasync.emulate.trace.launches import Collector, Trace, current_collector, record
from tmaasync.emulate.trace.plot import plot
from tmaasync.emulate.trace.rings import Ring, Stage, StageSpan, StageState, find_rings

__all__ = [
    "EVENT_DTYPE",
    "NOBODY",
    "NOTHING",
    "Activity",
    "Collector",
    "Event",
    "EventKind",
    "Lane",
    "LaneSpan",
    "Ring",
    "Stage",
    "StageSpan",
    "StageState",
    "Trace",
    "current_collector",
    "find_lanes",
    "find_rings",
    "plot",
    "record",
]
