"""All that a product costs once per layout of its matrices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._elements import Element
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.kernel import wait_for_producers
from tmaasync.ops._blocking import Blocking, output_tile
from tmaasync.ops._copies import contiguous_copy, in_order
from tmaasync.ops._epilogue import BiasSide
from tmaasync.ops._launches import Aim
from tmaasync.ops._results import empty_rows
from tmaasync.ops.gemm.arguments import check_extras, check_operands, check_output
from tmaasync.ops.gemm.blocking import FEW_ROWS
from tmaasync.ops.gemm.choice import default_blocking
from tmaasync.ops.gemm.extras import PLAIN, ExtraForm, Extras, ExtraViews, ProductEpilogue
from tmaasync.ops.gemm.kernel import LINE_BYTES, gemm_kernel, gemm_tiles
from tmaasync.ops.gemm.matrix import Matrix, Operand
from tmaasync.ops.gemm.problem import Problem
from tmaasync.ops.gemm.tuned import tuned_blocking
from tmaasync.ops.gemm.types import takes_any_layout
from tmaasync.tile import TMATensorTile

__all__ = ["Plan", "new_plan", "plan_for"]

_NOTHING = ExtraViews()

_ADDEND = 2  # among the arrays, if there is one: a, b, what else there is, out


@functools.lru_cache(maxsize=1024)
def plan_for(
    a: Matrix, b: Matrix, c: Matrix, wanted: Element | None, extras: ExtraForm | None = None
) -> Plan:
    """All that a product costs once per layout; the same plan serves any addresses."""
    check_operands(a, b)
    check_output(c, a, b, wanted)
    if extras is not None:
        check_extras(extras, a, c)
    a, b, c, extras = _unbatched(a, b, c, extras)
    return new_plan(a, b, c, extras=extras)


def new_plan(
    a: Matrix,
    b: Matrix,
    c: Matrix,
    blocking: Blocking | None = None,
    extras: ExtraForm | None = None,
) -> Plan:
    """A plan of its own; in the given blocking, else in the tuned one, else in the model's."""
    # The columns of the product are the rows of the transposes' product.
    flips = c.in_stored_rows() is None and c.transposed.in_stored_rows() is not None
    rows = c.transposed if flips else c
    by_columns = rows.shape[-2] <= FEW_ROWS
    swapped = flips != by_columns
    if swapped:
        a, b, c = b.transposed, a.transposed, c.transposed
    return Plan(a, b, c, blocking, extras, swapped=swapped, by_columns=by_columns)


def _unbatched(
    a: Matrix, b: Matrix, c: Matrix, extras: ExtraForm | None
) -> tuple[Matrix, Matrix, Matrix, ExtraForm | None]:
    """The same with fewer dimensions, where that is possible."""
    a, b = a.alone, b.alone
    addend = None if extras is None else extras.addend
    if c.shape[0] == 1:
        c, addend = c.alone, None if addend is None else addend.alone
    if len(a.shape) == 3 and len(b.shape) == 2:
        # Every row is multiplied by the same matrix.
        rows, target = a.merged(), c.merged()
        more = None if addend is None else addend.merged()
        if _are_reached(rows, target) and (addend is None) == (more is None):
            a, c, addend = rows or a, target or c, more
    return a, b, c, None if extras is None else extras._replace(addend=addend)


def _are_reached(rows: Matrix | None, target: Matrix | None) -> bool:
    """Whether there are both, used as they are: copies are made of what the caller has."""
    if rows is None or target is None:
        return False
    return rows.in_rows() is not None and target.in_stored_rows() is not None


