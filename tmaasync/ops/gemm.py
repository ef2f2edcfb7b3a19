"""Matrix products on the tensor cores, fed by TMA."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._elements import Element, element
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.kernel import Kernel, wait_for_producers
from tmaasync.modes import Swizzle
from tmaasync.ops._blocking import BLOCK_K, Blocking, output_tile
from tmaasync.ops._plans import PlanCache
from tmaasync.ops._results import empty_rows, padded_row_bytes
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = ["Blocking", "gemm_kernel", "matmul"]

_GRANULE_BYTES = 16
_LINE_BYTES = 128
_OPERANDS = ("bfloat16", "float16")
_OUTPUTS = ("bfloat16", "float16", "float32")


def matmul(a: Any, b: Any, *, out: Any = None, dtype: object = None, stream: object = None) -> Any:
    """Multiply two matrices: ``a @ b``, accumulated in fp32.

    Either operand may lie with either side contiguous, so ``matmul(a, b.T)`` is the product with a
    matrix stored as [N, K]. An operand that TMA cannot read (rows that are no multiple of 16 bytes
    apart, or do not start at one) is copied into one it can; an output that TMA cannot write (the
    same, or rows that do not end at a multiple of 16 bytes) is written through a copy.

    Args:
        a: [M, K], bfloat16 or float16, on a GPU, or in host memory for the emulator.
        b: [K, N], of the same type and device.
        out: Where to; [M, N]. By default a new array of the framework of ``a``; where N elements
            are no multiple of 16 bytes its rows are padded, so it is not contiguous.
        dtype: Of the output: bfloat16, float16 or float32; by default that of ``out``, else of
            ``a``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: The shapes do not fit, or ``out`` is not as described.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.
    """
    if out is not None and (found := _PLANS.find((a, b, out), dtype)) is not None:
        (plan, frameworks), addresses = found
        plan.start(addresses, frameworks, stream)
        return out
    left, right = _arrays.view(a, argument="a"), _arrays.view(b, argument="b")
    is_new = out is None
    if is_new:
        out = _new_output(left, right, dtype)
    target = _arrays.view(out, argument="out")
    _arrays.require_writable(target, "out")
    wanted = None if dtype is None else element(dtype)
    matrix = _Matrix.of(target)._replace(owns_padding=is_new)
    plan = _plan(_Matrix.of(left), _Matrix.of(right), matrix, wanted)
    plan.run(left, right, target, stream)
    if plan.is_direct and not is_new:
        # The plan serves every framework; the stream is that of these arrays' frameworks.
        frameworks = (left.framework, right.framework, target.framework)
        _PLANS.remember((a, b, out), dtype, (plan, frameworks))
    return out


def _new_output(a: ArrayView, b: ArrayView, dtype: object) -> Any:
    _check_operands(_Matrix.of(a), _Matrix.of(b))
    of = a.element if dtype is None else element(dtype)
    if of.name not in _OUTPUTS:
        raise ArrayTypeError(f"dtype is {of}; the output can be {', '.join(_OUTPUTS)}. Pass one.")
    return empty_rows(a, (a.shape[0], b.shape[1]), of)


# --- layouts ----------------------------------------------------------------------------------


class _Matrix(NamedTuple):
    """What a plan depends on: all of an `ArrayView` but its owner and its exact address."""

    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element: Element
    device: int | None
    starts_on_granule: bool
    owns_padding: bool = False  # what lies behind its rows, up to 16 bytes, is nobody else's

    @classmethod
    def of(cls, view: ArrayView) -> _Matrix:
        return cls(*view[1:5], view.address % _GRANULE_BYTES == 0)

    @property
    def transposed(self) -> _Matrix:
        return self._replace(shape=self.shape[::-1], strides_bytes=self.strides_bytes[::-1])

    def in_rows(self) -> _Matrix | None:
        """The matrix as rows that TMA can reach, if it is; one row may have any stride."""
        (rows, columns), (row_bytes, item_bytes) = self.shape, self.strides_bytes
        if rows == 1:
            row_bytes = padded_row_bytes(columns, self.element)
        if columns == 1:
            item_bytes = self.element.itemsize
        is_dense = item_bytes == self.element.itemsize and self.starts_on_granule
        if not is_dense or row_bytes <= 0 or row_bytes % _GRANULE_BYTES:
            return None
        return self._replace(strides_bytes=(row_bytes, item_bytes))

    def in_stored_rows(self) -> _Matrix | None:
        """The matrix as rows that TMA can write: it writes whole sectors (measured on an H200)."""
        ends_on_granule = self.shape[1] * self.element.itemsize % _GRANULE_BYTES == 0
        return self.in_rows() if ends_on_granule or self.owns_padding else None

    def over(self, view: ArrayView) -> ArrayView:
        """The view with this shape and these strides."""
        return view._replace(shape=self.shape, strides_bytes=self.strides_bytes)

    def repacked(self) -> _Matrix:
        """What a copy into padded rows looks like."""
        row_bytes = padded_row_bytes(self.shape[1], self.element)
        strides = (row_bytes, self.element.itemsize)
        return self._replace(strides_bytes=strides, starts_on_granule=True)


def _check_operands(a: _Matrix, b: _Matrix) -> None:
    for name, matrix in (("a", a), ("b", b)):
        if len(matrix.shape) != 2:
            raise ArgumentError(
                f"{name} has shape {matrix.shape}; it must have 2 dimensions. Reshape it, or loop "
                "over the others."
            )
        if matrix.element.name not in _OPERANDS:
            raise ArrayTypeError(
                f"{name} holds {matrix.element}; the kernel multiplies {' and '.join(_OPERANDS)}. "
                "Convert it with astype."
            )
    if a.element is not b.element or a.device != b.device:
        raise ArgumentError(
            f"b holds {b.element} on device {b.device}; a holds {a.element} on device {a.device}. "
            "Convert or move one of them."
        )
    if a.shape[1] != b.shape[0]:
        raise ArgumentError(
            f"b has shape {b.shape}; a has shape {a.shape}, so b must have {a.shape[1]} rows. "
            "For a matrix stored as [N, K] pass b.T."
        )


def _check_output(out: _Matrix, a: _Matrix, b: _Matrix, wanted: Element | None) -> None:
    shape = (a.shape[0], b.shape[1])
    if out.shape != shape or out.device != a.device:
        raise ArgumentError(
            f"out has shape {out.shape} on device {out.device}; the product has shape {shape} on "
            f"device {a.device}. Pass such an array, or none to get one."
        )
    if out.element.name not in _OUTPUTS or wanted not in {None, out.element}:
        raise ArrayTypeError(
            f"out holds {out.element}; it must hold {wanted or ' or '.join(_OUTPUTS)}. "
            "Leave out dtype= or out=."
        )


# --- plans ------------------------------------------------------------------------------------


_PLANS: PlanCache[tuple[_Plan, tuple[str, ...]]] = PlanCache()


@functools.lru_cache(maxsize=1024)
def _plan(a: _Matrix, b: _Matrix, c: _Matrix, wanted: Element | None) -> _Plan:
    """All that a product costs once per layout; the same plan serves any addresses."""
    _check_operands(a, b)
    _check_output(c, a, b, wanted)
    # The columns of the product are the rows of the transposes' product.
    swapped = c.in_stored_rows() is None and c.transposed.in_stored_rows() is not None
    rows = c.transposed if swapped else c
    by_columns = rows.shape[0] <= _FEW_ROWS
    if swapped != by_columns:
        a, b, c = b.transposed, a.transposed, c.transposed
    return _Plan(a, b, c, swapped=swapped != by_columns, by_columns=by_columns)


@dataclass(frozen=True, slots=True)
class _Operand:
    """How the kernel reads a matrix: as it is, transposed, or from a copy with padded rows."""

    rows: _Matrix
    transposed: bool = False
    copied: bool = False

    @classmethod
    def of(cls, matrix: _Matrix) -> _Operand:
        for transposed in (False, True):
            rows = (matrix.transposed if transposed else matrix).in_rows()
            if rows is not None:
                return cls(rows, transposed)
        return cls(matrix.repacked(), copied=True)

    def copy(self, view: ArrayView, *, swapped: bool) -> ArrayView:
        """The copy to read instead."""
        part = empty_rows(view, self.rows.shape, view.element)
        owner: Any = view.owner
        part[...] = owner.T if swapped else owner
        return _arrays.view(part)


class _Plan:
    """A product of matrices of given layouts: everything but their addresses and the stream."""

    def __init__(
        self, a: _Matrix, b: _Matrix, c: _Matrix, *, swapped: bool, by_columns: bool
    ) -> None:
        self._a, self._b = _Operand.of(a), _Operand.of(b)
        self._shape = c.shape
        lines = c.transposed if by_columns else c
        self._lines = lines.in_stored_rows() or lines.repacked()
        self._is_staged = lines.in_stored_rows() is None
        self._depth = a.shape[1]
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
        m, n = self._shape
        limits = emulate.LIMITS if device is None else _driver.require_device(device)
        multiprocessors = limits.multiprocessors
        pitches = (self._a.rows.strides_bytes[0], self._b.rows.strides_bytes[0])
        on_lines = all(pitch % _LINE_BYTES == 0 for pitch in pitches)
        transposed = (self._a.transposed, self._b.transposed)
        if self._by_columns:
            blocking = choose_few_columns(m, n, multiprocessors, b_is_k_major=transposed[1])
        else:
            blocking = choose_blocking(
                m, n, multiprocessors, on_lines=on_lines, b_is_k_major=transposed[1]
            )
        tiles = gemm_tiles(
            self._a.rows.over(a), self._b.rows.over(b), self._lines.over(c), blocking, *transposed
        )
        kernel = gemm_kernel(*(tile.cuda_type for tile in tiles), *transposed, blocking)
        clusters = blocking.clusters(m, n)
        at_once = multiprocessors // blocking.cluster
        launch = kernel.prepare(
            min(clusters, at_once) * blocking.cluster,
            blocking.threads,
            (*tiles, m, n, self._depth),
            cluster=blocking.cluster if blocking.cluster > 1 else None,
            pdl=blocking.starts_early(clusters, at_once),
        )
        launch.release()
        return launch


# --- the kernel -------------------------------------------------------------------------------

# Columns of B that a pair loads together: a box of 64 for each, however B lies.
_SHARED_COLUMNS = 128
_ROUNDS_TO_SHARE = 2

# Columns of B that a line holds where N is contiguous.
_LINE_COLUMNS = 64

_WIDEST = (2, 256)

# Share of the tensor cores' rate that a shape of block reaches when K is long (measured, H200).
_RATE = {
    (2, 256): 1.0,
    (2, 224): 0.985,
    (2, 192): 0.97,
    (2, 160): 0.967,
    (2, 128): 0.965,
    (1, 256): 0.91,
    (1, 224): 0.905,
    (1, 192): 0.9,
    (1, 160): 0.88,
    (1, 128): 0.85,
    (2, 64): 0.83,
    (1, 64): 0.7,
}


def choose_blocking(
    m: int, n: int, multiprocessors: int, *, on_lines: bool = True, b_is_k_major: bool = True
) -> Blocking:
    """The blocking of least time: rounds of blocks, times the work of a block over its rate.

    From a few rounds on, pairs of blocks share the loads of B; before, they would only wait for
    each other.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
        on_lines: Whether the operands' rows start on 128-byte lines of L2. Where they do not, every
            row of a box takes two requests, and the widest blocks, sharing loads, win.
        b_is_k_major: Whether K is contiguous in B; where N is, it is loaded by whole lines of 64.
    """

    def cost(shape: tuple[int, int]) -> float:
        blocking = Blocking(*shape)
        rounds = -(-blocking.clusters(m, n) // multiprocessors)
        return rounds * blocking.block_m * blocking.block_n / _RATE[shape]

    shapes = [shape for shape in _RATE if b_is_k_major or shape[1] % _LINE_COLUMNS == 0]
    consumers, block_n = min(shapes, key=cost)
    if not on_lines and Blocking(*_WIDEST).clusters(m, n) > multiprocessors:
        consumers, block_n = _WIDEST
    rounds = Blocking(consumers, block_n).clusters(m, n) / multiprocessors
    shares = block_n % _SHARED_COLUMNS == 0 and rounds > (_ROUNDS_TO_SHARE if on_lines else 1)
    return Blocking(consumers, block_n, cluster=2 if shares else 1)


# Up to so many rows of output, the product of the transposes is taken: wgmma's 64 rows are then
# all in use, and blocks are no wider than there is something to multiply.
_FEW_ROWS = 64
_FEW_COLUMNS = (8, 16, 32, 64)


def choose_few_columns(m: int, n: int, multiprocessors: int, *, b_is_k_major: bool) -> Blocking:
    """The blocking of a product that is no wider than `_FEW_ROWS`, which memory bounds.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
        b_is_k_major: Whether K is contiguous in B; where N is, it takes a whole line of 64.
    """
    widths = _FEW_COLUMNS if b_is_k_major else (_LINE_COLUMNS,)
    block_n = next(width for width in widths if width >= n)

    def rows(consumers: int) -> int:
        """That the busiest multiprocessor loads."""
        blocking = Blocking(consumers, block_n, by_columns=True)
        return -(-blocking.clusters(m, n) // multiprocessors) * blocking.block_m

    # Of two that load as much, the larger blocks load B less often.
    consumers = min((2, 1), key=rows)
    return Blocking(consumers, block_n, by_columns=True)


def gemm_tiles(
    a: ArrayView,
    b: ArrayView,
    c: ArrayView,
    blocking: Blocking,
    a_transposed: bool,
    b_transposed: bool,
) -> tuple[TMATensorTile, TMATensorTile, TMATensorTile]:
    """The tiles that the kernel takes, over matrices whose rows TMA can read."""
    a_tile = _operand_tile(a, blocking.block_m, k_major=not a_transposed, parts=1)
    # b is [K, N]: K is contiguous where it was transposed.
    b_tile = _operand_tile(b, blocking.block_n, k_major=b_transposed, parts=blocking.cluster)
    return a_tile, b_tile, output_tile(c, blocking)


def _operand_tile(view: ArrayView, side: int, *, k_major: bool, parts: int) -> TMATensorTile:
    """``side`` of M or N by 64 of K; in at least ``parts`` boxes, one for each CTA of a cluster."""
    if k_major:
        box = (side // parts, BLOCK_K)
        return create_tma_tile(view, (side, BLOCK_K), swizzle=Swizzle.B128, box_shape=box)
    return create_tma_tile(view, (BLOCK_K, side), swizzle=Swizzle.B128)


@functools.cache
def gemm_kernel(
    a: str, b: str, c: str, a_transposed: bool, b_transposed: bool, blocking: Blocking
) -> Kernel:
    """The kernel for three types of tile and a blocking."""
    constants = gemm_constants(a_transposed, b_transposed, blocking)
    return Kernel("gemm.cu", types={"ATile": a, "BTile": b, "CTile": c}, constants=constants)


def gemm_constants(a_transposed: bool, b_transposed: bool, blocking: Blocking) -> dict[str, int]:
    """What the kernel is compiled with beside the types of its tiles."""
    return {
        **blocking.constants,
        "A_IS_K_MAJOR": not a_transposed,
        "B_IS_K_MAJOR": b_transposed,
    }
