"""All that a product costs once per layout of its matrices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._elements import Element
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.kernel import wait_for_producers
from tmaasync.ops._results import empty_rows
from tmaasync.ops.gemm.arguments import check_operands, check_output
from tmaasync.ops.gemm.blocking import FEW_ROWS, choose_blocking, choose_few_columns
from tmaasync.ops.gemm.kernel import gemm_kernel, gemm_tiles
from tmaasync.ops.gemm.matrix import Matrix, Operand

__all__ = ["Plan", "plan_for"]

_LINE_BYTES = 128


@functools.lru_cache(maxsize=1024)
def plan_for(a: Matrix, b: Matrix, c: Matrix, wanted: Element | None) -> Plan:
    """All that a product costs once per layout; the same plan serves any addresses."""
    check_operands(a, b)
    check_output(c, a, b, wanted)
    a, b, c = _unbatched(a, b, c)
    # The columns of the product are the rows of the transposes' product.
    swapped = c.in_stored_rows() is None and c.transposed.in_stored_rows() is not None
    rows = c.transposed if swapped else c
    by_columns = rows.shape[-2] <= FEW_ROWS
    if swapped != by_columns:
        a, b, c = b.transposed, a.transposed, c.transposed
    return Plan(a, b, c, swapped=swapped != by_columns, by_columns=by_columns)


def _unbatched(a: Matrix, b: Matrix, c: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The same with fewer dimensions, where that is possible."""
    a, b = a.alone, b.alone
    c = c.alone if c.shape[0] == 1 else c
    if len(a.shape) == 3 and len(b.shape) == 2:
        # Every row is multiplied by the same matrix.
        rows, target = a.merged(), c.merged()
        if rows is not None and target is not None and _are_reached(rows, target):
            return rows, b, target
    return a, b, c


def _are_reached(rows: Matrix, target: Matrix) -> bool:
    """Whether both are used as they are: copies are made of what the caller has."""
    return rows.in_rows() is not None and target.in_stored_rows() is not None


class Plan:
    """A product of matrices of given layouts: everything but their addresses and the stream."""

    def __init__(self, a: Matrix, b: Matrix, c: Matrix, *, swapped: bool, by_columns: bool) -> None:
        self._a, self._b = Operand.of(a), Operand.of(b)
        self._batches = c.shape[0] if len(c.shape) == 3 else 1
        self._shape = c.shape[-2:]
        lines = c.transposed if by_columns else c
        self._lines = lines.in_stored_rows() or lines.repacked()
        self._is_staged = lines.in_stored_rows() is None
        self._depth = a.shape[-1]
        self._swapped = swapped
        self._by_columns = by_columns
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._device = c.device
        self._lock = threading.Lock()

    @property
    def is_direct(self) -> bool:
        """Whether a product is one launch on the arrays as they are, and was launched before."""
        copies = self._a.copied or self._b.copied or self._is_staged
        return self._launch is not None and not copies

    def run(self, a: ArrayView, b: ArrayView, c: ArrayView, stream: object) -> None:
        """Multiply."""
        device = self._device
        owner: Any = c.owner
        if 0 in c.shape:
            return
        if self._depth == 0:
            owner[...] = 0
            return
        handle = stream_of((a.framework, b.framework, c.framework), device, stream)
        wait_for_producers((a, b, c), handle)
        if self._swapped:
            a, b = b, a
        if self._a.copied:
            a = self._a.copy(a, swapped=self._swapped)
        if self._b.copied:
            b = self._b.copy(b, swapped=self._swapped)
        staged = empty_rows(c, self._lines.shape, c.element) if self._is_staged else None
        target = c if staged is None else _arrays.view(staged)
        with self._lock, _driver.on_device(device):
            if self._launch is None:
                self._launch = self._prepare(a, b, target, device)
            self._launch.aim((a.address, b.address, target.address), handle)
            self._launch()
        if staged is not None:
            owner[...] = staged

    def start(self, addresses: Sequence[int], frameworks: tuple[str, ...], stream: object) -> None:
        """Multiply arrays that look like those of the last `run`, if `is_direct`."""
        device = self._device
        handle = stream_of(frameworks, device, stream)
        a, b, c = addresses
        launch = self._launch
        if launch is not None:
            with self._lock, _driver.on_device(device):
                launch.aim((b, a, c) if self._swapped else (a, b, c), handle)
                launch()

    def _prepare(
        self, a: ArrayView, b: ArrayView, c: ArrayView, device: int | None
    ) -> PreparedLaunch | EmulatedLaunch:
        (m, n), batches = self._shape, self._batches
        limits = emulate.LIMITS if device is None else _driver.require_device(device)
        multiprocessors = limits.multiprocessors
        pitches = (self._a.rows.strides_bytes[-2], self._b.rows.strides_bytes[-2])
        on_lines = all(pitch % _LINE_BYTES == 0 for pitch in pitches)
        transposed = (self._a.transposed, self._b.transposed)
        if self._by_columns:
            blocking = choose_few_columns(
                m, n, multiprocessors, b_is_k_major=transposed[1], count=batches
            )
        else:
            blocking = choose_blocking(
                m, n, multiprocessors, on_lines=on_lines, b_is_k_major=transposed[1], count=batches
            )
        tiles = gemm_tiles(
            self._a.rows.over(a), self._b.rows.over(b), self._lines.over(c), blocking, *transposed
        )
        kernel = gemm_kernel(*(tile.cuda_type for tile in tiles), *transposed, blocking)
        clusters = batches * blocking.clusters(m, n)
        at_once = multiprocessors // blocking.cluster
        launch = kernel.prepare(
            min(clusters, at_once) * blocking.cluster,
            blocking.threads,
            (*tiles, m, n, self._depth, batches),
            cluster=blocking.cluster if blocking.cluster > 1 else None,
            pdl=blocking.starts_early(clusters, at_once),
        )
        launch.release()
        return launch
