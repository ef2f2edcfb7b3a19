"""ops.grouped_matmul: grouped_gemm.cu, a grouped GEMM for mixture-of-experts layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._ragged.batch import is_listed, on_host
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import Backend, Launch, backend_of
from tmaasync.ops._allocation import (
    Output,
    empty,
    int32_on_device,
    reached_operand,
    reached_output,
    zeros,
)
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._extents import check_extents
from tmaasync.ops._gemm.config import LINE_BYTES, Occupancy, PersistentWork, TileConfig
from tmaasync.ops._gemm.cost_model import choose_grouped_config
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tensor_memory import runs_on_tensor_memory, tensor_memory_config
from tmaasync.ops._gemm.tiles import (
    GroupedArguments,
    GroupedPointers,
    grouped_kernel,
    grouped_tiles,
    prepared_persistent,
)
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
from tmaasync.ops._sequence_lengths import is_int32_in_place

_OPERANDS = ("bfloat16", "float16")
_OUTPUTS = ("bfloat16", "float16", "float32")
_CALLS = CallCache()


def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    out: Any = None,
    dtype: object = None,
    stream: object = None,
) -> Any:
    """Grouped GEMM (MoE): ``out[rows of g] = a[rows of g] @ b[g]``, accumulated in fp32.

    Groups may have any number of rows, including none, and are packed without padding. Group g has
    the rows from ``offsets[g - 1]``, or 0, up to ``offsets[g]``. Rows after the last group are not
    written: in a new output they are uninitialised.

    If TMA cannot read ``a`` (K is not contiguous, or the address or a stride is not a multiple of
    16 bytes), it is read from a staging copy. The same applies to ``b`` if neither side of its
    matrices is contiguous. An output that TMA cannot store (the same rule, and row ends must be
    multiples of 16 bytes) is written through a staging copy.

    T, N, K and G may be up to 2^31 - 2^18 (2,147,221,504) each.

    Args:
        a: [T, K], bfloat16 or float16, on a GPU, or in host memory for the emulator.
        b: [G, K, N], of the same type and device, with K or N contiguous. For matrices stored as
            [G, N, K] pass ``b.swapaxes(1, 2)``.
        offsets: [G], non-decreasing integers, the last at most T. In host memory they are checked.
            On the device of ``a`` they are used unchecked, without a wait: a group that ends before
            it starts is empty, groups are cut at row T, and a later call reports it; a debug build
            traps.
        out: The output, [T, N]. By default a new array of the framework of ``a``; if a row of N
            elements is not a multiple of 16 bytes, rows are padded and the array is not contiguous.
        dtype: Output type: bfloat16, float16 or float32; by default the type of ``out``, else
            of ``a``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes or offsets do not match, or ``out`` is invalid. Or an earlier call
            had invalid offsets on the device.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.
    """
    is_new = out is None
    option = (dtype, is_new)
    arrays = (a, b, offsets) if is_new else (a, b, offsets, out)
    done = _CALLS.run(arrays, option, stream)
    if done is not None:
        return done[3]
    rows, matrices, ends, output = checked(a, b, offsets, out, dtype)
    if output.view.is_empty or matrices.shape[0] == 0:
        return output.array
    if rows.shape[1] == 0:
        rows, matrices = _with_zeros_along_k(rows, matrices, stream)
        is_cached = False
    else:
        is_cached = ends.is_in_place
    operation = _CALLS.operation(GroupedMatmul, Layout.of(rows), Layout.of(matrices), output.layout)
    operation.run(rows, matrices, output.view, ends, stream)
    if is_cached:
        operands = (rows, matrices, _arrays.view(offsets))
        operation.remember_in(_CALLS, arrays, option, operands, output)
    return output.array


_ZEROS = 8  # the elements of a 16-byte row, TMA's least


def _with_zeros_along_k(a: ArrayView, b: ArrayView, stream: object) -> tuple[ArrayView, ArrayView]:
    """Return operands with some zeros along K, whose matmuls are zero, as with K = 0."""
    rows = zeros(a, (a.shape[0], _ZEROS), stream)
    matrices = zeros(b, (b.shape[0], _ZEROS, b.shape[2]), stream)
    return (
        _arrays.view(rows)._replace(element=a.element),
        _arrays.view(matrices)._replace(element=b.element),
    )


def fill_groups(a: ArrayView, b: ArrayView, offsets: Any, output: Output, stream: object) -> Any:
    """Fill the rows of the groups of a matmul of any types with K = 0, and return the output."""
    shapes = ((a.shape[0], 0), (b.shape[0], 0, b.shape[2]))
    rows, matrices = (empty(a, shape, element("bfloat16")) for shape in shapes)
    return grouped_matmul(rows, matrices, offsets, out=output.array, stream=stream)


# --- checks of the arrays ---------------------------------------------------------------------


def checked(
    a: Any, b: Any, offsets: Any, out: Any, dtype: object
) -> tuple[ArrayView, ArrayView, Offsets, Output]:
    """Check the arguments; return views of a and b, the offsets, and the output."""
    rows, matrices = _arrays.view(a, argument="a"), _arrays.view(b, argument="b")
    _check_groups(rows, matrices)
    ends = Offsets.of(offsets, matrices.shape[0], rows.shape[0], rows.device)
    shape = (rows.shape[0], matrices.shape[2])
    output = Output.of(out, rows, shape, _OUTPUTS, rows.element if dtype is None else dtype)
    check_output(output.view, shape, rows.device, _OUTPUTS, dtype)
    refuse_overlap("out", output.view, {"a": rows, "b": matrices})
    return rows, matrices, ends, output


def _check_groups(a: ArrayView, b: ArrayView) -> None:
    for name, view, axes in (("a", a, "[T, K]"), ("b", b, "[G, K, N]")):
        if view.ndim != axes.count(",") + 1:
            raise ArgumentError.broken(
                name,
                view.shape,
                f"it must be {axes}: the groups' rows one after the other in a, one matrix "
                "for each in b",
                "Reshape it",
                verb="has shape",
            )
        check_type(name, view.element, _OPERANDS)
    check_alike(a, b)
    if a.shape[1] != b.shape[1]:
        raise ArgumentError.broken(
            "b",
            b.shape,
            f"a has shape {a.shape}, so b must be [G, {a.shape[1]}, N]",
            "For matrices stored as [G, N, K] pass b.swapaxes(1, 2)",
            verb="has shape",
        )
    check_extents(T=a.shape[0], N=b.shape[2], K=a.shape[1], G=b.shape[0])


class Offsets(NamedTuple):
    """Ends of the groups (cumulative rows): checked in host memory, unchecked on the device."""

    values: Any
    is_on_device: bool

    @classmethod
    def of(cls, values: Any, groups: int | None, total_rows: int, device: int | None) -> Offsets:
        """Check the caller's offsets against the number of groups, if known, and of rows."""
        view = None if is_listed(values) else _arrays.view(values, argument="offsets")
        if view is not None and (view.is_stand_in or not view.is_on_host):
            _check_layout(view.shape, view.element, groups)
            _check_device(view, device)
            return cls(values, True)
        ends = on_host(values, "offsets")
        _check_layout(ends.shape, ends.dtype, groups)
        _check_order(ends, total_rows)
        return cls(np.ascontiguousarray(ends, np.int32), False)

    @property
    def groups(self) -> int:
        values = self.values
        return int(values.shape[0] if isinstance(values, ArrayView) else len(values))

    @property
    def is_in_place(self) -> bool:
        """Whether the kernel reads the caller's array itself."""
        return self.is_on_device and is_int32_in_place(self.values)

    def on(self, backend: Backend, framework: str, stream: int) -> Any:
        """Return the offsets as 32-bit integers on the device, in stream order.

        A new array belongs to ``framework``, the output's.
        """
        if backend.reads_host_memory or self.is_in_place:
            return self.values
        return int32_on_device(self.values, framework, backend.device, stream)


