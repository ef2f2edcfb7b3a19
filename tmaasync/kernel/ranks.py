"""Kernel arguments of a rank, whose launches wait for launches that the host makes later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tmaasync._collectors import TraceCollector
from tmaasync._tile.argument import KernelArgument
from tmaasync.errors import LaunchError


class RankTracer(Protocol):
    """The tracer of a launch whose trace is read after the launches of all ranks."""

    def hand_over(self, launches: Sequence[tuple[Any, TraceCollector]]) -> None:
        """Give the traces of finished launches to their collectors."""


class TracedRanks:
    """The traced launches in flight that use one `Signals` object."""

    def __init__(self) -> None:
        self._launches: list[tuple[RankTracer, TraceCollector]] = []

    def __bool__(self) -> bool:
        return bool(self._launches)

    def __contains__(self, tracer: object) -> bool:
        return any(one is tracer for one, _ in self._launches)

    def add(self, tracer: RankTracer, collector: TraceCollector) -> None:
        """Record a launch as in flight."""
        self._launches.append((tracer, collector))

    def hand_over(self) -> None:
        """Give the traces of finished launches to their collectors."""
        launches, self._launches = self._launches, []
        for tracer, _ in launches[:1]:
            tracer.hand_over(launches)


class RankArgument(KernelArgument):
    """A kernel argument of a rank whose launches wait for later launches of other ranks."""

    __slots__ = ()

    rank: int

    @property
    def _traced(self) -> TracedRanks:
        raise NotImplementedError


def check_call(name: str, args: Iterable[object]) -> None:
    """Reject a traced GPU launch that waits for other ranks and was not prepared.

    Raises:
        LaunchError: It would allocate memory while other ranks run.
    """
    ranks = (one for one in args if isinstance(one, RankArgument))
    if any(one.array_view is not None and one.array_view.device is not None for one in ranks):
        raise LaunchError(
            f"{name} takes Signals, and is called inside trace.record(); on GPUs a traced launch "
            "has its memory before any rank runs. Prepare the launches of all ranks with "
            "Kernel.prepare, then call them."
        )
