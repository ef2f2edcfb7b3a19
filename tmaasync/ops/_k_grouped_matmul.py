"""ops.k_grouped_matmul: k_grouped_gemm.cu, the weight gradient of a grouped GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import Output, fill, in_order, reached_operand, reached_output
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._extents import check_extents
from tmaasync.ops._gemm.config import Occupancy, PersistentWork, TileConfig
from tmaasync.ops._gemm.cost_model import choose_config
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tensor_memory import runs_on_tensor_memory, tensor_memory_config
from tmaasync.ops._gemm.tiles import (
    GroupedPointers,
    KGroupedArguments,
    k_grouped_kernel,
    k_grouped_tiles,
    prepared_persistent,
)
from tmaasync.ops._grouped_matmul import Offsets, describe_group
from tmaasync.ops._layouts import (
    Layout,
    Operand,
    check_alike,
    check_output,
    check_type,
    is_apart,
    refuse_overlap,
)
from tmaasync.ops._operation import Operation
from tmaasync.ops._report import ReportingLaunch, report_of

_OPERANDS = ("bfloat16", "float16")
_OUTPUTS = ("bfloat16", "float16", "float32")
_CALLS = CallCache()


def k_grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    out: Any = None,
    dtype: object = None,
    stream: object = None,
) -> Any:
    """K-grouped GEMM: ``out[g] = a[:, rows of g] @ b[rows of g]``, accumulated in fp32.

    The 2d-2d form of PyTorch's ``_grouped_mm``. It is the gradient of the matrices of
    `grouped_matmul`: with ``a.T`` for ``a``, and the gradient of its output for ``b``. Groups have
    any number of rows and follow each other, as there. A group without rows has zeros. Rows after
    the last group are not used, and no row adds to another group, whatever it holds.

    TMA reads ``a`` and ``b`` where M and N are contiguous, so pass the transpose of a row-major
    [T, M]. If TMA cannot read one of them (the other side contiguous, or an address or stride that
    is no multiple of 16 bytes), it is read from a staging copy. An output that TMA cannot store is
    written through one.

    M, N and T may be up to 2^31 - 2^18 (2,147,221,504) each.

    Args:
        a: [M, T], bfloat16 or float16, on a GPU, or in host memory for the emulator; M contiguous.
        b: [T, N], of the same type and device; N contiguous.
        offsets: [G], as in `grouped_matmul`: where each group of rows ends. The kernel reads
            offsets on the device of ``a``, so that the host does not wait for them.
        out: The output, [G, M, N]. By default a new array of the framework of ``a``; where N
            elements are no multiple of 16 bytes its rows are padded, so it is not contiguous.
        dtype: Of the output: bfloat16, float16 or float32; by default ``out``'s type, else
            ``a``'s.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes or offsets do not fit, or ``out`` is not as described. Or an earlier
            call had invalid offsets on the device.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.
    """
    is_new = out is None
    option = (dtype, is_new)
    arrays = (a, b, offsets) if is_new else (a, b, offsets, out)
    done = _CALLS.run(arrays, option, stream)
    if done is not None:
        return done[3]
    left, right, ends, output = checked(a, b, offsets, out, dtype)
    if output.view.is_empty:
        return output.array
    operation = _CALLS.operation(KGroupedMatmul, Layout.of(left), Layout.of(right), output.layout)
    operation.run(left, right, output, ends, stream)
    if ends.is_in_place:
        operands = (left, right, _arrays.view(offsets))
        operation.remember_in(_CALLS, arrays, option, operands, output)
    return output.array


def checked(
    a: Any, b: Any, offsets: Any, out: Any, dtype: object
) -> tuple[ArrayView, ArrayView, Offsets, Output]:
    """Check the arguments; return views of a and b, the offsets, and the output."""
    left, right = _arrays.view(a, argument="a"), _arrays.view(b, argument="b")
    _check_groups(left, right)
    ends = Offsets.of(offsets, None, right.shape[0], right.device)
    shape = (ends.groups, left.shape[0], right.shape[1])
    output = Output.of(out, left, shape, _OUTPUTS, left.element if dtype is None else dtype)
    check_output(output.view, shape, left.device, _OUTPUTS, dtype)
    refuse_overlap("out", output.view, {"a": left, "b": right})
    return left, right, ends, output


def _check_groups(a: ArrayView, b: ArrayView) -> None:
    for name, view, axes in (("a", a, "[M, T]"), ("b", b, "[T, N]")):
        if view.ndim != 2:
            raise ArgumentError.broken(
                name, view.shape, f"it must be {axes}", "Reshape it", verb="has shape"
            )
        check_type(name, view.element, _OPERANDS)
    check_alike(a, b)
    if a.shape[1] != b.shape[0]:
        raise ArgumentError.broken(
            "b",
            b.shape,
            f"a has shape {a.shape}, so b must have {a.shape[1]} rows",
            "For rows [T, M] pass a.T",
            verb="has shape",
        )
    check_extents(M=a.shape[0], N=b.shape[1], T=a.shape[1])


# --- the operation ----------------------------------------------------------------------------

_OUT = 2  # among a, b, out


class KGroupedMatmul(Operation):
    """A K-grouped GEMM; the offsets' values are not part of it."""

    def __init__(self, a: Layout, b: Layout, out: Layout) -> None:
        super().__init__(out.device)
        self._a, self._b = Operand.of_rows(a.transposed), Operand.of_rows(b)
        self._out = Operand.of_output(out)
        operands = (self._a, self._b, self._out)
        self._needs_staging = any(operand.is_staged for operand in operands)
        self._spans = tuple(layout.span_bytes for layout in (a, b, out))
        self._below_bytes = (0, 0)

    def run(
        self, a: ArrayView, b: ArrayView, out: Output, offsets: Offsets, stream: object
    ) -> None:
        views = [a, b, out.view]
        if offsets.is_on_device:
            views.append(_arrays.view(offsets.values))
        handle = self.ordered(views, stream)
        if b.shape[0] == 0:
            with in_order(out.view.framework, out.view.device, handle):
                fill(out.view, 0)
            return
        a = reached_operand(self._a, a, handle, transposes=True)
        b = reached_operand(self._b, b, handle)
        ends = _arrays.view(offsets.on(self.backend, out.view.framework, handle))
        with reached_output(self._out, out.view, handle) as target:
            launch = self.prepared(lambda: self._prepare(a, b, target, ends))
            pointers = self._pointers(a.address, b.address, target.address, ends.address)
            launch.launch_at(pointers, handle)

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """See `Operation`; addresses: a, b, offsets, out."""
        a, b, offsets, out = addresses
        if self._launch is None or not is_apart(_OUT, (a, b, out), self._spans):
            return None
        return self._launch, self._pointers(a, b, out, offsets)

    def _pointers(self, a: int, b: int, out: int, offsets: int) -> GroupedPointers:
        below_a, below_b = self._below_bytes
        return GroupedPointers(a - below_a, b - below_b, out, offsets)

    def _prepare(self, a: ArrayView, b: ArrayView, out: ArrayView, offsets: ArrayView) -> Launch:
        groups, m, n = out.shape
        rows = b.shape[0]
        occupancy = Occupancy.of(self.backend)
        problem = Problem(
            *(m, n, -(-rows // groups), groups),
            operands=b.element.name,
            output=out.element.name,
            layout="tn",
            m_major=False,
            on_lines=True,  # else the cost model takes pairs of CTAs alone, which share loads
        )
        if runs_on_tensor_memory(self.backend, problem.operands):
            config = tensor_memory_config(problem, occupancy)
        else:
            config = self.fitted(choose_config(problem, occupancy, fits=_fits))
        views = (self._a.rows.over(a), self._b.rows.over(b), self._out.rows.over(out))
        tiles = k_grouped_tiles(*views, config)
        kernel = k_grouped_kernel([tile.cuda_type for tile in tiles], config)
        self._below_bytes = (
            a.address - tiles.a.spec.address,
            b.address - tiles.b.spec.address,
        )
        report = report_of(self.backend, describe_group)
        arguments = KGroupedArguments(
            *tiles, offsets, groups=groups, rows=rows, m=m, n=n, broken_group=report.argument
        )
        clusters = groups * config.clusters(m, n)
        work = PersistentWork(m, problem.k, clusters)
        launch = prepared_persistent(kernel, arguments, config, work, occupancy)
        return ReportingLaunch(launch, report)


def _fits(config: TileConfig) -> bool:
    """Whether k_grouped_gemm.cu has the tile config."""
    return config.cluster_size == 1 and not config.ping_pong
