"""ops.scaled_matmul_reduce_scatter: scaled_gemm_reduce_scatter.cu."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from tmaasync._arrays import ArrayView
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import Kernel
from tmaasync.ops._gemm.cost_model import ranked_scaled_config
from tmaasync.ops._gemm.reduce_scatter import ScaledScatterConfig
from tmaasync.ops._gemm.tiles import scaled_gemm_kernel, scaled_gemm_tiles
from tmaasync.ops._layouts import Operand
from tmaasync.ops._matmul_reduce import (
    MatmulReduceScatter,
    multiply_and_reduce,
    scattered_outputs,
    unequal_parts,
)
from tmaasync.ops._operation import overridden
from tmaasync.ops._ranked_scaled import (
    Types,
    column_scales_of,
    read_scaled,
    scaled_views,
    unlike_outputs,
)
from tmaasync.ops._ranks import RepeatedCalls
from tmaasync.ops._scaled_matmul import has_column_scales
from tmaasync.tile import TMATensorTile

_REPEATED = RepeatedCalls()
_Views = Sequence[ArrayView]


def scaled_matmul_reduce_scatter(  # noqa: PLR0913 - operands, scales and types
    a: Sequence[Any],
    b: Sequence[Any],
    scale_a: Sequence[Any],
    scale_b: Sequence[Any],
    *,
    out: Any = None,
    dtype: object = None,
    a_dtype: object = None,
    b_dtype: object = None,
    streams: Any = None,
) -> list[Any]:
    """Multiply block-scaled FP8 on every rank, and give each rank its rows of the sum.

    This is `matmul_reduce_scatter` of the operands of `scaled_matmul`: every rank multiplies its
    own part of K, with scales for 128 elements of its part. What a rank sends is rounded to the
    output's type; the sum is in fp32, in a fixed order, and is rounded once. Devices, memory and
    the order of calls are as in `matmul_reduce_scatter`; layouts that need no staging copies are as
    in `scaled_matmul`.

    Args:
        a: One per rank, 1 to 8: [M, K_r], float8_e4m3fn or float8_e5m2, on the rank's device. K_r
            may differ; scales begin with each rank's first element.
        b: One per rank: [K_r, N], of either type.
        scale_a: One per rank: [M, ceil(K_r / 128)], float32.
        scale_b: One per rank: [ceil(K_r / 128), ceil(N / 128)] or [ceil(K_r / 128), N], float32, of
            the same kind on all ranks.
        out: The outputs, one per rank: [M_r, N]; the M_r add up to M, and may be 0. N is
            contiguous; rows start and end at multiples of 16 bytes. They overlap no operand. By
            default new arrays, with rows padded to 16 bytes and M divided evenly: the first M % P
            ranks have one row more.
        dtype: Output type: bfloat16, float16 or float32; by default the type of ``out``, else
            bfloat16.
        a_dtype: Read ``a`` as this type of the same width, for frameworks without that type.
        b_dtype: The same for ``b``.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        The outputs, one per rank.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        ArrayTypeError: ``dtype``, ``a_dtype`` or ``b_dtype`` is no type that the kernel has.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU has not the shared memory of Hopper.
    """
    lists = (a, b, scale_a, scale_b)
    types = Types.of(dtype, a_dtype, b_dtype)
    if out is not None and _REPEATED.run((*lists, out), streams, types):
        return list(out)
    ranks, operands = scaled_views(lists, types, streams, unequal_parts)
    ArgumentError.raise_for(_unlike_scales(operands[1], operands[3]))
    outputs, targets = scattered_outputs(ranks, operands, out, types.new_output)
    ArgumentError.raise_for(unlike_outputs(targets, types))
    done = multiply_and_reduce(
        ScaledMatmulReduceScatter, ranks, operands, targets, is_new=out is None
    )
    if done is not None and out is not None:
        frameworks = [view.framework for view in operands[0]]
        _REPEATED.remember((*lists, out), *done, frameworks, types)
    return outputs


def _unlike_scales(right: _Views, scales: _Views) -> Iterator[Violation]:
    """Yield the scales of another kind than the first rank's: all have one tile config."""
    first = has_column_scales(right[0], scales[0])
    kind = "every column" if first else "128 columns"
    for rank, pair in enumerate(zip(right, scales, strict=True)):
        if has_column_scales(*pair) != first:
            rule = f"scale_b[0] has a scale for {kind}, and so have all"
            yield Violation(
                f"scale_b[{rank}]", f"of shape {pair[1].shape}", rule, "Pass scales of one kind"
            )


class ScaledMatmulReduceScatter(MatmulReduceScatter):
    """The launches for operands, scales and outputs of given layouts."""

    _config: ScaledScatterConfig
    name: ClassVar[str] = "ops.scaled_matmul_reduce_scatter"
    few_rows: ClassVar[int] = 0
    reads: ClassVar[Callable[..., tuple[Operand, ...]]] = staticmethod(read_scaled)

    def _chosen(self, *, shares_device: bool) -> ScaledScatterConfig:
        chosen = ranked_scaled_config(
            self._m,
            self._shards.columns,
            self._occupancy,
            column_scales=column_scales_of(self.operands.of[0].operands),
            shares_device=shares_device,
        )
        return overridden(ScaledScatterConfig.of(chosen))

    def _built(
        self, rank: int, operands: _Views, c: ArrayView
    ) -> tuple[Kernel, Sequence[TMATensorTile]]:
        transposed = self.operands.of[rank].operands[3].transposed
        tiles = scaled_gemm_tiles(operands, c, self._config, b_scales_transposed=transposed)
        types = [tile.cuda_type for tile in tiles]
        return scaled_gemm_kernel(types, transposed, self._config), tiles[:4]
