"""The place of one role in the ring: which stage comes next, and in which phase."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Self

from tmaasync.errors import ArgumentError

__all__ = ["PipelineState"]


@dataclass(slots=True)
class PipelineState:
    """Index, phase and step count of a role that goes round a ring of ``stages``.

    ``phase`` is the parity to wait on: it flips each time the index comes back to 0.

    >>> place = PipelineState.for_consumer(2)
    >>> for _ in range(3):
    ...     place.step()
    >>> place
    PipelineState(stages=2, index=1, phase=1, count=3)
    """

    stages: int
    index: int = 0
    phase: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        """Refuse a place that is outside the ring."""
        if self.stages < 0 or not 0 <= self.index < max(self.stages, 1) or self.phase not in (0, 1):
            raise ArgumentError(
                f"stages, index, phase are {self.stages}, {self.index}, {self.phase}; stages must "
                "be at least 0, index below stages, and phase 0 or 1. "
                "Start from PipelineState.for_producer(stages) or .for_consumer(stages)."
            )

    @classmethod
    def for_producer(cls, stages: int) -> Self:
        """Return the start of the role that waits on the empty barriers.

        It starts on phase 1, the phase "before" phase 0 of a fresh barrier, so that the first lap
        passes at once: all stages are empty. Where the consumers arrive on every empty barrier
        before the loop, start it from ``for_consumer`` instead.
        """
        return cls(stages, phase=1)

    @classmethod
    def for_consumer(cls, stages: int) -> Self:
        """Return the start of a role that waits on the full barriers."""
        return cls(stages)

    def __enter__(self) -> Self:
        """Return this place itself, as upstream does."""
        return self

    def __exit__(self, *_: object) -> None: ...

    def step(self) -> None:
        """Go on to the next stage; in a ring without stages, stay."""
        if self.stages == 0:
            return
        self.count += 1
        self.index += 1
        if self.index == self.stages:
            self.index = 0
            self.phase ^= 1

    def advance(self, stages: int) -> None:
        """Go on by so many stages, which may be several laps."""
        for _ in range(stages):
            self.step()

    def next(self) -> Self:
        """Step, then return a copy of the new place."""
        self.step()
        return copy.copy(self)
