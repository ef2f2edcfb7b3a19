"""ops.all_gather_scaled_matmul: all_gather_scaled_gemm.cu."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Launch
from tmaasync.ops._all_gather_matmul import (
    AllGatherMatmul,
    gather_and_multiply,
    gathered_outputs,
    unequal_shards,
)
from tmaasync.ops._gemm.all_gather import (
    PUSH_ROWS,
    AllGatherScaledArguments,
    AllGatherScaledConfig,
    all_gather_scaled_kernel,
)
from tmaasync.ops._gemm.config import SCALE_BLOCK
from tmaasync.ops._gemm.cost_model import ranked_scaled_config
from tmaasync.ops._gemm.tiles import ScaledMatrices, scaled_gemm_tiles
from tmaasync.ops._layouts import Layout, Operand, padded_row_bytes
from tmaasync.ops._operation import overridden
from tmaasync.ops._ranked_scaled import (
    Types,
    column_scales_of,
    read_scaled,
    scaled_views,
    unlike_outputs,
)
from tmaasync.ops._ranks import MAX_RANKS, RepeatedCalls, Shards, push_tile
from tmaasync.tile import Pointer, TMATensorTileArray

_REPEATED = RepeatedCalls()
_FLOAT = element("float32")
_ALIGNMENT = 128  # of the scales in a buffer
_BUFFERS = struct.Struct(f"<{2 * MAX_RANKS}Q")
_Views = Sequence[ArrayView]


def all_gather_scaled_matmul(  # noqa: PLR0913 - operands, scales and types
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
    """Multiply block-scaled FP8 rows of all ranks by each rank's own matrix.

    This is `all_gather_matmul` of the operands of `scaled_matmul`: the result of rank r is
    ``scaled_matmul(concatenate(a), b[r], concatenate(scale_a), scale_b[r])``. One kernel per rank
    pushes the rank's rows and their scales into buffers of its peers while the tensor cores
    multiply what has arrived. Devices, memory and the order of calls are as in
    `all_gather_matmul`.

    Args:
        a: One per rank, 1 to 8: [M_r, K], float8_e4m3fn or float8_e5m2, on the rank's device. M_r
            may differ and may be 0. K is contiguous and rows start at multiples of 16 bytes;
            otherwise they are read from a staging copy.
        b: One per rank: [K, N_r], of either type. K is contiguous (``w.T`` of a weight [N, K]);
            otherwise it is read from a staging copy.
        scale_a: One per rank: [M_r, ceil(K / 128)], float32, with any strides.
        scale_b: One per rank: [ceil(K / 128), ceil(N_r / 128)] or [ceil(K / 128), N_r], float32, as
            in `scaled_matmul`.
        out: The outputs, one per rank: [M, N_r], with M the sum of all M_r. N is contiguous; rows
            start and end at multiples of 16 bytes. They overlap no operand. By default new arrays,
            with rows padded to 16 bytes.
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
    ranks, operands = scaled_views(lists, types, streams, unequal_shards)
    outputs, targets = gathered_outputs(ranks, operands, out, types.new_output)
    ArgumentError.raise_for(unlike_outputs(targets, types))
    done = gather_and_multiply(AllGatherScaledMatmul, ranks, operands, targets, is_new=out is None)
    if out is not None and done is not None:
        frameworks = [view.framework for view in operands[0]]
        _REPEATED.remember((*lists, out), *done, frameworks, types)
    return outputs


def _read(a: Layout, b: Layout, scale_a: Layout, scale_b: Layout) -> tuple[Operand, ...]:
    """Return how the kernel of a rank reads its operands: scales of A by ordinary loads."""
    read = read_scaled(a, b, scale_a, scale_b)
    return *read[:2], Operand(scale_a), read[3]