def _check_layout(shape: tuple[int, ...], dtype: Any, groups: int | None) -> None:
    kind = np.dtype(getattr(dtype, "dtype", dtype)).kind
    if groups is None:
        if len(shape) == 1 and (kind in "iu" or shape == (0,)):
            return
        raise ArgumentError.broken(
            "offsets",
            f"{shape} of {dtype}",
            "it must have one dimension, of integers: where each group of rows ends",
            "Pass numpy.cumsum of the groups' rows, as int32",
            verb="has shape",
        )
    if shape == (groups + 1,):
        remedy = "Leave out the 0 at the start"
    elif shape != (groups,):
        remedy = "Pass numpy.cumsum of the groups' rows"
    elif kind not in "iu" and groups > 0:
        remedy = "Convert it to int32"
    else:
        return
    raise ArgumentError.broken(
        "offsets",
        f"{shape} of {dtype}",
        f"b has {groups} matrices, so it must have shape ({groups},), of integers: "
        "where each group of rows ends",
        remedy,
        verb="has shape",
    )


def _check_device(view: ArrayView, device: int | None) -> None:
    if view.device != device:
        where = backend_of(device).location
        raise ArgumentError.broken(
            "offsets",
            f"on cuda:{view.device}",
            f"a lies on {where}",
            "Move offsets there, or to host memory",
            verb="lies",
        )


def _check_order(ends: np.ndarray[Any, Any], total_rows: int) -> None:
    found = []
    starts = np.concatenate([[0], ends.astype(np.int64)])
    (falling,) = np.nonzero(np.diff(starts) < 0)
    if falling.size:
        group = int(falling[0])
        rule = f"group {group} starts at row {starts[group]}, and no group ends before it starts"
        remedy = "Pass numpy.cumsum of the groups' rows"
        found.append(Violation(f"offsets[{group}]", ends[group], rule, remedy))
    if starts[-1] > total_rows:
        rule = f"a has {total_rows} rows"
        found.append(Violation("offsets[-1]", starts[-1], rule, "Pass where groups of a end"))
    ArgumentError.raise_for(found)


