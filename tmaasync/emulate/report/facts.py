"""The host's knowledge of a launch, for its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tmaasync._driver import LaunchConfig
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.frontend.program import EmulatedProgram

__all__ = ["Facts"]


@dataclass(frozen=True, slots=True)
class Facts:
    """The host's knowledge of a launch; ``device`` is its ordinal in an emulated world."""

    program: EmulatedProgram
    config: LaunchConfig
    budget_seconds: float
    size: str  # of the launch, in words
    arrays: Sequence[Iterable[Extent]]
    # By name, that are no arguments.
    others: Mapping[str, Extent] = field(default_factory=dict)
    device: int | None = None
