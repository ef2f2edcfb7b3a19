"""The collector of traces that applies to launches here and now.

`tmaasync.trace` sets it; launches hand their traces to it, and know nothing else about tracing.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, Protocol

NOTES_PER_WARP = 1024
"""Records of a warp on a GPU for which a collector has room by default."""


class TraceCollector(Protocol):
    """Takes the traces of launches; ``notes_per_warp`` bounds the records of a warp on a GPU."""

    notes_per_warp: int

    def take(self, trace: Any) -> None:
        """Keep the trace of one more launch."""


COLLECTOR = contextvars.ContextVar[TraceCollector | None]("tmaasync collector", default=None)

CollectorOf = Callable[[], TraceCollector | None]
"""Return the collector of launches in this context; None without one."""

# The variable's own method: every launch calls it, and a wrapper would cost time.
current_collector: CollectorOf = COLLECTOR.get