def describe_group(call: str, group: int) -> str:
    """Return the message about a group that the kernel cut in ``call``."""
    return (
        f"offsets[{group}] of {call} is wrong: it is below the offset before it, or above the rows "
        "of a, so the group was cut. Pass numpy.cumsum of the groups' rows."
    )


# --- the operation ----------------------------------------------------------------------------

_OUT = 2  # index among a, b, out


class GroupedMatmul(Operation):
    """A grouped GEMM for given layouts and any values of the offsets."""

    def __init__(self, a: Layout, b: Layout, out: Layout) -> None:
        super().__init__(out.device)
        # Groups start at any row, and TMA coordinates at multiples of 16 bytes: K is contiguous.
        self._a = Operand.of_rows(a)
        self._b = Operand.of(b)
        self._out = Operand.of_output(out)
        operands = (self._a, self._b, self._out)
        self._needs_staging = any(operand.is_staged for operand in operands)
        self._spans = tuple(layout.span_bytes for layout in (a, b, out))
        self._swap_ab = False
        self._below_bytes = 0

    def run(
        self, a: ArrayView, b: ArrayView, out: ArrayView, offsets: Offsets, stream: object
    ) -> None:
        views = [a, b, out]
        if offsets.is_on_device:
            views.append(_arrays.view(offsets.values))
        handle = self.ordered(views, stream)
        a, b = reached_operand(self._a, a, handle), reached_operand(self._b, b, handle)
        ends = _arrays.view(offsets.on(self.backend, out.framework, handle))
        # Rows outside all groups keep their values.
        with reached_output(self._out, out, handle, keeps_rest=True) as target:
            launch = self.prepared(lambda: self._prepare(a, b, target, ends))
            pointers = self._pointers(a.address, b.address, target.address, ends.address)
            launch.launch_at(pointers, handle)

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """See `Operation`. Addresses: a, b, offsets, out."""
        a, b, offsets, out = addresses
        if self._launch is None or not is_apart(_OUT, (a, b, out), self._spans):
            return None
        return self._launch, self._pointers(a, b, out, offsets)

    def _pointers(self, a: int, b: int, out: int, offsets: int) -> GroupedPointers:
        if self._swap_ab:
            a, b = b, a
        return GroupedPointers(a, b, out - self._below_bytes, offsets)

    def _config_for(self, problem: Problem, occupancy: Occupancy) -> TileConfig:
        if runs_on_tensor_memory(self.backend, problem.operands):
            average = problem._replace(m=-(-problem.m // problem.batches))
            return tensor_memory_config(average, occupancy, is_uneven=True)
        return self.fitted(choose_grouped_config(problem, occupancy))

    def _prepare(self, a: ArrayView, b: ArrayView, out: ArrayView, offsets: ArrayView) -> Launch:
        (rows, k), (groups, *_), n = a.shape, b.shape, out.shape[1]
        occupancy = Occupancy.of(self.backend)
        pitches = (self._a.rows.strides_bytes[0], self._b.rows.strides_bytes[1])
        b_transposed = self._b.transposed
        problem = Problem(
            *(rows, n, k, groups),
            operands=a.element.name,
            output=out.element.name,
            layout="nt" if b_transposed else "nn",
            m_major=False,
            on_lines=all(pitch % LINE_BYTES == 0 for pitch in pitches),
        )
        config = self._config_for(problem, occupancy)
        views = (self._a.rows.over(a), self._b.rows.over(b), self._out.rows.over(out))
        tiles = grouped_tiles(*views, config, b_transposed)
        kernel = grouped_kernel([tile.cuda_type for tile in tiles], b_transposed, config)
        self._swap_ab = config.m_major
        self._below_bytes = out.address - tiles.out.spec.address
        left, right = tiles[1::-1] if self._swap_ab else tiles[:2]
        report = report_of(self.backend, describe_group)
        arguments = GroupedArguments(
            left,
            right,
            tiles.out,
            offsets,
            groups=groups,
            rows=rows,
            n=n,
            k=k,
            broken_group=report.argument,
        )
        work = PersistentWork(rows, k, max_clusters(rows, groups, n, config))
        launch = prepared_persistent(kernel, arguments, config, work, occupancy)
        return ReportingLaunch(launch, report)


def max_clusters(rows: int, groups: int, n: int, config: TileConfig) -> int:
    """Return the most clusters for any groups: each has one row more than whole tiles."""
    if config.m_major:
        return (rows // config.block_n + groups) * -(-n // config.block_m)
    return (rows // config.block_m + groups) * -(-n // config.block_n)
