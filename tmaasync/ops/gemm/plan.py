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
from tmaasync.ops._blocking import Blocking
from tmaasync.ops._copies import in_order
from tmaasync.ops._results import empty_rows
from tmaasync.ops.gemm.arguments import check_operands, check_output
from tmaasync.ops.gemm.blocking import FEW_ROWS
from tmaasync.ops.gemm.kernel import LINE_BYTES, gemm_kernel, gemm_tiles
from tmaasync.ops.gemm.matrix import Matrix, Operand
from tmaasync.ops.gemm.problem import Problem, default_blocking
from tmaasync.ops.gemm.tuned import tuned_blocking

__all__ = ["Plan", "new_plan", "plan_for"]


@functools.lru_cache(maxsize=1024)
def plan_for(a: Matrix, b: Matrix, c: Matrix, wanted: Element | None) -> Plan:
    """All that a product costs once per layout; the same plan serves any addresses."""
    check_operands(a, b)
    check_output(c, a, b, wanted)
    return new_plan(*_unbatched(a, b, c))


def new_plan(a: Matrix, b: Matrix, c: Matrix, blocking: Blocking | None = None) -> Plan:
    """A plan of its own; in the given blocking, else in the tuned one, else in the model's."""
    # The columns of the product are the rows of the transposes' product.
    swapped = c.in_stored_rows() is None and c.transposed.in_stored_rows() is not None
    rows = c.transposed if swapped else c
    by_columns = rows.shape[-2] <= FEW_ROWS
    if swapped != by_columns:
        a, b, c = b.transposed, a.transposed, c.transposed
    return Plan(a, b, c, blocking, swapped=swapped != by_columns, by_columns=by_columns)


def _unbatched(a: Matrix, b: Matrix, c: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The same with fewer dimensions, where that is possible."""
    a, b = a.alone, b.alone
    c = c.alone if c.shape[0] == 1 else c
    if len(a.shape) == 3 and len(b.shape) == 2:
        # Every row is multiplied by the same matrix.
        rows, target = a.merged(), c.merged()
        if rows is not None and target is not None:
            return rows, b, target
    return a, b, c


class Plan:
    """A product of matrices of given layouts: everything but their addresses and the stream."""

    def __init__(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        blocking: Blocking | None = None,
        *,
        swapped: bool,
        by_columns: bool,
    ) -> None:
        self._a, self._b = Operand.of(a), Operand.of(b)
        lines = c.transposed if by_columns else c
        self._lines = lines.in_stored_rows() or lines.repacked()
        self._is_staged = lines.in_stored_rows() is None
        self._depth = a.shape[-1]
        self._swapped = swapped
        self._blocking = blocking
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._device = c.device
        pitches = (self._a.rows.strides_bytes[-2], self._b.rows.strides_bytes[-2])
        m, n = c.shape[-2:]
        self.problem = Problem(
            m,
            n,
            self._depth,
            batches=c.shape[0] if len(c.shape) == 3 else 1,
            operands=a.element.name,
            output=c.element.name,
            layout=("t" if self._a.transposed else "n") + ("t" if self._b.transposed else "n"),
            by_columns=by_columns,
            on_lines=all(pitch % LINE_BYTES == 0 for pitch in pitches),
        )
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
        handle = stream_of((a.framework, b.framework, c.framework), device, stream)
        wait_for_producers((a, b, c), handle)
        if self._depth == 0:
            with in_order(c.framework, device, handle):
                owner[...] = 0
            return
        if self._swapped:
            a, b = b, a
        if self._a.copied:
            a = self._a.copy(a, handle, swapped=self._swapped)
        if self._b.copied:
            b = self._b.copy(b, handle, swapped=self._swapped)
        if not self._is_staged:
            self._run_on(a, b, c, handle)
            return
        with in_order(c.framework, device, handle):
            staged = empty_rows(c, self._lines.shape, c.element)
            self._run_on(a, b, _arrays.view(staged), handle)
            owner[...] = staged

    def _run_on(self, a: ArrayView, b: ArrayView, c: ArrayView, stream: int) -> None:
        """Multiply matrices that TMA can reach, in the order of the kernel's parameters."""
        with self._lock:
            if self._launch is None:
                self._launch = self._prepare(a, b, c, self._device)
        self._launch.at((a.address, b.address, c.address), stream)

    def start(self, addresses: Sequence[int], stream: int) -> None:
        """Multiply arrays that look like those of the last `run`, if `is_direct`."""
        if self._swapped:
            a, b, c = addresses
            addresses = (b, a, c)
        if self._launch is not None:
            self._launch.at(addresses, stream)

    def blocking_on(self, gpu: str | None, multiprocessors: int) -> Blocking:
        """The blocking that it gets on a GPU of this name; None is the emulator."""
        tuned = None if gpu is None else tuned_blocking(gpu, self.problem)
        return self._blocking or tuned or default_blocking(self.problem, multiprocessors)

    def _prepare(
        self, a: ArrayView, b: ArrayView, c: ArrayView, device: int | None
    ) -> PreparedLaunch | EmulatedLaunch:
        m, n, _, batches, *_ = self.problem
        limits = emulate.LIMITS if device is None else _driver.require_device(device)
        multiprocessors = limits.multiprocessors
        transposed = (self._a.transposed, self._b.transposed)
        blocking = self.blocking_on(None if device is None else limits.name, multiprocessors)
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
