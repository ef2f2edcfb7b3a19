"""Copy mechanisms, and the verdict on each: it can do the copy, or the rule that forbids it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tmaasync.copy_plan.request import Request
from tmaasync.errors import Violation
from tmaasync.tile import StridedTensor, TMATensorTile

Reason = tuple[Violation, str]
"""A broken rule, and where the rule stands."""

ASKED = "the caller"
KERNEL = "tmaasync/copy/copy.cuh"


class Mechanism(StrEnum):
    """The instructions that can move a tile, fastest first."""

    BULK = "bulk"
    """One ``cp.async.bulk`` of contiguous memory."""

    MULTICAST = "multicast"
    """A tensor load into several CTAs of a cluster at once."""

    TENSOR = "tensor"
    """``cp.async.bulk.tensor`` with a tensor map, one per box."""

    CP_ASYNC = "cp_async"
    """``cp.async`` of 16, 8 or 4 bytes by every thread; loads only."""

    LOOP = "loop"
    """Ordinary loads and stores by every thread."""

    @property
    def is_tma(self) -> bool:
        """True if one thread hands the copy to the Tensor Memory Accelerator."""
        return self in (Mechanism.BULK, Mechanism.MULTICAST, Mechanism.TENSOR)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a mechanism cannot do a copy: one broken rule and the source of that rule.

    ``access_bytes`` is the width of the access that was refused, where several were tried.
    """

    mechanism: Mechanism
    violation: Violation
    source: str
    access_bytes: int | None = None

    def __str__(self) -> str:
        width = "" if self.access_bytes is None else f" of {self.access_bytes} bytes"
        return f"{self.mechanism}{width}: {self.violation} [{self.source}]"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A mechanism that can, what the kernel is given for it, and the bytes of one access."""

    mechanism: Mechanism
    parameter: TMATensorTile | StridedTensor
    access_bytes: int = 0


# --- what several share -----------------------------------------------------------------------


def bits_only(request: Request) -> Iterator[Reason]:
    """Yield what keeps a copy from every mechanism that moves bits as they are."""
    if request.converts:
        yield (
            Violation(
                "the tile's element type",
                request.cut.element,
                f"the {request.array} holds {request.view.element}, and only a loop converts",
                f"Keep {request.view.element} in shared memory, and convert on the way from there",
            ),
            KERNEL,
        )


def tma(request: Request) -> Iterator[Reason]:
    """Yield what keeps a copy from all of TMA."""
    if request.options.disable_tma:
        yield Violation("disable_tma", True, "it rules TMA out", "Leave it out"), ASKED
    yield from bits_only(request)
