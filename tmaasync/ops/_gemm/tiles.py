"""The tiles, arguments and builds of the GEMM kernels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from tmaasync._arrays import ArrayView
from tmaasync._driver import DeviceLimits
from tmaasync._source.includes import digest, file_digest, reached
from tmaasync._source.paths import find_kernel, include_dir
from tmaasync.kernel import Kernel, Launch
from tmaasync.modes import L2Promotion, Swizzle
from tmaasync.ops._extents import check_extents
from tmaasync.ops._gemm.config import (
    BLOCK_K_BYTES,
    LINE_BYTES,
    SCALE_BLOCK,
    SCALES_PER_LOAD,
    Occupancy,
    PersistentWork,
    ScaledTileConfig,
    TileConfig,
)
from tmaasync.ops._gemm.epilogue import Epilogue
from tmaasync.ops._gemm.tensor_memory import PromotedConfig, TensorMemoryConfig
from tmaasync.ops._operation import shipped_kernel
from tmaasync.ragged import RaggedTensorMap, create_ragged_tensor_map
from tmaasync.tile import (
    Pointer,
    TMATensorTile,
    create_tma_tile,
)

_T = TypeVar("_T")
_BLOCK_K = BLOCK_K_BYTES // 2
_SHIFTED_ROWS = 64  # a load of these rows starts earlier if it would reach beyond A (kShiftsRows)


def output_tile(out: ArrayView, config: TileConfig) -> TMATensorTile:
    """Return the output tile over a matrix or batch whose rows TMA can store."""
    shape, swizzle = config.output_box(out.element)
    return create_tma_tile(out, (*(1,) * (out.ndim - 2), *shape), swizzle=swizzle)


def ragged_output(out: ArrayView, config: TileConfig) -> RaggedTensorMap:
    """Return the map of the packed rows of groups, with the tile of `output_tile`."""
    shape, swizzle = config.output_box(out.element)
    return create_ragged_tensor_map(out, shape, swizzle=swizzle)


def operand_tile(
    view: ArrayView, side: int, *, k_major: bool, parts: int, is_read_once: bool = False
) -> TMATensorTile:
    """Return the operand tile of ``side`` elements of M or N by `BLOCK_K_BYTES`, without batch.

    Args:
        view: The matrix, or the batch.
        side: Rows of M or columns of N of a CTA tile.
        k_major: Whether K is contiguous.
        parts: Minimum number of boxes along ``side``: one per CTA that multicasts a part.
        is_read_once: Whether each element is loaded only once.
    """
    promotion = _l2_promotion(view, is_read_once=is_read_once)
    depth = BLOCK_K_BYTES // view.element.itemsize
    one = (1,) * (view.ndim - 2)
    shape = (*one, side, depth) if k_major else (*one, depth, side)
    box = (*one, side // parts, depth) if k_major else None
    return create_tma_tile(view, shape, swizzle=Swizzle.B128, box_shape=box, l2_promotion=promotion)


def _l2_promotion(view: ArrayView, *, is_read_once: bool) -> L2Promotion:
    """Return the L2 promotion of an operand (benchmarks/bench_matmul.py on an H200).

    Fetching one line is up to 6 % faster for data that is read from memory once; fetching two is up
    to 2 % faster for data that is read from L2 repeatedly. If rows are not aligned to lines,
    promotion costs up to 7 %.
    """
    if view.strides_bytes[-2] % LINE_BYTES != 0:
        return L2Promotion.NONE
    return L2Promotion.B128 if is_read_once else L2Promotion.B256


def prepared_persistent(
    kernel: Kernel,
    arguments: Sequence[Any],
    config: TileConfig,
    work: PersistentWork,
    occupancy: Occupancy,
) -> Launch:
    """Return the launch of a persistent kernel, with at most the max active clusters."""
    size = config.cluster_size
    check_extents(tiles=work.clusters * size)
    active = occupancy.max_active_clusters(size)
    # With split-K a cluster cannot load the next tile while partial sums occupy its stages, so each
    # cluster computes one tile.
    resident = work.clusters if config.cluster_splits > 1 else min(work.clusters, active)
    launch = kernel.prepare(
        resident * size,
        config.threads,
        arguments,
        cluster=size if size > 1 else None,
        pdl=config.starts_early(work, active),
    )
    launch.release()
    return launch


# --- gemm.cu and gemm_epilogue.cu -------------------------------------------------------------


class GemmMatrices(NamedTuple, Generic[_T]):
    """The matrices of gemm.cu: their tiles, or their addresses."""

    a: _T
    b: _T
    c: _T


class GemmArguments(NamedTuple):
    a: TMATensorTile
    b: TMATensorTile
    c: TMATensorTile
    m: int
    n: int
    k: int
    batches: int


class GemmEpilogueArguments(NamedTuple):
    """The parameters of gemm_epilogue.cu; an absent array is 0."""

    a: TMATensorTile
    b: TMATensorTile
    c: TMATensorTile
    addend: TMATensorTile
    bias: ArrayView | int
    scale_a: ArrayView | int
    scale_b: ArrayView | int
    alpha: float
    beta: float
    m: int
    n: int
    k: int
    batches: int


def gemm_tiles(
    a: ArrayView,
    b: ArrayView,
    c: ArrayView,
    config: TileConfig,
    a_transposed: bool,
    b_transposed: bool,
) -> GemmMatrices[TMATensorTile]:
    """Return the tiles over matrices whose rows TMA can read."""
    rows, columns = config.block_m, config.block_n
    # b is [K, N]; if it was transposed, K is contiguous.
    m, n = a.shape[-1 if a_transposed else -2], b.shape[-2 if b_transposed else -1]
    k_major = not a_transposed
    parts = rows // _SHIFTED_ROWS if _shifts_rows(config, m, k_major) else config.a_multicast
    a_tile = operand_tile(a, rows, k_major=k_major, parts=parts, is_read_once=n <= columns)
    side, b_parts = config.b_tile
    b_tile = operand_tile(b, side, k_major=b_transposed, parts=b_parts, is_read_once=m <= rows)
    return GemmMatrices(a_tile, b_tile, output_tile(c, config))


def _shifts_rows(config: TileConfig, m: int, k_major: bool) -> bool:
    """Return whether A is loaded 64 rows at a time, never beyond its last row.

    Over all SMs, TMA fills about 26 out-of-bounds rows of 128 bytes per nanosecond, and loads rows
    several times as fast (docs/decisions/gemm.md).
    """
    is_ragged = m % config.cluster_rows != 0
    has_whole_boxes = config.block_m % (_SHIFTED_ROWS * config.a_multicast) == 0
    return config.shifts_rows and is_ragged and has_whole_boxes and k_major and not config.m_major


def gemm_kernel(
    types: Sequence[str],
    a_transposed: bool,
    b_transposed: bool,
    config: TileConfig,
    epilogue: Epilogue | None = None,
    bias: str = "float",
) -> Kernel:
    """Return the kernel for these tile types, with or without an epilogue."""
    named = dict(zip(("ATile", "BTile", "CTile"), types, strict=True))
    constants = gemm_constants(a_transposed, b_transposed, config)
    if epilogue is None:
        return shipped_kernel(config.sources[0], named, constants)
    return shipped_kernel(
        config.sources[1], {**named, "Bias": bias}, {**constants, **epilogue.gemm_constants}
    )


def gemm_constants(a_transposed: bool, b_transposed: bool, config: TileConfig) -> dict[str, int]:
    return {
        **config.constants,
        "A_IS_K_MAJOR": not a_transposed,
        "B_IS_K_MAJOR": b_transposed,
    }


class CombineArguments(NamedTuple):
    """The parameters of split_k_combine.cu."""

    partials: ArrayView
    c: Pointer
    m: int
    n: int
    splits: int
    pitch: int


_QUAD = 4  # columns per thread
_WARP = 32
_MAX_THREADS = 1024


def combine_kernel(partial: str, output: str) -> Kernel:
    return shipped_kernel("split_k_combine.cu", {"Partial": partial, "Output": output}, {})


def prepared_combine(partials: ArrayView, c: ArrayView, limits: DeviceLimits) -> Launch:
    """Return the launch that adds up partial outputs: see `Partials`.

    The row stride of ``c`` is a multiple of 16 bytes. The launch has one CTA per SM: with PDL its
    CTAs start before the GEMM has ended, and would otherwise all go to the first SMs with room.
    """
    m, n = c.shape
    splits, _, columns = partials.shape
    kernel = combine_kernel(partials.element.cuda_type, c.element.cuda_type)
    pitch = c.strides_bytes[0] // c.element.itemsize
    arguments = CombineArguments(partials, Pointer(c), m, n, splits, pitch)
    quads = m * columns // _QUAD
    sms = limits.sms
    rounds = -(-quads // (sms * _MAX_THREADS))
    threads = -(-quads // (sms * rounds * _WARP)) * _WARP
    launch = kernel.prepare(
        min(sms, -(-quads // threads)),
        threads,
        arguments,
        shared_mem=limits.shared_bytes,
        pdl=True,
    )
    launch.release()
    return launch


@functools.cache
def kernel_digest() -> str:
    """Return a hash of the plain GEMMs and of all headers of this project that they include."""
    sources = [find_kernel(name) for name in ("gemm.cu", "gemm_tensor_memory.cu")]
    texts = (source.read_text(encoding="utf-8") for source in sources)
    headers = [reached(text, (include_dir(), sources[0].parent)) for text in texts]
    files = dict.fromkeys((*sources, *itertools.chain(*headers)))
    return digest("".join(map(file_digest, files)).encode())


# --- grouped_gemm.cu --------------------------------------------------------------------------


class GroupedTiles(NamedTuple):
    """The tiles of grouped_gemm.cu; with swap AB the matrices come first."""

    rows: TMATensorTile
    matrices: TMATensorTile
    out: RaggedTensorMap


class GroupedPointers(NamedTuple):
    """The parameters of grouped_gemm.cu and k_grouped_gemm.cu that differ by call."""

    a: int
    b: int
    c: int
    offsets: int


class GroupedArguments(NamedTuple):
    a: TMATensorTile
    b: TMATensorTile
    c: RaggedTensorMap
    offsets: Any
    groups: int
    rows: int
    n: int
    k: int
    broken_group: Any


def grouped_tiles(
    a: ArrayView, b: ArrayView, c: ArrayView, config: TileConfig, b_transposed: bool
) -> GroupedTiles:
    """Return the tiles over arrays whose rows TMA can read.

    Args:
        a: [T, K].
        b: [groups, K, N], or [groups, N, K] if ``b_transposed``.
        c: [T, N].
        config: The tile config; M-major means swap AB.
        b_transposed: See ``b``.
    """
    if config.m_major:
        rows = operand_tile(a, config.block_n, k_major=True, parts=1)
        # A group rarely has more rows than a tile, so each matrix of b is loaded once.
        matrices = operand_tile(b, config.block_m, k_major=b_transposed, parts=1, is_read_once=True)
    else:
        rows = operand_tile(a, config.block_m, k_major=True, parts=1)
        side, parts = config.b_tile
        matrices = operand_tile(b, side, k_major=b_transposed, parts=parts)
    return GroupedTiles(rows, matrices, ragged_output(c, config))


def grouped_kernel(types: Sequence[str], b_transposed: bool, config: TileConfig) -> Kernel:
    rows, matrices, out = types
    if config.m_major:
        named = {"ATile": matrices, "BTile": rows, "CTile": out}
        constants = gemm_constants(not b_transposed, True, config)
    else:
        named = {"ATile": rows, "BTile": matrices, "CTile": out}
        constants = gemm_constants(False, b_transposed, config)
    on_tensor_memory = "_tensor_memory" if isinstance(config, TensorMemoryConfig) else ""
    return shipped_kernel(f"grouped_gemm{on_tensor_memory}.cu", named, constants)


# --- k_grouped_gemm.cu ------------------------------------------------------------------------


class KGroupedTiles(NamedTuple):
    a: RaggedTensorMap
    b: RaggedTensorMap
    out: TMATensorTile


class KGroupedArguments(NamedTuple):
    a: RaggedTensorMap
    b: RaggedTensorMap
    c: TMATensorTile
    offsets: Any
    groups: int
    rows: int
    m: int
    n: int
    broken_group: Any


def k_grouped_tiles(a: ArrayView, b: ArrayView, c: ArrayView, config: TileConfig) -> KGroupedTiles:
    """Return the tiles over arrays whose rows TMA can reach: [T, M], [T, N] and [groups, M, N]."""
    left, right = (
        create_ragged_tensor_map(
            view,
            (_BLOCK_K, side),
            swizzle=Swizzle.B128,
            l2_promotion=_l2_promotion(view, is_read_once=False),
        )
        for view, side in ((a, config.block_m), (b, config.b_tile[0]))
    )
    return KGroupedTiles(left, right, output_tile(c, config))


def k_grouped_kernel(types: Sequence[str], config: TileConfig) -> Kernel:
    constants = gemm_constants(True, False, config)
    if isinstance(config, TensorMemoryConfig):
        named = dict(zip(("AMap", "BMap", "CTile"), types, strict=True))
        named |= {"ATile": "AMap::Tile", "BTile": "BMap::Tile"}
        return shipped_kernel("k_grouped_gemm_tensor_memory.cu", named, constants)
    named = dict(zip(("ATile", "BTile", "CTile"), types, strict=True))
    return shipped_kernel("k_grouped_gemm.cu", named, constants)


# --- scaled_gemm.cu ---------------------------------------------------------------------------


class ScaledMatrices(NamedTuple, Generic[_T]):
    """The matrices of scaled_gemm.cu: their tiles, or their addresses."""

    a: _T
    b: _T
    a_scales: _T
    b_scales: _T
    c: _T


class ScaledArguments(NamedTuple):
    a: TMATensorTile
    b: TMATensorTile
    a_scales: TMATensorTile
    b_scales: TMATensorTile
    c: TMATensorTile
    m: int
    n: int
    k: int


def scaled_gemm_tiles(
    operands: Sequence[ArrayView],
    c: ArrayView,
    config: ScaledTileConfig | PromotedConfig,
    *,
    b_scales_transposed: bool,
) -> ScaledMatrices[Any]:
    """Return the tiles over matrices whose rows TMA can read.

    Args:
        operands: [M, K], [N, K], the scales of A as [K / 128, M], the scales of B as [K / 128, N],
            [K / 128, N / 128] or, transposed, [N / 128, K / 128]. In a grouped GEMM B and its
            scales have a first dimension: groups.
        c: [M, N].
        config: The tile config.
        b_scales_transposed: Whether the scales of B are passed transposed.
    """
    a, b, a_scales, b_scales = operands
    rows, columns = config.block_m, config.block_n
    side, parts = config.b_tile
    outer = (1,) * (b.ndim - 2)
    # The rows of a group start anywhere, and a load at a multiple of 16 bytes.
    scales = rows + SCALES_PER_LOAD if outer else config.a_scales
    return ScaledMatrices(
        operand_tile(a, rows, k_major=True, parts=1, is_read_once=b.shape[-2] <= columns),
        operand_tile(b, side, k_major=True, parts=parts, is_read_once=a.shape[0] <= rows),
        create_tma_tile(a_scales, (1, scales)),
        create_tma_tile(b_scales, (*outer, *_b_scale_shape(config, b_scales_transposed))),
        ragged_output(c, config) if outer else output_tile(c, config),
    )


def _b_scale_shape(config: ScaledTileConfig | PromotedConfig, transposed: bool) -> tuple[int, int]:
    if config.column_scales:
        return (1, config.block_n)
    if transposed:
        return (max(1, config.block_n // SCALE_BLOCK), SCALES_PER_LOAD)
    return (1, SCALES_PER_LOAD)


class ScaledGroupedArguments(NamedTuple):
    """The parameters of promoted_grouped_gemm_tensor_memory.cu."""

    a: TMATensorTile
    b: TMATensorTile
    a_scales: TMATensorTile
    b_scales: TMATensorTile
    c: RaggedTensorMap
    offsets: ArrayView
    groups: int
    rows: int
    n: int
    k: int
    broken_group: Any


def scaled_gemm_kernel(
    types: Sequence[str],
    b_scales_transposed: bool,
    config: ScaledTileConfig | PromotedConfig,
    source: str | None = None,
) -> Kernel:
    """Return the kernel for these tile types, of the config's source or another one."""
    names = ("ATile", "BTile", "AScaleTile", "BScaleTile", "CTile")
    return shipped_kernel(
        source or config.scaled_source,
        dict(zip(names, types, strict=True)),
        scaled_gemm_constants(b_scales_transposed, config),
    )


def scaled_gemm_constants(
    b_scales_transposed: bool, config: ScaledTileConfig | PromotedConfig
) -> dict[str, int]:
    return {
        **config.constants,
        "B_SCALE_COLUMNS": 1 if config.column_scales else SCALE_BLOCK,
        "B_SCALES_ARE_K_MAJOR": b_scales_transposed,
    }
