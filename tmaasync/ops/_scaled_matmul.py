"""ops.scaled_matmul: scaled_gemm.cu, an FP8 GEMM with scales for blocks of 128."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import (
    Output,
    fill,
    in_order,
    indexable,
    reached_operand,
    reached_output,
)
from tmaasync.ops._block_scaled_matmul import Call, multiply_blocks
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._extents import check_extents
from tmaasync.ops._gemm.config import (
    SCALE_BLOCK,
    SCALES_PER_LOAD,
    Occupancy,
    PersistentWork,
    ScaledTileConfig,
)
from tmaasync.ops._gemm.cost_model import choose_scaled_config
from tmaasync.ops._gemm.tensor_memory import (
    PromotedConfig,
    promoted_config,
    runs_on_tensor_memory,
)
from tmaasync.ops._gemm.tiles import (
    ScaledArguments,
    ScaledMatrices,
    prepared_persistent,
    scaled_gemm_kernel,
    scaled_gemm_tiles,
)
from tmaasync.ops._layouts import (
    Layout,
    Operand,
    check_output,
    check_type,
    is_apart,
    refuse_overlap,
)
from tmaasync.ops._operation import Operation, overridden

OPERANDS = ("float8_e4m3fn", "float8_e5m2")
OUTPUTS = ("bfloat16", "float16", "float32")
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
    scale_dtype: object = None,
    scale_layout: str = "rows",
    stream: object = None,
) -> Any:
    """Multiply matrices of fp8 or fp4 with scales for blocks along K (a block-scaled GEMM).

    fp8 may have float32 scales for 128 elements: ``out[m, n] = sum(scale_a[m, k // 128] *
    a[m, k] * b[k, n] * scale_b[k // 128, n // 128])`` over k; or with ``scale_b[k // 128, n]``. The
    tensor cores accumulate over 128 elements of K; the accumulators are then scaled and added in
    fp32, and rounded once. ``scale_a * scale_b`` is a float32 too: above 3.4e38 it is infinity, and
    below 1.2e-38 it loses accuracy or is 0. These layouts need no staging copies:

    * ``a`` and ``b.T``: K contiguous, rows that start at multiples of 16 bytes;
    * ``scale_a``, and ``scale_b`` with one scale per column: M or N contiguous, with a stride that
      is a multiple of 4 scales;
    * ``scale_b`` with one scale per 128 columns: either side contiguous, with the same stride rule.

    They match torch's ``scaled_mm`` with BlockWise1x128 and BlockWise128x128, except 1 x 128 scales
    of b, which torch stores as [N, K / 128]: pass their ``.T``.

    On B200, B300 and RTX 50 (compiled and emulated, not run on a chip) the tensor cores also apply
    scale factors of one byte (OCP Microscaling Formats; PTX ISA, "Block scaling"): MXFP8, float8
    with a float8_e8m0fnu for 32 elements; MXFP4, float4 with the same; NVFP4, float4 with a
    float8_e4m3fn for 16. K is a multiple of 32 or 16. ``out[m, n] = sum(scale_a[m, k // 32] * a[m,
    k] * b[k, n] * scale_b[k // 32, n])``. A byte has two float4, the first in the low bits: ``a``
    is [M, K / 2] and ``b`` [K / 2, N], of uint8 with ``a_dtype="float4_e2m1fn"``, or of torch's
    float4_e2m1fn_x2.

    M, N and K may be up to 2^31 - 2^18 (2,147,221,504) each.

    Args:
        a: [M, K], float8_e4m3fn or float8_e5m2, on a GPU, or in host memory for the emulator; or
            float4 as above.
        b: [K, N], of either type, on the same device; for a matrix [N, K] pass ``b.T``.
        scale_a: [M, ceil(K / 128)], float32. Scale factors are [M, K / 32], or [M, K / 16] of
            NVFP4; a pair of them and a number, or an array of one float32, scales all of ``a`` too.
        scale_b: [ceil(K / 128), ceil(N / 128)] or [ceil(K / 128), N], float32; its shape
            decides. With one scale per 128 columns, K may be padded to a multiple of 4 scales.
            Scale factors are [K / 32, N], or [K / 16, N] of NVFP4; or a pair, as of ``scale_a``.
        out: The output, [M, N]. By default a new array of the framework of ``a``; if a row of N
            elements is not a multiple of 16 bytes, rows are padded and the array is not contiguous.
        dtype: Output type: bfloat16, float16 or float32; by default the type of ``out``, else
            bfloat16.
        a_dtype: Read ``a`` as this type of the same width, for frameworks without
            that type, such as float8 in a CuPy array of uint8.
        b_dtype: The same for ``b``.
        scale_dtype: The same for scale factors.
        scale_layout: ``"rows"``, of which the operation makes swizzled atoms in each call; or
            ``"swizzled"``: the scale factors of a, and of b.T, are contiguous atoms of 128 rows by
            4 (SWIZZLE_32_4_4 of torch, "1D Block Scaling Factors Layout" of cuBLAS), of any shape.
            Padding within atoms must not be NaN.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes or devices do not match, or ``out`` is invalid.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The device does not multiply these types; or, for host arrays, there is no
            C++ compiler.

    >>> import ml_dtypes, numpy as np
    >>> a, b = (np.ones(shape, ml_dtypes.float8_e4m3fn) for shape in ((2, 256), (8, 256)))
    >>> scale_a = np.array([[1, 2], [3, 4]], np.float32)
    >>> scaled_matmul(a, b.T, scale_a, np.ones((2, 1), np.float32), dtype="float32")[:, 0]
    array([384., 896.], dtype=float32)
    """
    is_new = out is None
    option = (dtype, a_dtype, b_dtype, scale_dtype, scale_layout, is_new)
    arrays = (a, b, scale_a, scale_b) if is_new else (a, b, scale_a, scale_b, out)
    done = _CALLS.run(arrays, option, stream)
    if done is not None:
        return done[-1]
    dtypes = (a_dtype, b_dtype, scale_dtype)
    call = Call(a, b, scale_a, scale_b, out, dtype, dtypes, scale_layout)
    if call.is_block_scaled:
        return multiply_blocks(_CALLS, call, option, stream)
    operands, output = checked(a, b, scale_a, scale_b, out, dtype, (a_dtype, b_dtype))
    operation = _CALLS.operation(
        ScaledMatmul,
        *map(Layout.of, operands),
        output.layout,
        column_scales=operands.column_scales,
    )
    operation.run(operands, output.view, stream)
    operation.remember_in(_CALLS, arrays, option, operands, output)
    return output.array


# --- checks of the arrays ---------------------------------------------------------------------


class Operands(NamedTuple):
    a: ArrayView
    b: ArrayView
    scale_a: ArrayView
    scale_b: ArrayView

    @classmethod
    def of(
        cls,
        a: Any,
        b: Any,
        scale_a: Any,
        scale_b: Any,
        dtypes: tuple[object, object],
        *,
        is_grouped: bool = False,
    ) -> Operands:
        """Return checked views of the operands; a and b may be read as other ``dtypes``.

        In a grouped GEMM b and its scales have a first dimension: groups.
        """
        a_dtype, b_dtype = (
            None if dtype is None else element(dtype, argument=argument)
            for dtype, argument in zip(dtypes, ("a_dtype", "b_dtype"), strict=True)
        )
        found = cls(
            _arrays.view(a, dtype=a_dtype, argument="a"),
            _arrays.view(b, dtype=b_dtype, argument="b"),
            _arrays.view(scale_a, argument="scale_a"),
            _arrays.view(scale_b, argument="scale_b"),
        )
        ArgumentError.raise_for(_rank_violations(found, is_grouped))
        _check_types(found)
        _arrays.common_device(found.named)
        ArgumentError.raise_for(_shape_violations(found))
        (m, k), (*groups, _, n) = found.a.shape, found.b.shape
        check_extents(M=m, N=n, K=k, G=max(groups, default=1))
        return found._replace(scale_b=first_rows(found.scale_b, found.k_blocks))

    @property
    def named(self) -> dict[str, ArrayView]:
        return self._asdict()

    @property
    def k_blocks(self) -> int:
        return -(-self.a.shape[1] // SCALE_BLOCK)

    @property
    def column_scales(self) -> bool:
        """Whether B has one scale per column, not per 128 columns."""
        return has_column_scales(self.b, self.scale_b)


def has_column_scales(b: ArrayView | Layout, scale_b: ArrayView | Layout) -> bool:
    """Return whether B has one scale per column, not per 128 columns."""
    columns = b.shape[-1]
    return columns > 1 and scale_b.shape[-1] == columns


def checked(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    out: Any,
    dtype: object,
    dtypes: tuple[object, object] = (None, None),
) -> tuple[Operands, Output]:
    """Check the arrays of a call, and make its output if ``out`` is None."""
    operands = Operands.of(a, b, scale_a, scale_b, dtypes)
    return operands, output_of(operands, out, dtype)


def output_of(operands: Operands, out: Any, dtype: object) -> Output:
    """Return the checked output; it shares no memory with the operands."""
    left, shape = operands.a, (operands.a.shape[0], operands.b.shape[-1])
    output = Output.of(out, left, shape, OUTPUTS, "bfloat16" if dtype is None else dtype)
    check_output(output.view, shape, left.device, OUTPUTS, dtype)
    refuse_overlap("out", output.view, operands.named)
    return output


def first_rows(scales: ArrayView, rows: int) -> ArrayView:
    """Return the scales of B without torch's padding along K."""
    is_whole = scales.shape[-2] == rows or scales.is_stand_in
    return scales if is_whole else _arrays.view(indexable(scales)[..., :rows, :])


def _rank_violations(operands: Operands, is_grouped: bool) -> Iterator[Violation]:
    for name, view in operands.named.items():
        dims = 3 if is_grouped and name.endswith("b") else 2
        if view.ndim != dims:
            rule = f"it must have {dims} dimensions"
            remedy = "Reshape it, or loop over the others"
            yield Violation(f"{name}.shape", view.shape, rule, remedy)


def _check_types(operands: Operands) -> None:
    for name in ("a", "b"):
        remedy = (
            f'Convert it with astype; of bytes that hold one, pass {name}_dtype="float8_e4m3fn"'
        )
        check_type(name, operands.named[name].element, OPERANDS, remedy)
    for name in ("scale_a", "scale_b"):
        held = operands.named[name].element
        if held.name != "float32":
            rule = "scales are float32, and scale factors of 32 or 16 elements float8"
            remedy = 'Convert it; of bytes pass scale_dtype="float8_e8m0fnu" or "float8_e4m3fn"'
            raise ArrayTypeError.broken(name, held, rule, remedy, verb="holds")


def _shape_violations(operands: Operands) -> Iterator[Violation]:
    (m, k), (*groups, depth, _) = operands.a.shape, operands.b.shape
    if depth != k:
        rule = f"a has shape {(m, k)}, so b must have {k} rows"
        remedy = "For matrices stored as [N, K] pass b." + ("swapaxes(1, 2)" if groups else "T")
        yield Violation("b.shape", operands.b.shape, rule, remedy)
    yield from scale_violations(operands)


def scale_violations(operands: Operands) -> Iterator[Violation]:
    """Yield scales whose shapes do not fit the operands."""
    (m, k), (*groups, _, n) = operands.a.shape, operands.b.shape
    blocks = operands.k_blocks
    if operands.scale_a.shape != (m, blocks):
        rule = f"a row of a has a scale for every {SCALE_BLOCK} of its {k} elements"
        yield Violation("scale_a.shape", operands.scale_a.shape, rule, f"Pass shape {(m, blocks)}")
    padded = -(-blocks // SCALES_PER_LOAD) * SCALES_PER_LOAD
    wide = -(-n // SCALE_BLOCK)
    whole, coarse, longer = ((*groups, *of) for of in ((blocks, n), (blocks, wide), (padded, wide)))
    if operands.scale_b.shape not in {whole, coarse, longer}:
        rule = (
            f"b has a scale for {SCALE_BLOCK} elements of every column, or for every "
            f"{SCALE_BLOCK} x {SCALE_BLOCK} elements"
        )
        remedy = f"Pass shape {whole} or {coarse}"
        yield Violation("scale_b.shape", operands.scale_b.shape, rule, remedy)


# --- the operation ----------------------------------------------------------------------------


def scaled_operands(
    a: Layout, b: Layout, scale_a: Layout, scale_b: Layout, *, column_scales: bool
) -> tuple[Operand, ...]:
    """Return how the kernel reads its operands: b as [N, K], the scales of a as [K / 128, M]."""
    return (
        Operand.of_rows(a),
        Operand.of_k_rows(b, k_is_last=False),
        Operand.of_k_rows(scale_a, k_is_last=False),
        Operand.of_rows(scale_b) if column_scales else _either_way(scale_b),
    )


class FloatScaledOperation(Operation):
    """An FP8 GEMM with float32 scales, or a grouped one, for given layouts."""

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
        super().__init__(out.device)
        self._operands = scaled_operands(a, b, scale_a, scale_b, column_scales=column_scales)
        self._column_scales = column_scales
        self._k = a.shape[1]
        self._out = Operand.of_output(out)
        self._needs_staging = any(one.is_staged for one in (*self._operands, self._out))
        self._spans = tuple(layout.span_bytes for layout in (a, b, scale_a, scale_b, out))

    def _reached(self, operands: Operands, stream: int) -> list[ArrayView]:
        """Return the operands as the kernel reads them, from staging copies if it must."""
        return [
            operand.rows.over(reached_operand(operand, view, stream))
            for operand, view in zip(self._operands, operands, strict=True)
        ]


class ScaledMatmul(FloatScaledOperation):
    def run(self, operands: Operands, out: ArrayView, stream: object) -> None:
        if out.is_empty:
            return
        handle = self.ordered((*operands, out), stream)
        if self._k == 0:
            with in_order(out.framework, out.device, handle):
                fill(out, 0)
            return
        reached = self._reached(operands, handle)
        with reached_output(self._out, out, handle) as target:
            views = (*reached, self._out.rows.over(target))
            launch = self.prepared(lambda: self._prepare(*views))
            launch.launch_at(ScaledMatrices(*(view.address for view in views)), handle)

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """See `Operation`. Addresses: the operands, out."""
        if self._launch is None or not is_apart(-1, addresses, self._spans):
            return None
        return self._launch, ScaledMatrices(*addresses)

    def _prepare(
        self, a: ArrayView, b: ArrayView, scale_a: ArrayView, scale_b: ArrayView, c: ArrayView
    ) -> Launch:
        m, n = c.shape
        occupancy = Occupancy.of(self.backend)
        columns = self._column_scales
        config: ScaledTileConfig | PromotedConfig = (
            overridden(promoted_config(m, column_scales=columns))
            if runs_on_tensor_memory(self.backend, a.element.name)
            else self.fitted(choose_scaled_config(m, n, occupancy, column_scales=columns))
        )
        transposed = self._operands[3].transposed
        operands = (a, b, scale_a, scale_b)
        tiles = scaled_gemm_tiles(operands, c, config, b_scales_transposed=transposed)
        types = [tile.cuda_type for tile in tiles]
        kernel = scaled_gemm_kernel(types, transposed, config)
        arguments = ScaledArguments(*tiles, m=m, n=n, k=self._k)
        work = PersistentWork(m, self._k, config.clusters(m, n))
        return prepared_persistent(kernel, arguments, config, work, occupancy)


def _either_way(matrix: Layout) -> Operand:
    """Return the matrix, or its transpose, if TMA can read it; else a staging copy."""
    plain, transposed = Operand.of_rows(matrix), Operand.of_rows(matrix.transposed)
    if plain.is_staged and not transposed.is_staged:
        return replace(transposed, transposed=True)
    return plain