class AllGatherScaledMatmul(AllGatherMatmul):
    """The launches for operands, scales and outputs of given layouts."""

    reads: ClassVar[Callable[..., tuple[Operand, ...]]] = staticmethod(_read)

    @classmethod
    def slots(cls, shards: Shards) -> int:
        return 2 * shards.max_units  # for rows, and for their scales

    @classmethod
    def buffer_bytes(cls, shards: Shards, held: Element) -> int:
        blocks = -(-shards.columns // SCALE_BLOCK)
        scale_bytes = blocks * padded_row_bytes(shards.total_rows, _FLOAT)
        return cls._scales_start(shards, held) + scale_bytes

    @classmethod
    def _scales_start(cls, shards: Shards, held: Element) -> int:
        """Return where in a half of a buffer the scales start, in bytes."""
        return -(-super().buffer_bytes(shards, held) // _ALIGNMENT) * _ALIGNMENT

    def _addresses(self, operands: _Views, out: ArrayView) -> tuple[int, ...]:
        own, b, scale_a, scale_b = (view.address for view in operands)
        return own, own, b, scale_b, out.address, scale_a

    def _prepare(self, rank: int, operands: _Views, out: ArrayView) -> tuple[Launch, object]:
        own, b, scale_a, scale_b = operands
        config, transposed = self._chosen(rank), self.operands.of[rank].operands[3].transposed

        def tiles_over(a: ArrayView, scales: ArrayView) -> ScaledMatrices[Any]:
            given = a, b, scales, scale_b
            return scaled_gemm_tiles(given, out, config, b_scales_transposed=transposed)

        scales = [self._gathered_scales(rank, half) for half in range(2)]
        tiles = tiles_over(own, scales[0])
        halves = [tiles_over(self.gathered(rank, half), scales[half]) for half in range(2)]
        gathered, gathered_scales = (
            TMATensorTileArray([one[part] for one in halves]) for part in (0, 2)
        )
        pushed, targets = push_tile(own, PUSH_ROWS), self.targets(rank)
        types = [tile.cuda_type for tile in tiles]
        kernel = all_gather_scaled_kernel(
            types, pushed.cuda_type, config, b_scales_transposed=transposed
        )
        arguments = AllGatherScaledArguments(
            tiles.a,
            pushed,
            tiles.b,
            tiles.b_scales,
            tiles.c,
            Pointer(scale_a),
            gathered,
            gathered_scales,
            targets,
            *self._numbers(rank, scale_a, out.shape[1]),
        )
        launch = self.launch(rank, kernel, arguments, config)
        return launch, (gathered, gathered_scales, targets)

    def _chosen(self, rank: int) -> AllGatherScaledConfig:
        of = self.operands.of[rank]
        m, n = of.out.shape
        chosen = ranked_scaled_config(
            m,
            n,
            self.occupancy(rank),
            column_scales=column_scales_of(of.operands),
            shares_device=self.workspace.ranks.sharing(rank) > 1,
        )
        config: AllGatherScaledConfig = overridden(AllGatherScaledConfig.of(chosen))
        return config

    def _numbers(self, rank: int, scale_a: ArrayView, n: int) -> tuple[Any, ...]:
        """Return the kernel's parameters after the tiles."""
        workspace, m, k = self.workspace, self.shards.total_rows, self.shards.columns
        pitch_bytes = padded_row_bytes(m, _FLOAT)
        steps = (step // _FLOAT.itemsize for step in (*scale_a.strides_bytes, pitch_bytes))
        shards, rounds = self.shards.argument(workspace.slots), Pointer(workspace.rounds[rank])
        return self._buffers(), *steps, workspace.signals[rank], shards, rounds, m, n, k

    def _gathered_scales(self, rank: int, half: int) -> ArrayView:
        """Return the scales in a half of a rank's buffer, [K / 128, M]."""
        shape = -(-self.shards.columns // SCALE_BLOCK), self.shards.total_rows
        start = self._scales_start(self.shards, self.operands.of[rank].a.rows.element)
        return self.workspace.matrix(rank, half, shape, _FLOAT, start)

    def _buffers(self) -> bytes:
        """Return the bytes of the kernel parameter: where all ranks' gathered scales start."""
        count = len(self.workspace.ranks)
        each = [
            self._gathered_scales(rank, half).address if rank < count else 0
            for half in range(2)
            for rank in range(MAX_RANKS)
        ]
        return _BUFFERS.pack(*each)
