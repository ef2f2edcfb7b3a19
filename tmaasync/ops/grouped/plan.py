"""All that a product of groups costs once per layout of its arrays."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.kernel import wait_for_producers
from tmaasync.ops._copies import in_order
from tmaasync.ops._launches import Aim
from tmaasync.ops._plans import is_apart
from tmaasync.ops._results import empty_rows
from tmaasync.ops.gemm.kernel import LINE_BYTES
from tmaasync.ops.gemm.matrix import Matrix, Operand
from tmaasync.ops.grouped.kernel import (
    choose_blocking,
    grouped_kernel,
    grouped_tiles,
    most_clusters,
)
from tmaasync.ops.grouped.offsets import Offsets

__all__ = ["Plan", "plan_for"]

_OUT = 2  # among a, b, out


@functools.lru_cache(maxsize=1024)
def plan_for(a: Matrix, b: Matrix, c: Matrix) -> Plan:
    """All that a product costs once per layout; the same plan serves any addresses."""
    return Plan(a, b, c)


class Plan:
    """A product of groups in arrays of given layouts: all but addresses, offsets and stream."""

    def __init__(self, a: Matrix, b: Matrix, c: Matrix) -> None:
        """Nothing is compiled or encoded before the first `run`."""
        # Groups start at any row, and TMA's coordinates at 16 bytes: K has to be contiguous.
        rows = a.in_rows()
        self._a = Operand(a.repacked(), copied=True) if rows is None else Operand(rows)
        self._b = Operand.of(b)
        self._c = c.in_stored_rows() or c.repacked()
        self._is_staged = c.in_stored_rows() is None
        self._spans = tuple(matrix.span_bytes for matrix in (a, b, c))
        self._device = c.device
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._below_bytes = 0
        self._by_columns = False
        self._lock = threading.Lock()

    @property
    def is_direct(self) -> bool:
        """Whether a product is one launch on the arrays as they are, and was launched before."""
        copies = self._a.copied or self._b.copied or self._is_staged
        return self._launch is not None and not copies

    def run(
        self, a: ArrayView, b: ArrayView, c: ArrayView, offsets: Offsets, stream: object
    ) -> tuple[str, ...]:
        """Multiply; returns whose arrays they were."""
        views = [a, b, c]
        if offsets.is_on_device:
            views.append(_arrays.view(offsets.values))
        frameworks = tuple(view.framework for view in views)
        handle = stream_of(frameworks, self._device, stream)
        wait_for_producers(views, handle)
        if self._a.copied:
            a = self._a.copy(a, handle, swapped=False)
        if self._b.copied:
            b = self._b.copy(b, handle, swapped=False)
        ends = _arrays.view(offsets.on(self._device, handle))
        if not self._is_staged:
            self._run_on(a, b, c, ends, handle)
            return frameworks
        owner: Any = c.owner
        with in_order(c.framework, self._device, handle):
            staged = empty_rows(c, c.shape, c.element)
            staged[...] = owner  # rows of no group stay as they are
            self._run_on(a, b, _arrays.view(staged), ends, handle)
            owner[...] = staged
        return frameworks

    def _run_on(
        self, a: ArrayView, b: ArrayView, c: ArrayView, ends: ArrayView, stream: int
    ) -> None:
        """Multiply arrays that TMA can reach."""
        with self._lock:
            if self._launch is None:
                self._launch = self._prepare(a, b, c, ends)
        self._launch.launch_at(self._words((a.address, b.address, c.address, ends.address)), stream)

    def aim(self, addresses: Sequence[int]) -> Aim | None:
        """The product of arrays there that look like those of the last `run`.

        The addresses are those of rows, matrices, ends and output. None if the output meets the
        rows or the matrices, or if nothing was launched before on a GPU.
        """
        launch = self._launch
        a, b, ends, c = addresses
        if not isinstance(launch, PreparedLaunch) or not is_apart(_OUT, (a, b, c), self._spans):
            return None
        return launch, self._words((a, b, c, ends))

    def _words(self, addresses: Sequence[int]) -> Sequence[int]:
        """The kernel's first parameters."""
        a, b, c, ends = addresses
        operands = (b, a) if self._by_columns else (a, b)
        return *operands, c - self._below_bytes, ends

    def _prepare(
        self, a: ArrayView, b: ArrayView, c: ArrayView, ends: ArrayView
    ) -> PreparedLaunch | EmulatedLaunch:
        (rows, depth), (groups, *_), n = a.shape, b.shape, c.shape[1]
        device = self._device
        limits = emulate.LIMITS if device is None else _driver.require_device(device)
        multiprocessors = limits.multiprocessors
        pitches = (self._a.rows.strides_bytes[0], self._b.rows.strides_bytes[1])
        b_transposed = self._b.transposed
        blocking = choose_blocking(
            rows,
            groups,
            n,
            depth,
            multiprocessors,
            on_lines=all(pitch % LINE_BYTES == 0 for pitch in pitches),
            b_is_k_major=b_transposed,
        )
        views = (self._a.rows.over(a), self._b.rows.over(b), self._c.over(c))
        tiles = grouped_tiles(*views, blocking, b_transposed)
        kernel = grouped_kernel(*(tile.cuda_type for tile in tiles), b_transposed, blocking)
        at_once = multiprocessors // blocking.cluster
        clusters = most_clusters(rows, groups, n, blocking)
        operands = tiles[1::-1] if blocking.by_columns else tiles[:2]
        launch = kernel.prepare(
            min(clusters, at_once) * blocking.cluster,
            blocking.threads,
            (*operands, tiles.out, ends, groups, rows, n, depth),
            cluster=blocking.cluster if blocking.cluster > 1 else None,
            pdl=blocking.starts_early(clusters, at_once),
        )
        launch.release()
        self._by_columns = blocking.by_columns
        self._below_bytes = c.address - tiles.out.spec.address
        return launch
