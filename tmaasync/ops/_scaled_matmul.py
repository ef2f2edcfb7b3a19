"""ops.scaled_matmul: scaled_gemm.cu, a block-scaled FP8 GEMM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import (
    allocator_of_all,
    empty_rows,
    in_order,
    rows_allocator,
    staged_operand,
)
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._gemm.config import SCALE_BLOCK, SCALES_PER_LOAD, Occupancy
from tmaasync.ops._gemm.cost_model import choose_scaled_config
from tmaasync.ops._gemm.tiles import (
    ScaledArguments,
    ScaledPointers,
    scaled_gemm_kernel,
    scaled_gemm_tiles,
)
from tmaasync.ops._layouts import Layout, Operand, is_apart, refuse_overlap
from tmaasync.ops._operation import Operation, overridden

__all__ = ["ScaledMatmul", "scaled_matmul"]

_OPERANDS = ("float8_e4m3fn", "float8_e5m2")
_OUTPUTS = ("bfloat16", "float16", "float32")
_DEFAULT_OUTPUT = "bfloat16"
_CALLS = CallCache()


def scaled_matmul(  # noqa: PLR0913 - operands, scales and types
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    *,
    out: Any = None,
    dtype: object = None,
    a_dtype: object = None,
    b_dtype: object = None,
    stream: object = None,
) -> Any:
    """Multiply fp8 matrices with scales for blocks of 128 along K (a block-scaled FP8 GEMM).

    ``out[m, n] = sum(scale_a[m, k // 128] * a[m, k] * b[k, n] * scale_b[k // 128, n // 128])`` over
    k; or with ``scale_b[k // 128, n]``. The tensor cores accumulate over 128 k; these
    accumulators are scaled and added in fp32, then rounded once.

    Read without staging copies: ``a`` and ``b.T`` with K contiguous and rows that start at
    multiples of 16 bytes, ``scale_a`` and a ``scale_b`` of every column with M and N contiguous and
    a multiple of 4 scales apart, a ``scale_b`` of 128 columns with either side so.
    These are the layouts of torch's ``scaled_mm`` with BlockWise1x128 and BlockWise128x128, but for
    1 x 128 scales of b, which are [N, K / 128] there: pass their ``.T``.

    Args:
        a: [M, K], float8_e4m3fn or float8_e5m2, on a GPU, or in host memory for the emulator.
        b: [K, N], one of these types, on the same device; of a matrix [N, K] pass ``b.T``.
        scale_a: [M, ceil(K / 128)], float32.
        scale_b: [ceil(K / 128), ceil(N / 128)] or [ceil(K / 128), N], float32; its shape
            decides which. In the former K may be padded to a multiple of 4 scales.
        out: Where to; [M, N]. By default a new array of the framework of ``a``; where N elements
            are no multiple of 16 bytes its rows are padded, so it is not contiguous.
        dtype: Of the output: bfloat16, float16 or float32; by default that of ``out``, else
            bfloat16.
        a_dtype: Read ``a`` as this type of the same width, for arrays that cannot say what they
            hold, such as float8 in a CuPy array of uint8.
        b_dtype: The same for ``b``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes or devices do not fit, or ``out`` is not as described.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import ml_dtypes, numpy as np
    >>> a, b = (np.ones(shape, ml_dtypes.float8_e4m3fn) for shape in ((2, 256), (8, 256)))
    >>> scale_a = np.array([[1, 2], [3, 4]], np.float32)
    >>> scaled_matmul(a, b.T, scale_a, np.ones((2, 1), np.float32), dtype="float32")[:, 0]
    array([384., 896.], dtype=float32)
    """
    is_new = out is None
    option = (dtype, a_dtype, b_dtype, is_new)
    arrays = (a, b, scale_a, scale_b) if is_new else (a, b, scale_a, scale_b, out)
    done = _CALLS.run(arrays, option, stream)
    if done is not None:
        return done[4]
    operands = Operands.of(a, b, scale_a, scale_b, (a_dtype, b_dtype))
    if is_new:
        out = _new_output(operands, _DEFAULT_OUTPUT if dtype is None else dtype)
    target = _arrays.view(out, argument="out")
    _check_output(target, operands, None if dtype is None else element(dtype))
    layout = Layout.of(target)._replace(owns_padding=is_new)
    operation = _CALLS.operation(
        ScaledMatmul, *map(Layout.of, operands), layout, column_scales=operands.column_scales
    )
    operation.run(operands, target, stream)
    if operation.is_bindable:
        frameworks = [view.framework for view in (*operands, target)]
        allocators = iter([rows_allocator(operands.a, target)])
        new_arrays = allocator_of_all(allocators) if is_new else None
        _CALLS.remember(arrays, option, operation, frameworks, target.device, new_arrays=new_arrays)
    return out


# --- what the arrays must be ------------------------------------------------------------------


class Operands(NamedTuple):
    """The matrices and their scales, checked."""

    a: ArrayView
    b: ArrayView
    scale_a: ArrayView
    scale_b: ArrayView

    @classmethod
    def of(
        cls, a: Any, b: Any, scale_a: Any, scale_b: Any, dtypes: tuple[object, object]
    ) -> Operands:
        """Look at them and check that they fit each other; a and b may be read as given types."""
        a_dtype, b_dtype = dtypes
        found = cls(
            _arrays.view(a, dtype=a_dtype, argument="a"),
            _arrays.view(b, dtype=b_dtype, argument="b"),
            _arrays.view(scale_a, argument="scale_a"),
            _arrays.view(scale_b, argument="scale_b"),
        )
        ArgumentError.raise_for(_rank_violations(found))
        _check_types(found)
        _arrays.common_device(found.named)
        ArgumentError.raise_for(_shape_violations(found))
        return found._replace(scale_b=_first_rows(found.scale_b, found.k_blocks))

    @property
    def named(self) -> dict[str, ArrayView]:
        """The views by the names of their arguments."""
        return self._asdict()

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the output."""
        return self.a.shape[0], self.b.shape[1]

    @property
    def k_blocks(self) -> int:
        """Scales along K."""
        return -(-self.a.shape[1] // SCALE_BLOCK)

    @property
    def column_scales(self) -> bool:
        """Whether every column of B has scales, not every 128 columns."""
        columns = self.b.shape[1]
        return columns > 1 and self.scale_b.shape[1] == columns


def _first_rows(scales: ArrayView, rows: int) -> ArrayView:
    """Return the scales without what torch pads them with along K."""
    owner: Any = scales.owner
    return scales if scales.shape[0] == rows else _arrays.view(owner[:rows])


def _rank_violations(operands: Operands) -> Iterator[Violation]:
    for name, view in operands.named.items():
        if view.ndim != 2:
            rule = "it must have 2 dimensions"
            remedy = "Reshape it, or loop over the others"
            yield Violation(f"{name}.shape", view.shape, rule, remedy)


def _check_types(operands: Operands) -> None:
    for name in ("a", "b"):
        held = operands.named[name].element
        if held.name not in _OPERANDS:
            raise ArrayTypeError(
                f"{name} holds {held}; the kernel multiplies {' and '.join(_OPERANDS)}. Convert it "
                f'with astype; of bytes that hold one, pass {name}_dtype="float8_e4m3fn".'
            )
    for name in ("scale_a", "scale_b"):
        held = operands.named[name].element
        if held.name != "float32":
            raise ArrayTypeError(f"{name} holds {held}; scales are float32. Convert it.")


def _shape_violations(operands: Operands) -> Iterator[Violation]:
    (m, k), (depth, n) = operands.a.shape, operands.b.shape
    if depth != k:
        rule = f"a has shape {(m, k)}, so b must have {k} rows"
        yield Violation("b.shape", (depth, n), rule, "For a matrix stored as [N, K] pass b.T")
    blocks = operands.k_blocks
    if operands.scale_a.shape != (m, blocks):
        rule = f"a row of a has a scale for every {SCALE_BLOCK} of its {k} elements"
        yield Violation("scale_a.shape", operands.scale_a.shape, rule, f"Pass shape {(m, blocks)}")
    padded = -(-blocks // SCALES_PER_LOAD) * SCALES_PER_LOAD
    wide = -(-n // SCALE_BLOCK)
    if operands.scale_b.shape not in {(blocks, n), (blocks, wide), (padded, wide)}:
        rule = (
            f"b has a scale for {SCALE_BLOCK} elements of every column, or for every "
            f"{SCALE_BLOCK} x {SCALE_BLOCK} elements"
        )
        remedy = f"Pass shape {(blocks, n)} or {(blocks, wide)}"
        yield Violation("scale_b.shape", operands.scale_b.shape, rule, remedy)


def _new_output(operands: Operands, dtype: object) -> Any:
    """Return an uninitialised output whose rows TMA can store."""
    held = element(dtype)
    if held.name not in _OUTPUTS:
        raise ArrayTypeError(f"dtype is {held}; the output can be {', '.join(_OUTPUTS)}. Pass one.")
    return empty_rows(operands.a, operands.shape, held)


def _check_output(out: ArrayView, operands: Operands, wanted: Element | None) -> None:
    """Check that the output is one for these operands.

    Raises:
        ArgumentError: It cannot be written, has another shape or device, or overlaps an operand.
        ArrayTypeError: It has another type.
    """
    _arrays.require_writable(out, "out")
    if out.shape != operands.shape or out.device != operands.a.device:
        raise ArgumentError(
            f"out has shape {out.shape} on device {out.device}; the product has shape "
            f"{operands.shape} on device {operands.a.device}. Pass such an array, or none to get "
            "one."
        )
    if out.element.name not in _OUTPUTS or wanted not in {None, out.element}:
        raise ArrayTypeError(
            f"out holds {out.element}; it must hold {wanted or ' or '.join(_OUTPUTS)}. "
            "Leave out dtype= or out=."
        )
    refuse_overlap("out", out, operands.named)


# --- the operation ----------------------------------------------------------------------------

# Which of the operands the kernel takes transposed: b as [N, K], the scales of a as [K / 128, M].
_TRANSPOSES = (False, True, True, False)


class ScaledMatmul(Operation):
    """A block-scaled GEMM."""

    def __init__(
        self,
        a: Layout,
        b: Layout,
        scale_a: Layout,
        scale_b: Layout,
        out: Layout,
        *,
        column_scales: bool,
    ) -> None:
        """Decide how the kernel reads and writes arrays of these layouts."""
        super().__init__(out.device)
        self._operands = (
            Operand.of_rows(a),
            Operand.of_rows(b.transposed),
            Operand.of_rows(scale_a.transposed),
            Operand.of_rows(scale_b) if column_scales else _either_way(scale_b),
        )
        self._column_scales = column_scales
        self._k = a.shape[1]
        self._rows = out.in_stored_rows() or out.padded()
        self._is_staged = out.in_stored_rows() is None
        self._spans = tuple(layout.span_bytes for layout in (a, b, scale_a, scale_b, out))

    @property
    def is_bindable(self) -> bool:
        """See `Operation`."""
        needs_staging = self._is_staged or any(operand.is_staged for operand in self._operands)
        return super().is_bindable and not needs_staging

    def run(self, operands: Operands, out: ArrayView, stream: object) -> None:
        """Multiply."""
        owner: Any = out.owner
        if out.is_empty:
            return
        handle = self.ordered((*operands, out), stream)
        with in_order(out.framework, out.device, handle):
            if self._k == 0:
                owner[...] = 0
                return
            staged = empty_rows(out, self._rows.shape, out.element) if self._is_staged else None
            target = out if staged is None else _arrays.view(staged)
            reached = [
                operand.rows.over(
                    staged_operand(operand, view, handle, transposes=transposes)
                    if operand.is_staged
                    else view
                )
                for operand, view, transposes in zip(
                    self._operands, operands, _TRANSPOSES, strict=True
                )
            ]
            views = (*reached, self._rows.over(target))
            launch = self.prepared(lambda: self._prepare(*views))
            launch.launch_at(ScaledPointers(*(view.address for view in views)), handle)
            if staged is not None:
                owner[...] = staged

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """See `Operation`; addresses are those of the operands and out."""
        if self._launch is None or not is_apart(-1, addresses, self._spans):
            return None
        return self._launch, ScaledPointers(*addresses)

    def _prepare(
        self, a: ArrayView, b: ArrayView, scale_a: ArrayView, scale_b: ArrayView, c: ArrayView
    ) -> Launch:
        m, n = c.shape
        occupancy = Occupancy.of(self.backend)
        config = overridden(
            choose_scaled_config(m, n, occupancy, column_scales=self._column_scales)
        )
        transposed = self._operands[3].transposed
        operands = (a, b, scale_a, scale_b)
        tiles = scaled_gemm_tiles(operands, c, config, b_scales_transposed=transposed)
        types = [tile.cuda_type for tile in tiles]
        kernel = scaled_gemm_kernel(types, transposed, config)
        clusters = config.clusters(m, n)
        active = occupancy.max_active_clusters(config.cluster_size)
        launch = kernel.prepare(
            min(clusters, active) * config.cluster,
            config.threads,
            ScaledArguments(*tiles, m=m, n=n, k=self._k),
            cluster=config.cluster if config.cluster > 1 else None,
            pdl=config.starts_early(clusters, active),
        )
        launch.release()
        return launch


def _either_way(matrix: Layout) -> Operand:
    """Return the matrix as it is or transposed, if TMA can read that; else a staging copy."""
    plain, transposed = Operand.of_rows(matrix), Operand.of_rows(matrix.transposed)
    if plain.is_staged and not transposed.is_staged:
        return replace(transposed, transposed=True)
    return plain
