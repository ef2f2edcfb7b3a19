"""ops.scaled_grouped_matmul, with scale factors.

The kernels are scaled_grouped_gemm_tensor_memory.cu and, without tensor memory,
scaled_grouped_gemm_warps.cu.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import Output, empty, in_order, reached_operand, reached_output
from tmaasync.ops._block_scaled_matmul import BlockScaledOperation, Call, Kind
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._gemm.block_scaled import (
    BlockScaledGroupedArguments,
    block_scaled_grouped_tiles,
    block_scaled_kernel,
)
from tmaasync.ops._gemm.block_scales import (
    ATOM_BYTES,
    ATOM_FACTORS,
    ATOM_ROWS,
    Blocks,
    as_atoms,
    check_layout,
    reached_atoms,
)
from tmaasync.ops._gemm.config import Occupancy, PersistentWork
from tmaasync.ops._gemm.epilogue import epilogue_numbers, float_bits
from tmaasync.ops._gemm.tiles import prepared_persistent
from tmaasync.ops._grouped_matmul import Offsets, describe_group, fill_groups, max_clusters
from tmaasync.ops._layouts import (
    Layout,
    check_output,
    check_type,
    is_apart,
    refuse_overlap,
)
from tmaasync.ops._operation import shipped_kernel
from tmaasync.ops._promoted_grouped_matmul import multiply_promoted
from tmaasync.ops._report import ReportingLaunch, report_of
from tmaasync.tile import Pointer

_FLOAT_BYTES = 4
_OUTPUTS = ("bfloat16", "float16", "float32")
_CALLS = CallCache()


def scaled_grouped_matmul(  # noqa: PLR0913 - scaled_matmul's, and the offsets
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    offsets: Any,
    *,
    out: Any = None,
    dtype: object = None,
    a_dtype: object = None,
    b_dtype: object = None,
    scale_dtype: object = None,
    scale_layout: str = "rows",
    stream: object = None,
) -> Any:
    """Grouped GEMM (MoE) of scaled fp8 or fp4: ``out[rows of g] = a[rows of g] @ b[g]``.

    For B200 and B300, and with scale factors RTX 50 (compiled and emulated, not run on a chip). It
    takes the formats of `scaled_matmul`, float32 scales included, and the groups of
    `grouped_matmul`: the 2d-3d form of torch's ``scaled_grouped_mm``.

    T, N, K and G may be up to 2^31 - 2^18 (2,147,221,504) each.

    Args:
        a: [T, K], float8; or float4, [T, K / 2], two in a byte. On a GPU, or in host memory for the
            emulator.
        b: [G, K, N], or [G, K / 2, N] of float4, on the same device. For matrices stored as
            [G, N, K] pass ``b.swapaxes(1, 2)``.
        scale_a: [T, ceil(K / 128)], float32. Scale factors are [T, K / 32], or [T, K / 16] of
            NVFP4; or a pair of them and a number, or an array of a float32 for each group.
        scale_b: [G, ceil(K / 128), ceil(N / 128)] or [G, ceil(K / 128), N], float32. Scale factors
            are [G, K / 32, N], or [G, K / 16, N] of NVFP4; or a pair, as of ``scale_a``.
        offsets: [G], where each group of rows ends, as in `grouped_matmul`.
        out: The output, [T, N]. By default a new array of the framework of ``a``; if a row of N
            elements is not a multiple of 16 bytes, rows are padded and the array is not contiguous.
        dtype: Output type: bfloat16, float16 or float32; by default the type of ``out``, else
            bfloat16.
        a_dtype: Read ``a`` as this type of the same width.
        b_dtype: The same for ``b``.
        scale_dtype: The same for scale factors.
        scale_layout: ``"rows"``, of which the operation makes swizzled atoms in each call; or
            ``"swizzled"``: contiguous atoms of 128 rows by 4, of any shape. Each group of a begins
            a new row of atoms, as if it were padded to a multiple of 128 rows, and so does each
            matrix of b. Padding within atoms must not be NaN; rows of atoms after the last group
            are not read.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes, offsets or devices do not match, or ``out`` is invalid. Or an earlier
            call had invalid offsets on the device.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The device does not multiply these types; or, for host arrays, there is no C++
            compiler.
    """
    layout, dtypes = check_layout(scale_layout), (a_dtype, b_dtype, scale_dtype)
    call = Call(a, b, scale_a, scale_b, out, dtype, dtypes, layout)
    (factors_a, whole_a), (factors_b, whole_b) = call.pairs
    (alpha, _), _, whole_a, whole_b = epilogue_numbers(1.0, 0.0, None, whole_a, whole_b)
    pairs = (("scale_a", whole_a), ("scale_b", whole_b))
    whole = {name: scales for name, scales in pairs if scales is not None}
    numbers = (alpha,) if whole or alpha != 1 else ()
    arrays = (a, b, factors_a, factors_b, *whole.values(), offsets)
    arrays = arrays if out is None else (*arrays, out)
    option = (dtype, dtypes, layout, *whole, bool(numbers), out is None)
    done = _CALLS.run(arrays, option, stream, numbers)
    if done is not None:
        return done[-1]
    if not call.is_block_scaled:
        return multiply_promoted(_CALLS, call, offsets, option, stream)
    blocks = Blocks.of((a, b, factors_a, factors_b), dtypes, layout, is_grouped=True)
    groups = blocks.b.shape[0]
    ends = Offsets.of(offsets, groups, blocks.a.shape[0], blocks.a.device)
    _check_atoms(blocks, ends)
    views = _scales_of_groups(whole, groups)
    output = _output(blocks, views, call)
    if output.view.is_empty or groups == 0 or (blocks.scale_a.is_empty and blocks.factors):
        return output.array
    if blocks.factors == 0:
        return fill_groups(blocks.a, blocks.b, offsets, output, stream)
    kind = Kind(blocks.types, blocks.format, blocks.swizzled, bool(numbers), tuple(whole))
    operation = _CALLS.operation(
        ScaledGroupedMatmul, *map(Layout.of, blocks.views), output.layout, kind=kind
    )
    operation.run(blocks, views, alpha, ends, output.view, stream)
    if ends.is_in_place:
        operands = (*blocks.views, *views.values(), _arrays.view(offsets))
        operation.remember_in(_CALLS, arrays, option, operands, output)
    return output.array


# --- checks of the arrays ---------------------------------------------------------------------


def _scales_of_groups(given: dict[str, Any], groups: int) -> dict[str, ArrayView]:
    views = {name: _arrays.view(scales, argument=name) for name, scales in given.items()}
    for name, view in views.items():
        check_type(name, view.element, ("float32",), "Convert it")
        if view.shape != (groups,) or not is_contiguous(view):
            raise ArgumentError.broken(
                name,
                view.shape,
                f"the second of the pair has a float32 for each of {groups} groups",
                "Pass a contiguous array of them, or a number for all",
                verb="has shape",
            )
    return views


def _check_atoms(blocks: Blocks, ends: Offsets) -> None:
    if not blocks.swizzled or ends.is_on_device:
        return
    row_bytes = -(-blocks.factors // ATOM_FACTORS) * ATOM_BYTES
    rows = np.diff(ends.values, prepend=0)
    needed = int((-(-rows // ATOM_ROWS)).sum()) * row_bytes
    ArgumentError.raise_for(_missing_atoms(blocks.scale_a, needed))


def _missing_atoms(factors: ArrayView, needed: int) -> Iterator[Violation]:
    if math.prod(factors.shape) < needed:
        rule = f"groups padded to multiples of 128 rows have {needed} bytes of swizzled factors"
        yield Violation("scale_a.shape", factors.shape, rule, "Swizzle each group by itself")


def _output(blocks: Blocks, whole: dict[str, ArrayView], call: Call) -> Output:
    shape = blocks.a.shape[0], blocks.b.shape[2]
    wanted = "bfloat16" if call.dtype is None else call.dtype
    output = Output.of(call.out, blocks.a, shape, _OUTPUTS, wanted)
    check_output(output.view, shape, blocks.a.device, _OUTPUTS, call.dtype)
    _arrays.common_device({"out": output.view, **whole})
    named = {f"the groups' {name}": view for name, view in whole.items()}
    refuse_overlap("out", output.view, {**blocks.named, **named})
    return output


# --- the operation ----------------------------------------------------------------------------


class ScaledGroupedMatmul(BlockScaledOperation):
    """A block-scaled grouped GEMM for given layouts and any values of the offsets."""

    name: ClassVar = "ops.scaled_grouped_matmul"

    def __init__(
        self, a: Layout, b: Layout, scale_a: Layout, scale_b: Layout, out: Layout, *, kind: Kind
    ) -> None:
        super().__init__(a, b, scale_a, scale_b, out, kind=kind)
        self._below_bytes = 0
        self._swizzle: Launch | None = None

    def _spans_of_scales(self, b: Layout) -> Sequence[int]:
        """Return the bytes of the scales of groups, and of the offsets."""
        return [_FLOAT_BYTES * b.shape[0]] * (len(self._kind.whole) + 1)

    def run(
        self,
        blocks: Blocks,
        whole: dict[str, ArrayView],
        alpha: float,
        offsets: Offsets,
        out: ArrayView,
        stream: object,
    ) -> None:
        views = [*blocks.views, *whole.values(), out]
        if offsets.is_on_device:
            views.append(_arrays.view(offsets.values))
        handle = self.ordered(views, stream)
        ends = _arrays.view(offsets.on(self.backend, out.framework, handle))
        a = self._a.rows.over(reached_operand(self._a, blocks.a, handle))
        b = self._b.rows.over(reached_operand(self._b, blocks.b, handle, transposes=True))
        of_a = self._atoms_of_a(blocks, ends, handle)
        of_b = reached_atoms(blocks, blocks.scale_b, handle, transposes=True)
        # Rows outside all groups keep their values.
        with reached_output(self._out, out, handle, keeps_rest=True) as target:
            operands = (a, b, of_a, of_b, self._out.rows.over(target))
            launch = self.prepared(lambda: self._prepare(operands, ends))
            addresses = [view.address for view in (*operands[:4], *whole.values(), ends, target)]
            launch.launch_at(self._parameters(addresses, alpha), handle)

    def bind(self, addresses: Sequence[int], alpha: float = 1.0) -> Binding | None:
        """See `Operation`. Addresses: the operands, the scales of groups, offsets, out."""
        if self._launch is None or not is_apart(-1, addresses, self._spans):
            return None
        return self._launch, self._parameters(addresses, alpha)

    def _parameters(self, addresses: Sequence[int], alpha: float) -> tuple[int, ...]:
        """Return the kernel's first parameters."""
        *operands, ends, out = addresses
        at = dict(zip(self._kind.whole, operands[4:], strict=True))
        scales = at.get("scale_a", 0), at.get("scale_b", 0), float_bits(alpha)
        return (*operands[:4], out - self._below_bytes, *scales, ends)

    def _atoms_of_a(self, blocks: Blocks, ends: ArrayView, stream: int) -> ArrayView:
        """Return the factors of a in atoms, each group from a new row of atoms on."""
        if blocks.swizzled:
            return reached_atoms(blocks, blocks.scale_a, stream, transposes=False)
        factors = blocks.scale_a
        (rows, width), groups = factors.shape, ends.shape[0]
        atom_rows, wide = rows // ATOM_ROWS + groups, -(-width // ATOM_FACTORS)
        with in_order(factors.framework, factors.device, stream):
            made = empty(factors, (atom_rows, wide, ATOM_BYTES), factors.element)
        atoms = as_atoms(_arrays.view(made), width)
        if self._swizzle is None:
            steps = factors.strides_bytes
            arguments = (Pointer(factors), atoms, ends, groups, rows, width, *steps)
            kernel = shipped_kernel("swizzle_group_factors.cu", {}, {})
            self._swizzle = kernel.prepare(atom_rows * wide, ATOM_ROWS, arguments)
            self._swizzle.release()
        self._swizzle.launch_at((factors.address, atoms.address, ends.address), stream)
        return atoms

    def _prepare(self, operands: Sequence[ArrayView], ends: ArrayView) -> Launch:
        a, b, *_, c = operands
        (rows, k_bytes), (groups, n, _) = a.shape, b.shape
        form, occupancy = self._kind.format, Occupancy.of(self.backend)
        config = self._config(-(-rows // groups), n, occupancy, groups)
        tiles = block_scaled_grouped_tiles(operands[:4], c, config)
        kernel = block_scaled_kernel(
            [tile.cuda_type for tile in tiles],
            self._kind.types,
            form,
            config,
            is_scaled=self._kind.is_scaled,
            is_grouped=True,
        )
        self._below_bytes = c.address - tiles.c.spec.address
        report = report_of(self.backend, describe_group)
        arguments = BlockScaledGroupedArguments(
            *tiles,
            scale_a=0,
            scale_b=0,
            alpha=1.0,
            offsets=ends,
            groups=groups,
            rows=rows,
            n=n,
            k=k_bytes,
            broken_group=report.argument,
        )
        work = PersistentWork(rows, k_bytes, max_clusters(rows, groups, n, config))
        launch = prepared_persistent(kernel, arguments, config, work, occupancy)
        return ReportingLaunch(launch, report)
