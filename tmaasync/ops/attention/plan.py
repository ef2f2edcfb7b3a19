"""All that attention costs once per layout of its arrays."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tmaasync import _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._memory import DeviceMemory, HostMemory, placed
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.kernel import wait_for_producers
from tmaasync.ops._copies import in_order
from tmaasync.ops._launches import Aim
from tmaasync.ops._plans import Layout, is_apart
from tmaasync.ops._results import address_of
from tmaasync.ops.attention.arguments import Views, reachable
from tmaasync.ops.attention.float8 import UNSCALED, Float8Launch, Scale, TransposedValues
from tmaasync.ops.attention.kernel import (
    Blocking,
    Sizes,
    Variant,
    attention_kernel,
    attention_tiles,
    choose_blocking,
)
from tmaasync.ops.attention.order import tile_order
from tmaasync.ops.attention.pieces import pieces_of, splits_keys
from tmaasync.ops.attention.scores import Scores
from tmaasync.ops.attention.split_launch import SplitLaunch

__all__ = ["Plan", "plan_for", "problem", "variant_of"]

_OUT = 3  # among q, k, v, out
_Launch = PreparedLaunch | EmulatedLaunch | SplitLaunch | Float8Launch


@functools.lru_cache(maxsize=1024)
def plan_for(
    operands: tuple[Layout, ...],
    out: Layout,
    scores: Scores,
    *,
    has_lse: bool,
    scales: tuple[Scale, ...] = UNSCALED,
) -> Plan:
    """All that attention costs once per layout; the same plan serves any addresses."""
    return Plan(operands, out, scores, has_lse=has_lse, scales=scales)


class Plan:
    """Attention over arrays of given layouts: everything but their addresses and the stream."""

    def __init__(
        self,
        operands: Sequence[Layout],
        out: Layout,
        scores: Scores,
        *,
        has_lse: bool,
        scales: tuple[Scale, ...] = UNSCALED,
        blocking: Blocking | None = None,
    ) -> None:
        """Nothing is compiled or encoded before the first `run`; the blocking is chosen there."""
        q, k, _ = operands
        self._sizes = Sizes(
            queries=q.shape[1],
            keys=k.shape[1],
            heads=q.shape[2],
            heads_per_kv_head=q.shape[2] // k.shape[2],
            batch=q.shape[0],
            head_dim=q.shape[3],
            element_bytes=q.element.itemsize,
        )
        self._spans = tuple(layout.span_bytes for layout in (*operands, out))
        self._scores = scores
        self._has_lse = has_lse
        self._scales = scales
        self._blocking = blocking
        self._device = out.device
        self._launch: _Launch | None = None
        self._splits: SplitLaunch | None = None
        self._order: HostMemory | DeviceMemory | None = None
        self._lock = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether it was launched before."""
        return self._launch is not None

    def makers_of_memory(self, like: Views) -> list[Callable[[], Any]]:
        """What makes the memory that a launch takes beside its arrays, once there was one.

        Args:
            like: Operands like those of a launch.
        """
        splits = self._splits
        if self._are_bytes:
            part_bytes = 0 if splits is None else splits.part_bytes
            return [TransposedValues.of(like.v).maker(like.q, part_bytes)]
        return [] if splits is None else [splits.maker_of_parts(like.q)]

    def run(
        self,
        views: Views,
        out: ArrayView,
        lse: ArrayView | None,
        stream: object,
        scales: Sequence[ArrayView] = (),
    ) -> None:
        """Attend; ``scales`` are those that are arrays."""
        given = (*views, *scales, out)
        handle = stream_of([view.framework for view in given], self._device, stream)
        wait_for_producers(given, handle)
        if views.k.is_empty:
            with in_order(out.framework, self._device, handle):
                _fill(out, 0)
                _fill(lse, -np.inf)
            return
        addresses = [view.address for view in (given if lse is None else (*given, lse))]
        with self._lock, _driver.on_device(self._device):
            if self._launch is None:
                self._launch = self._prepare(views, out, lse)
        makers = self.makers_of_memory(views)
        if not makers:
            self._launch.launch_at(addresses, handle)
            return
        with _driver.on_device(self._device), in_order(views.q.framework, self._device, handle):
            memory = [make() for make in makers]
            self._launch.launch_at(self._arguments([*addresses, *map(address_of, memory)]), handle)

    def aim(self, addresses: Sequence[int]) -> Aim | None:
        """Attention over arrays there that look like those of the last `run`.

        The addresses are those of q, k, v, scales that are arrays, the output, of lse where it is
        wanted, and of the memory that `makers_of_memory` make. None if the output meets another, or
        if nothing was launched before on a GPU.
        """
        launch = self._launch
        if not isinstance(launch, PreparedLaunch | SplitLaunch | Float8Launch):
            return None
        arguments = self._arguments(addresses)
        return (launch, arguments) if is_apart(_OUT, arguments, self._spans) else None

    @property
    def _are_bytes(self) -> bool:
        return self._sizes.element_bytes == 1

    def _arguments(self, addresses: Sequence[int]) -> Sequence[int]:
        """Those in the order of the launch."""
        if not self._are_bytes and self._splits is None:
            return addresses
        q, k, v, *more = addresses
        rest = iter(more)
        scales = [0 if scale.steps is None else next(rest) for scale in self._scales]
        out, lse = next(rest), next(rest) if self._has_lse else 0
        memory = next(rest)
        return (q, k, v, out, lse, memory, *(scales if self._are_bytes else ()))

    def _prepare(self, views: Views, out: ArrayView, lse: ArrayView | None) -> _Launch:
        limits = emulate.LIMITS if self._device is None else _driver.require_device(self._device)
        sizes, scores = self._sizes, self._scores
        variant = variant_of(scores, is_packed=False, has_lse=self._has_lse)
        blocking = self._blocking or _choose(sizes, limits.multiprocessors, variant, scores)
        q, k, v, o = (reachable(view) for view in (*views, out))
        values = v
        if self._are_bytes:  # launches are told where theirs are
            memory = TransposedValues.of(v)
            values = memory.over(memory.maker(v)(), v)
        tiles = attention_tiles(q, k, values, o, blocking)
        kernel = attention_kernel(tuple(tile.cuda_type for tile in tiles), variant, blocking)
        clusters = limits.multiprocessors // blocking.cluster
        of_problem = problem(sizes, scores)
        order, rounds, parts = 0, 0, 0
        if blocking.splits_keys:
            pieces = pieces_of(sizes, blocking, clusters)
            rounds, clusters, _ = pieces.table.shape
            order, parts = self._placed(pieces.table), pieces.places
        else:
            clusters = min(blocking.spans(sizes), clusters)
            if variant.cuts_blocks:
                table = tile_order(sizes, scores, blocking, clusters)
                order, rounds = self._placed(table), len(table)
        launch = kernel.prepare(
            clusters * blocking.cluster,
            blocking.threads,
            (*tiles, 0 if lse is None else lse, 0, order, rounds, of_problem),
            cluster=blocking.cluster if blocking.cluster > 1 else None,
            pdl=True,
        )
        launch.release()
        found: PreparedLaunch | EmulatedLaunch | SplitLaunch = launch
        if parts:
            found = self._splits = SplitLaunch(
                launch, pieces, tiles, blocking, variant, self._device, of_problem
            )
        if self._are_bytes:
            return Float8Launch(found, v, values, self._scales, blocking)
        return found

    def _placed(self, table: npt.NDArray[np.int32]) -> int:
        """The address of a copy that lives as long as the plan."""
        self._order = placed(self._device, table.tobytes())
        return self._order.address