class Plan:
    """A product of matrices of given layouts: everything but their addresses and the stream."""

    def __init__(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        blocking: Blocking | None,
        extras: ExtraForm | None,
        *,
        swapped: bool,
        by_columns: bool,
    ) -> None:
        self._a, self._b = _operand(a, k_is_last=True), _operand(b, k_is_last=False)
        lines = c.transposed if by_columns else c
        self._lines = lines.in_stored_rows() or lines.repacked()
        self._is_staged = lines.in_stored_rows() is None
        self._swapped = swapped
        self._blocking = blocking
        self._extras = extras
        flips = swapped != by_columns
        self._addend = None if extras is None else extras.addend_operand(flips)
        self._flips = flips
        self._copies_bias = extras is not None and extras.copies_bias
        operands = (b, a) if swapped else (a, b)
        beside = () if extras is None else extras.arrays
        self._out_bytes = c.span_bytes
        self._read_bytes = [matrix.span_bytes for matrix in (*operands, *beside)]
        self._may_add_to_itself = extras is not None and extras.adds_in_order_of(
            c.transposed if swapped else c
        )
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._device = c.device
        pitches = (self._a.rows.strides_bytes[-2], self._b.rows.strides_bytes[-2])
        m, n = c.shape[-2:]
        self.problem = Problem(
            m,
            n,
            a.shape[-1],
            batches=c.shape[0] if len(c.shape) == 3 else 1,
            operands="/".join(dict.fromkeys((a.element.name, b.element.name))),
            output=c.element.name,
            layout=("t" if self._a.transposed else "n") + ("t" if self._b.transposed else "n"),
            by_columns=by_columns,
            on_lines=all(pitch % LINE_BYTES == 0 for pitch in pitches),
        )
        self._lock = threading.Lock()

    @property
    def is_direct(self) -> bool:
        """Whether a product is one launch on the arrays as they are, and was launched before."""
        return self._launch is not None and not self._needs_copies

    @property
    def copied_operands(self) -> tuple[str, ...]:
        """Those of a and b that TMA cannot read where they lie."""
        a, b = (self._b, self._a) if self._swapped else (self._a, self._b)
        return tuple(name for name, operand in (("a", a), ("b", b)) if operand.copied)

    @property
    def _needs_copies(self) -> bool:
        operands = (self._a, self._b, *([] if self._addend is None else [self._addend]))
        is_copied = any(operand.copied for operand in operands)
        return is_copied or self._is_staged or self._copies_bias

    def run(
        self,
        a: ArrayView,
        b: ArrayView,
        out: ArrayView,
        stream: object,
        more: ExtraViews = _NOTHING,
        extras: Extras = PLAIN,
    ) -> None:
        """Multiply."""
        if out.is_empty:
            return
        views = (a, b, out, *more.given.values())
        handle = stream_of([view.framework for view in views], self._device, stream)
        wait_for_producers(views, handle)
        if self._swapped:
            a, b = b, a
        if not self._needs_copies:
            self._run_on(a, b, out, more, extras, handle)
            return
        self._run_on_copies(a, b, out, more, extras, handle)

    def start(self, addresses: Sequence[int], stream: int) -> None:
        """The plain product of arrays that look like those of the last `run`, if `is_direct`.

        The addresses are those of a, b and out.
        """
        if self._launch is not None:
            self._launch.launch_at(self._words(addresses), stream)

    def aim(self, addresses: Sequence[int], alpha: float = 1.0, beta: float = 0.0) -> Aim | None:
        """The product of arrays there that look like those of the last `run`.

        The addresses are those of a, b, `Extras.arrays` and out. None if out meets another, or if
        nothing was launched before on a GPU.
        """
        launch = self._launch
        if not isinstance(launch, PreparedLaunch) or not self.keeps_apart(addresses):
            return None
        return launch, self._words(addresses, alpha, beta)

    def keeps_apart(self, addresses: Sequence[int]) -> bool:
        """Whether the output lies clear of all that is read; addresses as for `aim`.

        The addend may be the output.
        """
        *starts, out = addresses
        end = out + self._out_bytes
        for index, (start, read_bytes) in enumerate(zip(starts, self._read_bytes, strict=True)):
            is_out = start == out and index == _ADDEND and self._may_add_to_itself
            if start < end and out < start + read_bytes and not is_out:
                return False
        return True

    def _words(
        self, addresses: Sequence[int], alpha: float = 1.0, beta: float = 0.0
    ) -> tuple[int, ...]:
        """The kernel's first parameters; addresses as for `aim`."""
        a, b, *more, out = addresses
        if self._swapped:
            a, b = b, a
        return a, b, out, *self._beside(out, more, alpha, beta)

    def _beside(self, out: int, more: Iterable[int], alpha: float, beta: float) -> tuple[int, ...]:
        """Those behind the output's."""
        return () if self._extras is None else self._extras.words(out, more, alpha, beta)

    def _run_on_copies(
        self,
        a: ArrayView,
        b: ArrayView,
        out: ArrayView,
        more: ExtraViews,
        extras: Extras,
        handle: int,
    ) -> None:
        """Of what TMA cannot reach; a and b in the kernel's order."""
        if self._a.copied:
            a = self._a.copy(a, handle, swapped=self._swapped)
        if self._b.copied:
            b = self._b.copy(b, handle, swapped=self._swapped)
        if more.c is not None and self._addend is not None and self._addend.copied:
            more = more._replace(c=self._addend.copy(more.c, handle, swapped=self._flips))
        with in_order(out.framework, self._device, handle):
            if more.bias is not None and self._copies_bias:
                more = more._replace(bias=_arrays.view(contiguous_copy(more.bias)))
            if not self._is_staged:
                self._run_on(a, b, out, more, extras, handle)
                return
            staged = empty_rows(out, self._lines.shape, out.element)
            self._run_on(a, b, _arrays.view(staged), more, extras, handle)
            owner: Any = out.owner
            owner[...] = staged.reshape(out.shape)

    def _run_on(
        self,
        a: ArrayView,
        b: ArrayView,
        out: ArrayView,
        more: ExtraViews,
        extras: Extras,
        handle: int,
    ) -> None:
        """Launch on what TMA can reach; a and b in the kernel's order."""
        with self._lock:
            if self._launch is None:
                self._launch = self._prepare(a, b, out, more)
        beside = (view.address for view in more.given.values())
        target = out.address
        words = (a.address, b.address, target, *self._beside(target, beside, *extras.numbers))
        self._launch.launch_at(words, handle)

    def blocking_on(self, gpu: str | None, multiprocessors: int) -> Blocking:
        """The blocking that it gets on a GPU of this name; None is the emulator.

        What was tuned is the plain product: that may leave no room for an epilogue.
        """
        if self._blocking is not None:
            return self._blocking
        tuned = None if gpu is None else tuned_blocking(gpu, self.problem)
        if tuned is not None and self._fits(tuned):
            return tuned
        epilogue = self._epilogue
        depth = 0 if epilogue is None else epilogue.depth
        return default_blocking(self.problem, multiprocessors, self._fits, depth)

    def _fits(self, blocking: Blocking) -> bool:
        """Whether the kernel has room for the epilogue."""
        epilogue = self._epilogue
        return epilogue is None or epilogue.fits(blocking, self._lines.element.itemsize)

    @property
    def _epilogue(self) -> ProductEpilogue | None:
        return None if self._extras is None else self._extras.epilogue(self._bias_side)

    @property
    def _bias_side(self) -> BiasSide:
        return BiasSide.ROWS if self._swapped else BiasSide.COLUMNS

    def _prepare(
        self, a: ArrayView, b: ArrayView, out: ArrayView, more: ExtraViews
    ) -> PreparedLaunch | EmulatedLaunch:
        m, n, depth, batches, *_ = self.problem
        device = self._device
        limits = emulate.LIMITS if device is None else _driver.require_device(device)
        multiprocessors = limits.multiprocessors
        blocking = self.blocking_on(None if device is None else limits.name, multiprocessors)
        transposed = (self._a.transposed, self._b.transposed)
        lines = self._lines.over(out)
        tiles = gemm_tiles(self._a.rows.over(a), self._b.rows.over(b), lines, blocking, *transposed)
        types = [tile.cuda_type for tile in tiles]
        if self._extras is None:
            kernel = gemm_kernel(*types, *transposed, blocking)
            beside: tuple[object, ...] = ()
        else:
            bias = "float" if more.bias is None else more.bias.element.cuda_type
            kernel = gemm_kernel(*types, *transposed, blocking, self._epilogue, bias)
            addend = self._addend_tile(more.c, blocking) or tiles[2]
            beside = (addend, *(0 if view is None else view for view in more[1:]), 1.0, 0.0)
        clusters = batches * blocking.clusters(m, n)
        at_once = blocking.clusters_at_once(multiprocessors)
        # What is split has no place for the loads of another tile while its sums are added up.
        running = clusters if blocking.split > 1 else min(clusters, at_once)
        launch = kernel.prepare(
            running * blocking.cluster_size,
            blocking.threads,
            (*tiles, *beside, m, n, depth, batches),
            cluster=blocking.cluster_size if blocking.cluster_size > 1 else None,
            pdl=blocking.starts_early(clusters, at_once),
        )
        launch.release()
        return launch

    def _addend_tile(self, c: ArrayView | None, blocking: Blocking) -> TMATensorTile | None:
        if c is None or self._addend is None:
            return None
        return output_tile(self._addend.rows.over(c), blocking)


def _operand(matrix: Matrix, *, k_is_last: bool) -> Operand:
    """How the tensor cores read it: in any layout, or in rows along K."""
    if takes_any_layout(matrix.element):
        return Operand.of(matrix)
    return Operand.of_k_rows(matrix, k_is_last=k_is_last)
