"""All that a product with block scales costs once per layout of its matrices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.kernel import wait_for_producers
from tmaasync.ops._copies import in_order
from tmaasync.ops._launches import Aim
from tmaasync.ops._plans import Layout, is_apart
from tmaasync.ops._results import empty_rows
from tmaasync.ops.gemm.matrix import Matrix, Operand
from tmaasync.ops.scaled_gemm.arguments import Operands
from tmaasync.ops.scaled_gemm.blocking import choose_scaled_blocking
from tmaasync.ops.scaled_gemm.kernel import scaled_gemm_kernel, scaled_gemm_tiles

__all__ = ["Plan", "plan_for"]

# Which of the operands the kernel takes transposed: b as [N, K], the scales of a as [K / 128, M].
_SWAPPED = (False, True, True, False)


@functools.lru_cache(maxsize=1024)
def plan_for(operands: tuple[Matrix, ...], out: Matrix, column_scales: bool) -> Plan:
    """All that a product costs once per layout; the same plan serves any addresses."""
    return Plan(operands, out, column_scales=column_scales)


def _either_way(matrix: Matrix) -> Operand:
    """As it is or transposed, if TMA can do that; else from a copy."""
    plain, transposed = Operand.of_rows(matrix), Operand.of_rows(matrix.transposed)
    if plain.copied and not transposed.copied:
        return replace(transposed, transposed=True)
    return plain


class Plan:
    """A product of matrices of given layouts: everything but their addresses and the stream."""

    def __init__(self, operands: Sequence[Matrix], out: Matrix, *, column_scales: bool) -> None:
        a, b, scale_a, scale_b = operands
        self._operands = (
            Operand.of_rows(a),
            Operand.of_rows(b.transposed),
            Operand.of_rows(scale_a.transposed),
            Operand.of_rows(scale_b) if column_scales else _either_way(scale_b),
        )
        self._column_scales = column_scales
        self._depth = a.shape[1]
        self._rows = out.in_stored_rows() or out.repacked()
        self._is_staged = out.in_stored_rows() is None
        self._device = out.device
        self._spans = tuple(Layout(*matrix[:4]).span_bytes for matrix in (*operands, out))
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._lock = threading.Lock()

    @property
    def is_direct(self) -> bool:
        """Whether a product is one launch on the arrays as they are, and was launched before."""
        copies = self._is_staged or any(operand.copied for operand in self._operands)
        return self._launch is not None and not copies

    def aim(self, addresses: Sequence[int]) -> Aim | None:
        """The product of arrays there that look like those of the last `run`.

        The addresses are those of the operands and the output. None if that meets an operand, or if
        nothing was launched before on a GPU.
        """
        launch = self._launch
        if not isinstance(launch, PreparedLaunch) or not is_apart(-1, addresses, self._spans):
            return None
        return launch, addresses

    def run(self, operands: Operands, out: ArrayView, stream: object) -> None:
        """Multiply."""
        owner: Any = out.owner
        if out.is_empty:
            return
        views = (*operands, out)
        handle = stream_of([view.framework for view in views], self._device, stream)
        wait_for_producers(views, handle)
        with in_order(out.framework, self._device, handle):
            if self._depth == 0:
                owner[...] = 0
                return
            rows = self._rows
            staged = empty_rows(out, rows.shape, out.element) if self._is_staged else None
            target = out if staged is None else _arrays.view(staged)
            self._run_on([*self._reached(operands, handle), rows.over(target)], handle)
            if staged is not None:
                owner[...] = staged

    def _reached(self, operands: Operands, stream: int) -> list[ArrayView]:
        """The operands as the kernel reads them."""
        pairs = zip(self._operands, operands, _SWAPPED, strict=True)
        return [
            operand.rows.over(
                operand.copy(view, stream, swapped=swapped) if operand.copied else view
            )
            for operand, view, swapped in pairs
        ]

    def _run_on(self, views: list[ArrayView], handle: int) -> None:
        with self._lock:
            if self._launch is None:
                self._launch = self._prepare(views)
        self._launch.launch_at([view.address for view in views], handle)

    def _prepare(self, views: Sequence[ArrayView]) -> PreparedLaunch | EmulatedLaunch:
        a, b, scale_a, scale_b, c = views
        m, n = c.shape
        limits = emulate.LIMITS if self._device is None else _driver.require_device(self._device)
        multiprocessors = limits.multiprocessors
        blocking = choose_scaled_blocking(m, n, multiprocessors, column_scales=self._column_scales)
        transposed = self._operands[3].transposed
        tiles = scaled_gemm_tiles(
            (a, b, scale_a, scale_b), c, blocking, b_scales_transposed=transposed
        )
        kernel = scaled_gemm_kernel(tiles.cuda_types, transposed, blocking)
        clusters = blocking.clusters(m, n)
        at_once = blocking.clusters_at_once(multiprocessors)
        launch = kernel.prepare(
            min(clusters, at_once) * blocking.cluster,
            blocking.threads,
            (*tiles, m, n, self._depth),
            cluster=blocking.cluster if blocking.cluster > 1 else None,
            pdl=blocking.starts_early(clusters, at_once),
        )
        launch.release()
        return launch