def _choose(sizes: Sizes, multiprocessors: int, variant: Variant, scores: Scores) -> Blocking:
    blocking = choose_blocking(sizes, multiprocessors, variant)
    clusters = multiprocessors // blocking.cluster
    return replace(blocking, splits_keys=splits_keys(sizes, blocking, scores, clusters))


def variant_of(scores: Scores, *, is_packed: bool, has_lse: bool, page_size: int = 0) -> Variant:
    """What the kernel is compiled for."""
    return Variant(
        is_packed=is_packed,
        has_left=scores.left is not None,
        has_right=scores.right is not None,
        has_softcap=scores.softcap is not None,
        has_lse=has_lse,
        page_size=page_size,
    )


def problem(sizes: Sizes, scores: Scores, page_step: int = 0) -> bytes:
    """The kernel's ``Problem``; ``page_step`` are rows of keys from one page to the next."""
    integers = (
        sizes.batch,
        sizes.heads,
        sizes.heads_per_kv_head,
        sizes.queries,
        sizes.keys,
        scores.left or 0,
        scores.right or 0,
        not scores.is_top_left,
    )
    factors = np.array(scores.factors, np.float32)
    return (
        np.array(integers, np.int32).tobytes() + factors.tobytes() + np.int32(page_step).tobytes()
    )


def _fill(view: ArrayView | None, value: float) -> None:
    if view is not None:
        owner: Any = view.owner
        owner[...] = value
