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
_Launch = PreparedLaunch | EmulatedLaunch | SplitLaunch


@functools.lru_cache(maxsize=1024)
def plan_for(operands: tuple[Layout, ...], out: Layout, scores: Scores, *, has_lse: bool) -> Plan:
    """All that attention costs once per layout; the same plan serves any addresses."""
    return Plan(operands, out, scores, has_lse=has_lse)


class Plan:
    """Attention over arrays of given layouts: everything but their addresses and the stream."""

    def __init__(
        self,
        operands: Sequence[Layout],
        out: Layout,
        scores: Scores,
        *,
        has_lse: bool,
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
        )
        self._spans = tuple(layout.span_bytes for layout in (*operands, out))
        self._scores = scores
        self._has_lse = has_lse
        self._blocking = blocking
        self._device = out.device
        self._launch: _Launch | None = None
        self._order: HostMemory | DeviceMemory | None = None
        self._lock = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether it was launched before."""
        return self._launch is not None

    def maker_of_parts(self, like: ArrayView) -> Callable[[], Any] | None:
        """What makes the memory that a launch takes beside its arrays; None if there is none.

        Args:
            like: An array of the framework whose memory it is.
        """
        launch = self._launch
        return launch.maker_of_parts(like) if isinstance(launch, SplitLaunch) else None

    def run(self, views: Views, out: ArrayView, lse: ArrayView | None, stream: object) -> None:
        """Attend."""
        handle = stream_of((*views.frameworks, out.framework), self._device, stream)
        wait_for_producers((*views, out), handle)
        if views.k.is_empty:
            with in_order(out.framework, self._device, handle):
                _fill(out, 0)
                _fill(lse, -np.inf)
            return
        arrays = (*views, out) if lse is None else (*views, out, lse)
        with self._lock:
            if self._launch is None:
                self._launch = self._prepare(views, out, lse)
        addresses = [view.address for view in arrays]
        make = self.maker_of_parts(views.q)
        if make is None:
            self._launch.at(addresses, handle)
            return
        with _driver.on_device(self._device), in_order(views.q.framework, self._device, handle):
            parts = make()
            self._launch.at([*addresses, address_of(parts)], handle)

    def aim(self, addresses: Sequence[int]) -> Aim | None:
        """Attention over arrays there that look like those of the last `run`.

        The addresses are those of q, k, v, the output, of lse where it is wanted, and of memory
        for parts where keys are split. None if the output meets another, or if nothing was
        launched before on a GPU.
        """
        launch = self._launch
        if not isinstance(launch, PreparedLaunch | SplitLaunch):
            return None
        return (launch, addresses) if is_apart(_OUT, addresses, self._spans) else None

    def _prepare(self, views: Views, out: ArrayView, lse: ArrayView | None) -> _Launch:
        limits = emulate.LIMITS if self._device is None else _driver.require_device(self._device)
        sizes, scores = self._sizes, self._scores
        variant = variant_of(scores, is_packed=False, has_lse=self._has_lse)
        blocking = self._blocking or _choose(sizes, limits.multiprocessors, variant, scores)
        q, k, v, o = (reachable(view) for view in (*views, out))
        tiles = attention_tiles(q, k, v, o, blocking)
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
        if parts:
            return SplitLaunch(launch, pieces, tiles, blocking, variant, self._device, of_problem)
        return launch

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
