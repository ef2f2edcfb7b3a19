"""All that attention costs once per layout of its arrays."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

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
from tmaasync.ops.attention.scores import Scores

__all__ = ["Plan", "plan_for", "problem", "variant_of"]

_OUT = 3  # among q, k, v, out


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
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._order: HostMemory | DeviceMemory | None = None
        self._lock = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether it was launched before."""
        return self._launch is not None

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
        self._launch.at([view.address for view in arrays], handle)

    def aim(self, addresses: Sequence[int]) -> Aim | None:
        """Attention over arrays there that look like those of the last `run`.

        The addresses are those of q, k, v, the output and, where it is wanted, of lse. None if the
        output meets another, or if nothing was launched before on a GPU.
        """
        launch = self._launch
        if not isinstance(launch, PreparedLaunch) or not is_apart(_OUT, addresses, self._spans):
            return None
        return launch, addresses

    def _prepare(
        self, views: Views, out: ArrayView, lse: ArrayView | None
    ) -> PreparedLaunch | EmulatedLaunch:
        limits = emulate.LIMITS if self._device is None else _driver.require_device(self._device)
        sizes, scores = self._sizes, self._scores
        variant = variant_of(scores, is_packed=False, has_lse=self._has_lse)
        blocking = self._blocking or choose_blocking(sizes, limits.multiprocessors, variant)
        q, k, v, o = (reachable(view) for view in (*views, out))
        tiles = attention_tiles(q, k, v, o, blocking)
        kernel = attention_kernel(tuple(tile.cuda_type for tile in tiles), variant, blocking)
        clusters = min(blocking.spans(sizes), limits.multiprocessors // blocking.cluster)
        order, rounds = 0, 0
        if variant.cuts_blocks:
            table = tile_order(sizes, scores, blocking, clusters)
            self._order = placed(self._device, table.tobytes())
            order, rounds = self._order.address, len(table)
        launch = kernel.prepare(
            clusters * blocking.cluster,
            blocking.threads,
            (*tiles, 0 if lse is None else lse, order, rounds, problem(sizes, scores)),
            cluster=blocking.cluster if blocking.cluster > 1 else None,
            pdl=True,
        )
        launch.release()
        return launch


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
