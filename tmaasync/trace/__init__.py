"""Record kernel launches event by event, on the CPU and on a GPU, and draw their timelines.

>>> from tmaasync import trace
>>> with trace.record() as kept:
...     pass  # launches: ops.matmul(a, b)
>>> len(kept)
0

``kept.save("gemm.json")`` writes a file for https://ui.perfetto.dev, ``trace.plot(kept,
"gemm.svg")`` a picture. `find_pipelines` and `find_lanes` return the data that both show.
"""

from tmaasync.trace import chip
from tmaasync.trace.collector import Collector, current_collector, load, record
from tmaasync.trace.events import EVENT_DTYPE, NOBODY, NOTHING, Event, EventKind
from tmaasync.trace.lanes import Activity, Lane, LaneSpan, find_lanes
from tmaasync.trace.pipelines import Pipeline, Stage, StageSpan, StageState, find_pipelines
from tmaasync.trace.plot import plot
from tmaasync.trace.summary import Role, Share, Summary
from tmaasync.trace.trace import Trace

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
    "Pipeline",
    "Role",
    "Share",
    "Stage",
    "StageSpan",
    "StageState",
    "Summary",
    "Trace",
    "chip",
    "current_collector",
    "find_lanes",
    "find_pipelines",
    "load",
    "plot",
    "record",
]
