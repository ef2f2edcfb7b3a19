"""The plan of a copy: what a kernel is built with and launched with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync._tile.argument import CutSizes, KernelArgument
from tmaasync._tile.cut import Cut
from tmaasync.copy_plan.mechanism import Chosen, Mechanism, Refusal
from tmaasync.copy_plan.request import Request
from tmaasync.copy_plan.threads import elements_of
from tmaasync.modes import CachePolicy, Swizzle

_CUDA_POLICY = {
    CachePolicy.EVICT_NORMAL: "kEvictNormal",
    CachePolicy.EVICT_FIRST: "kEvictFirst",
    CachePolicy.EVICT_LAST: "kEvictLast",
}
_CUDA_TEMPLATE = {
    Mechanism.BULK: "BulkCopy",
    Mechanism.MULTICAST: "MulticastCopy",
    Mechanism.TENSOR: "TensorCopy",
    Mechanism.CP_ASYNC: "CpAsyncCopy",
    Mechanism.LOOP: "LoopCopy",
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CopyPlan(KernelArgument, CutSizes):
    """A copy of tiles from an array to shared memory, or back; made by `plan_copy`.

    Build a kernel with ``Kernel(types={"Source": plan})`` and launch it with the plan for a
    ``const __grid_constant__ Source source``. There ``copy(shared, source, at)`` compiles to the
    mechanism of the plan. The plan keeps the array alive.

    Attributes:
        possible: Every possible mechanism, in the order of preference.
        refused: The rules that forbid the other mechanisms, and wider accesses.
    """

    _kind = "plan"

    _request: Request
    _chosen: Chosen
    possible: tuple[Mechanism, ...]
    refused: tuple[Refusal, ...]

    def __repr__(self) -> str:
        sides, shape = ("x".join(map(str, s)) for s in (self.tile_shape, self._request.view.shape))
        width = f" of {self.access_bytes} bytes" if self.access_bytes else ""
        return (
            f"<CopyPlan {self.direction} {sides} of {self._request.view.element} [{shape}] by "
            f"{self.mechanism}{width}>"
        )

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism: "bulk", "multicast", "tensor", "cp_async" or "loop"."""
        return self._chosen.mechanism

    @property
    def access_bytes(self) -> int:
        """Bytes of global memory that one access of a thread takes; 0 for TMA."""
        return self._chosen.access_bytes

    @property
    def direction(self) -> str:
        """``"load"`` from the array to shared memory, or ``"store"`` back."""
        return "store" if self._request.is_store else "load"

    @property
    def swizzle(self) -> Swizzle:
        """The permutation of 16-byte chunks in shared memory."""
        return self._request.cut.swizzle

    @property
    def expected_bytes(self) -> int:
        """Bytes that a barrier must expect for one load, elements out of bounds included.

        0 for stores, and for copies by threads, which no barrier waits for.
        """
        return self.tile_bytes if self.mechanism.is_tma and not self._request.is_store else 0

    @property
    def tiles_per_side(self) -> tuple[int, ...]:
        """Copies along each dimension, outermost first."""
        return tuple(len(places) for places in self._request.starts)

    @property
    def accesses_per_tile(self) -> int:
        """Accesses of all threads together for one tile, or instructions of the one that issues."""
        if self.mechanism is Mechanism.BULK:
            return 1
        if self.mechanism.is_tma:
            return self.boxes_per_tile
        count = elements_of(self._request, self.access_bytes)
        parts = -(-count * self._request.view.element.itemsize // self.access_bytes)
        return math.prod(self.tile_shape) // count * parts

    @property
    def policy(self) -> CachePolicy:
        """The eviction policy that the copy carries: normal unless TMA moves it."""
        is_carried = self.mechanism.is_tma
        return self._request.options.policy if is_carried else CachePolicy.EVICT_NORMAL

    def explain(self) -> str:
        """Return the choice, its cost, and a line for each rule that forbids a faster mechanism."""
        return "\n".join(_lines(self._request, self))

    @property
    def cuda_type(self) -> str:
        """The type of the plan in CUDA C++."""
        arguments = [self._request.cut.cuda_type()]
        if not self.mechanism.is_tma:
            arguments.append(str(self.access_bytes))
        elif self.policy is not CachePolicy.EVICT_NORMAL or self.mechanism is Mechanism.MULTICAST:
            arguments.append(f"tmaasync::CachePolicy::{_CUDA_POLICY[self.policy]}")
        if self.mechanism is Mechanism.MULTICAST:
            arguments.append(hex(self._request.options.cluster_mask))
        if self._request.converts:
            arguments.append(self._request.view.element.cuda_type)
        return f"tmaasync::{_CUDA_TEMPLATE[self.mechanism]}<{', '.join(arguments)}>"

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter: a tensor map, or address, strides and extents."""
        return self._chosen.parameter.argument

    @property
    def _view(self) -> ArrayView:
        return self._request.view

    @property
    def _cut(self) -> Cut:
        return self._request.cut


class CopyPair(NamedTuple):
    """A copy from array to array through shared memory: one plan in, one plan out."""

    load: CopyPlan
    store: CopyPlan

    def explain(self) -> str:
        """Return both explanations."""
        return f"{self.load.explain()}\n{self.store.explain()}"


# --- the explanation --------------------------------------------------------------------------


def _lines(request: Request, plan: CopyPlan) -> Iterator[str]:
    view, sides = request.view, "x".join(map(str, plan.tile_shape))
    way = "to" if request.is_store else "from"
    shape = "x".join(map(str, view.shape))
    yield f"{plan.direction}: tiles of {sides} {plan.element} {way} {view.element} [{shape}]"
    yield f"  array: address {view.address:#x}, strides of {view.strides_bytes} bytes"
    yield f"  chosen: {_work(plan)}"
    boxes = "x".join(map(str, plan.box_shape))
    yield (
        f"  shared memory: {plan.tile_bytes} bytes at a multiple of {plan.smem_alignment}, "
        f"{_count(plan.boxes_per_tile, 'box', 'boxes')} of {boxes}, {plan.swizzle}"
    )
    yield f"  waited for: {_wait(plan)}"
    yield from _ignored(request, plan)
    others = [mechanism for mechanism in plan.possible if mechanism is not plan.mechanism]
    if others:
        yield f"  possible too: {', '.join(others)}"
    for mechanism in Mechanism:
        yield from _refusals(plan, mechanism)


def _refusals(plan: CopyPlan, mechanism: Mechanism) -> Iterator[str]:
    """Return why other mechanisms, and wider accesses of the chosen one, cannot be used."""
    is_chosen = mechanism is plan.mechanism
    if mechanism in plan.possible and not is_chosen:
        return
    against = [refusal for refusal in plan.refused if refusal.mechanism is mechanism]
    if against:
        yield f"  why not {'wider' if is_chosen else mechanism}:"
    for refusal in against:
        width = "" if refusal.access_bytes is None else f"{refusal.access_bytes} bytes: "
        yield f"    {width}{refusal.violation} [{refusal.source}]"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _work(plan: CopyPlan) -> str:
    number = plan.accesses_per_tile
    if plan.mechanism.is_tma:
        return f"{plan.mechanism}, {_count(number, 'instruction', 'instructions')} a tile"
    accesses = _count(number, "access", "accesses")
    return f"{plan.mechanism}, {accesses} of {plan.access_bytes} bytes a tile"


def _wait(plan: CopyPlan) -> str:
    if plan.mechanism is Mechanism.LOOP:
        return "by __syncthreads"
    if plan.mechanism is Mechanism.CP_ASYNC:
        return "by cp_async_wait and __syncthreads"
    if plan.direction == "store":
        return "by wait_group, in the thread that stores"
    return f"by a barrier that expects {plan.expected_bytes} bytes"


def _ignored(request: Request, plan: CopyPlan) -> Iterator[str]:
    if plan.policy is not request.options.policy:
        yield f"  not applied: {request.options.policy.name}, which only TMA carries"
    if request.options.coalesced_width is not None and plan.mechanism.is_tma:
        yield "  not applied: coalesced_width, as one thread issues the copy"
