"""ops.scaled_grouped_matmul with float32 scales: promoted_grouped_gemm_tensor_memory.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.kernel import Launch, backend_of
from tmaasync.ops._allocation import Output, reached_output
from tmaasync.ops._block_scaled_matmul import Call
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._gemm.config import Occupancy, PersistentWork
from tmaasync.ops._gemm.tensor_memory import promoted_config
from tmaasync.ops._gemm.tiles import (
    ScaledGroupedArguments,
    prepared_persistent,
    scaled_gemm_kernel,
    scaled_gemm_tiles,
)
from tmaasync.ops._grouped_matmul import Offsets, describe_group, fill_groups, max_clusters
from tmaasync.ops._layouts import Layout, is_apart
from tmaasync.ops._operation import overridden
from tmaasync.ops._report import ReportingLaunch, report_of
from tmaasync.ops._scaled_matmul import FloatScaledOperation, Operands, output_of

_OFFSET_BYTES = 4


def multiply_promoted(
    cache: CallCache, call: Call, offsets: Any, option: object, stream: object
) -> Any:
    """Run a call that is not in the cache, and cache it."""
    operands, ends, output = checked(call, offsets)
    if output.view.is_empty or operands.b.shape[0] == 0:
        return output.array
    if operands.a.shape[1] == 0:
        return fill_groups(operands.a, operands.b, offsets, output, stream)
    layouts = (*map(Layout.of, operands), output.layout)
    operation = cache.operation(
        PromotedGroupedMatmul, *layouts, column_scales=operands.column_scales
    )
    operation.run(operands, output.view, ends, stream)
    if ends.is_in_place:
        given = (call.a, call.b, call.scale_a, call.scale_b, offsets)
        arrays = given if call.out is None else (*given, call.out)
        operation.remember_in(cache, arrays, option, (*operands, _arrays.view(offsets)), output)
    return output.array


def checked(call: Call, offsets: Any) -> tuple[Operands, Offsets, Output]:
    """Check the arguments of a call, and make its output if it has none."""
    given = (call.a, call.b, call.scale_a, call.scale_b)
    operands = Operands.of(*given, call.dtypes[:2], is_grouped=True)
    groups, rows = operands.b.shape[0], operands.a.shape[0]
    ends = Offsets.of(offsets, groups, rows, operands.a.device)
    return operands, ends, output_of(operands, call.out, call.dtype)


class PromotedGroupedMatmul(FloatScaledOperation):
    """A grouped FP8 GEMM for given layouts and any values of the offsets."""

    def __init__(self, *layouts: Layout, column_scales: bool) -> None:
        backend_of(layouts[0].device).require_tensor_memory(
            "ops.scaled_grouped_matmul of float32 scales",
            ", or call ops.scaled_matmul for each group",
        )
        super().__init__(*layouts, column_scales=column_scales)
        *spans, out = self._spans
        self._spans = (*spans, _OFFSET_BYTES * layouts[1].shape[0], out)
        self._below_bytes = 0

    def run(self, operands: Operands, out: ArrayView, offsets: Offsets, stream: object) -> None:
        views = [*operands, out]
        if offsets.is_on_device:
            views.append(_arrays.view(offsets.values))
        handle = self.ordered(views, stream)
        ends = _arrays.view(offsets.on(self.backend, out.framework, handle))
        reached = self._reached(operands, handle)
        # Rows outside all groups keep their values.
        with reached_output(self._out, out, handle, keeps_rest=True) as target:
            rows = self._out.rows.over(target)
            launch = self.prepared(lambda: self._prepare(reached, rows, ends))
            addresses = [view.address for view in (*reached, ends, target)]
            launch.launch_at(self._parameters(addresses), handle)

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """See `Operation`. Addresses: the operands, offsets, out."""
        if self._launch is None or not is_apart(-1, addresses, self._spans):
            return None
        return self._launch, self._parameters(addresses)

    def _parameters(self, addresses: Sequence[int]) -> tuple[int, ...]:
        """Return the kernel's first parameters."""
        *operands, ends, out = addresses
        return (*operands, out - self._below_bytes, ends)

    def _prepare(self, operands: Sequence[ArrayView], c: ArrayView, ends: ArrayView) -> Launch:
        a, b, *_ = operands
        (rows, k), (groups, n, _) = a.shape, b.shape
        average, columns = -(-rows // groups), self._column_scales
        config = overridden(promoted_config(average, column_scales=columns))
        transposed = self._operands[3].transposed
        tiles = scaled_gemm_tiles(operands, c, config, b_scales_transposed=transposed)
        types = [tile.cuda_type for tile in tiles]
        kernel = scaled_gemm_kernel(types, transposed, config, config.grouped_source)
        self._below_bytes = c.address - tiles.c.spec.address
        report = report_of(self.backend, describe_group)
        arguments = ScaledGroupedArguments(
            *tiles,
            offsets=ends,
            groups=groups,
            rows=rows,
            n=n,
            k=k,
            broken_group=report.argument,
        )
        work = PersistentWork(rows, k, max_clusters(rows, groups, n, config))
        launch = prepared_persistent(kernel, arguments, config, work, Occupancy.of(self.backend))
        return ReportingLaunch(launch, report)
