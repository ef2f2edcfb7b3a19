"""The attention backward: tile configs, workspace, tiles and launches of its three kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tmaasync._arrays import ArrayView
from tmaasync._hardware import WARPGROUP_THREADS
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.ops._flash.abi import record
from tmaasync.ops._flash.config import Sizes, shared_fields
from tmaasync.ops._flash.launches import Step, prepared_step
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._operation import shipped_kernel
from tmaasync.ragged import RaggedTensorMap, create_ragged_tensor_map
from tmaasync.tile import TMATensorTile, create_tma_tile

MAX_HEAD_DIM = 128
"""Columns of dK and dV that a consumer's registers hold."""

_CONSUMERS = 2
_KEYS = 64
"""Keys per consumer warpgroup: M of one wgmma."""

_TILE_KEYS = _CONSUMERS * _KEYS
_THREADS = WARPGROUP_THREADS * (1 + _CONSUMERS)
_ROWS_THREADS = 128
_DQ_THREADS = WARPGROUP_THREADS * _CONSUMERS
_ALIGNMENT = 1024
_OF_QUERIES = ("BLOCK_M", "HEAD_DIM", "IS_PACKED")
_L2_BYTES = 24 << 20
"""L2 budget for Q, dO and dQ of the heads that are scheduled together: half an H100's L2."""

_INTEGERS = (
    *("batch", "heads", "kv_heads", "heads_per_kv_head", "queries", "keys", "lse_rows"),
    *("left", "right", "is_bottom_right", "query_tiles", "heads_at_once"),
)
BACKWARD_PROBLEM = np.dtype(
    [
        *((name, "<i4") for name in _INTEGERS),
        *((name, "<f4") for name in ("scale", "scale_in_tanh", "scale_log2")),
    ]
)
"""``BackwardProblem``: sizes, mask and scale."""


@dataclass(frozen=True, slots=True)
class BackwardVariant:
    """The mask, softcap and mode that the kernels are compiled for."""

    is_packed: bool = False
    has_left: bool = False
    has_right: bool = False
    has_softcap: bool = False
    is_deterministic: bool = False
    adds_keys: bool = False

    @classmethod
    def of(
        cls, scores: Scores, *, is_packed: bool = False, is_deterministic: bool = False
    ) -> BackwardVariant:
        return cls(
            is_packed=is_packed,
            has_left=scores.left is not None,
            has_right=scores.right is not None,
            has_softcap=scores.softcap is not None,
            is_deterministic=is_deterministic,
        )

    @property
    def is_masked(self) -> bool:
        return self.has_left or self.has_right

    @property
    def constants(self) -> dict[str, bool | int]:
        return {
            "IS_PACKED": self.is_packed,
            "HAS_LEFT": self.has_left,
            "HAS_RIGHT": self.has_right,
            "HAS_SOFTCAP": self.has_softcap,
            "IS_DETERMINISTIC": self.is_deterministic,
            "ADDS_KEYS": self.adds_keys,
        }


@dataclass(frozen=True, slots=True)
class BackwardConfig:
    """CTA tiles of 128 keys, and blocks of queries.

    Attributes:
        head_dim: Columns of the tiles, 64 or 128.
        block_m: Queries per block: 64, or 128 with 64 columns, or 80 with 128.
        stages: Stages of each pipeline, one of queries and one of dO.
        starts_last: Whether a CTA visits blocks of queries from last to first, and in each block
            all query heads of its KV head; else head by head, each from the first block.
        alternates: With ``starts_last``, whether every other wave of tiles visits blocks from
            first to last.
        tiles_descend: Whether the tiles of a head are scheduled from the last keys to the first.
        heads_at_once: KV heads whose tiles of keys are scheduled together; None: as many heads as
            have their queries in L2.
    """

    head_dim: int
    block_m: int
    stages: int = 2
    starts_last: bool = False
    alternates: bool = False
    tiles_descend: bool = False
    heads_at_once: int | None = None

    @property
    def constants(self) -> dict[str, bool | int]:
        return {
            "HEAD_DIM": self.head_dim,
            "BLOCK_M": self.block_m,
            "STAGES": self.stages,
            "STARTS_LAST": self.starts_last,
            "ALTERNATES": self.alternates,
            "TILES_DESCEND": self.tiles_descend,
        }


def choose_backward_config(
    head_dim: int,
    variant: BackwardVariant,
    *,
    shares_kv_heads: bool,
    heads_on_sms: float,
) -> BackwardConfig:
    """Return the tile config of a variant; ``shares_kv_heads`` means GQA.

    ``heads_on_sms`` is the number of heads whose tiles of keys fill the SMs. The choices were
    measured on an H200, the deterministic ones without a mask on an H100 too (2026-11-24, blocks
    of 80 queries under a mask 2026-11-29, docs/decisions/attention.md), without windows and
    softcap.
    """
    if head_dim <= 64:
        return _narrow_config(variant, heads_on_sms)
    config = BackwardConfig(128, 64)
    twice = 2 * heads_on_sms
    if variant.is_deterministic and not variant.is_masked:
        heads = _within(1, heads_on_sms, 8) if shares_kv_heads else _within(4, twice, 16)
        return BackwardConfig(128, 80, starts_last=True, heads_at_once=heads)
    if variant.is_deterministic and not shares_kv_heads:
        return replace(config, tiles_descend=True, heads_at_once=_within(2, twice, 4))
    if variant.is_deterministic:
        return replace(config, starts_last=True, alternates=True, heads_at_once=8)
    if variant.is_masked:
        block_m = 80 if _is_long_and_causal(variant, heads_on_sms) else 64
        heads = _within(2, twice, 16)
        masked = replace(config, block_m=block_m, starts_last=True, alternates=True)
        return replace(masked, heads_at_once=heads)
    full = BackwardConfig(128, 80, starts_last=True, alternates=True)
    return replace(full, heads_at_once=_within(2, heads_on_sms, 8))


def _is_long_and_causal(variant: BackwardVariant, heads_on_sms: float) -> bool:
    """Return whether padded heads with a causal mask fill two thirds of the SMs each."""
    is_causal = not (variant.has_left or variant.has_softcap or variant.is_packed)
    return is_causal and heads_on_sms < 1.5


def _narrow_config(variant: BackwardVariant, heads_on_sms: float) -> BackwardConfig:
    config = BackwardConfig(64, 64 if variant.has_softcap else 128)
    if variant.is_deterministic and variant.is_masked:
        heads = _within(2, 2 * heads_on_sms, 4)
        return replace(config, tiles_descend=True, heads_at_once=heads)
    if variant.is_deterministic:
        return replace(config, starts_last=True, heads_at_once=16)
    if variant.has_softcap:
        return config
    if variant.is_masked:
        return replace(config, starts_last=True, alternates=True, heads_at_once=4)
    return replace(config, starts_last=True, heads_at_once=_within(4, heads_on_sms, 16))


def _within(least: int, heads: float, most: int) -> int:
    return min(max(int(heads), least), most)


def heads_in_l2(sizes: Sizes, longest: int) -> int:
    """Return the number of KV heads whose Q, dO and dQ fit in L2, for ``longest`` queries."""
    head_bytes = max(1, longest) * sizes.head_dim * sizes.heads_per_kv_head * (2 + 2 + 4)
    return max(1, _L2_BYTES // head_bytes)


def heads_on_sms(longest: int, sms: int) -> float:
    """Return the number of heads of ``longest`` keys whose tiles of keys fill the SMs."""
    return sms / max(1, -(-longest // _TILE_KEYS))


def backward_problem(
    sizes: Sizes,
    scores: Scores,
    config: BackwardConfig,
    longest: int,
    *,
    is_packed: bool,
    lse_rows: int | None = None,
) -> bytes:
    """Return the kernels' ``BackwardProblem``.

    Args:
        sizes: The sizes.
        scores: Scale, mask and softcap.
        config: The tile config.
        longest: Queries of the longest sequence.
        is_packed: Whether sequences are packed.
        lse_rows: Elements of a head in the log-sum-exp; by default the queries.
    """
    in_tanh, scale_log2 = scores.factors
    kv_heads = sizes.heads // sizes.heads_per_kv_head
    heads = config.heads_at_once or heads_in_l2(sizes, longest)
    return record(
        BACKWARD_PROBLEM,
        **shared_fields(sizes, scores),
        kv_heads=kv_heads,
        lse_rows=sizes.queries if lse_rows is None else lse_rows,
        query_tiles=tiles_of_a_head(sizes.queries, config.block_m, sizes, is_packed=is_packed),
        heads_at_once=min(heads, kv_heads if is_packed else kv_heads * max(1, sizes.batch)),
        scale=scores.scale,
        scale_in_tanh=in_tanh,
        scale_log2=scale_log2,
    )


def tiles_of_a_head(rows: int, tile_rows: int, sizes: Sizes, *, is_packed: bool) -> int:
    """Return the number of tiles of a head's rows.

    For packed arrays this is an upper bound, because every sequence has whole tiles.
    """
    return rows // tile_rows + sizes.batch if is_packed else -(-rows // tile_rows)


# --- the workspace ------------------------------------------------------------------------------


class Workspace(NamedTuple):
    """The single workspace of a call: dQ in fp32, row statistics, and counters.

    Attributes:
        tiles: Number of blocks of queries, over all heads.
    """

    tiles: int
    config: BackwardConfig

    @classmethod
    def of(cls, sizes: Sizes, config: BackwardConfig, *, is_packed: bool) -> Workspace:
        entries = 1 if is_packed else sizes.batch
        per_head = tiles_of_a_head(sizes.queries, config.block_m, sizes, is_packed=is_packed)
        return cls(entries * sizes.heads * per_head, config)

    @property
    def _dq_bytes(self) -> int:
        return self.tiles * self.config.block_m * self.config.head_dim * 4

    @property
    def statistics_at(self) -> int:
        return self._dq_bytes

    @property
    def turns_at(self) -> int:
        return self._dq_bytes + self.tiles * self.config.block_m * 8

    @property
    def counter_at(self) -> int:
        return self.turns_at + self.tiles * _CONSUMERS * 4

    @property
    def elements(self) -> int:
        """The size of the workspace in float32 elements."""
        return (self.counter_at + _ALIGNMENT) // 4


# --- tiles --------------------------------------------------------------------------------------


def count_key_tiles(sizes: Sizes, *, is_packed: bool) -> int:
    """Return an upper bound, at least 1, on the tiles of keys over all KV heads."""
    entries = 1 if is_packed else sizes.batch
    per_head = tiles_of_a_head(sizes.keys, _TILE_KEYS, sizes, is_packed=is_packed)
    return max(1, entries * sizes.heads // sizes.heads_per_kv_head * per_head)


_Map = TMATensorTile | RaggedTensorMap


class Maps(NamedTuple):
    """Tiles, or maps for packed arrays, named as the arguments."""

    q: Any
    k: Any
    v: Any
    out: Any
    dout: Any
    dq: Any
    dk: Any
    dv: Any


def maps_over(arrays: Sequence[ArrayView], config: BackwardConfig, *, is_packed: bool) -> Maps:
    """Return the tiles or maps over arrays in the order of `Maps`."""
    rows = dict.fromkeys(("k", "v", "dk", "dv"), _KEYS)

    def of(name: str, view: ArrayView) -> _Map:
        side = (rows.get(name, config.block_m), 1, config.head_dim)
        if is_packed:
            return create_ragged_tensor_map(view, side, swizzle=Swizzle.B128)
        return create_tma_tile(view, (1, *side), swizzle=Swizzle.B128)

    return Maps(*(of(name, view) for name, view in zip(Maps._fields, arrays, strict=True)))


# --- launches -----------------------------------------------------------------------------------

_Types = tuple[str, str]


class Addresses(NamedTuple):
    """The addresses of a call's launches, named as the parameters.

    For packed arrays the first eight are addresses of maps, which start below their arrays.
    """

    q: int
    k: int
    v: int
    out: int
    dout: int
    dq: int
    dk: int
    dv: int
    lse: int
    workspace: int
    statistics: int
    turns: int
    tile_counter: int
    cu_seqlens_q: int = 0
    cu_seqlens_k: int = 0


class _RowsArguments(NamedTuple):
    """The parameters of attention_backward_rows.cu, in order."""

    out: Any
    dout: Any
    lse: Any
    statistics: int
    turns: int
    tile_counter: int
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    broken_sequence: Any
    problem: bytes


class _MainArguments(NamedTuple):
    """The parameters of attention_backward.cu, in order."""

    q: Any
    k: Any
    v: Any
    dout: Any
    dk: Any
    dv: Any
    statistics: int
    workspace: int
    turns: int
    tile_counter: int
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    problem: bytes


class _DqArguments(NamedTuple):
    """The parameters of attention_backward_dq.cu, in order."""

    dq: Any
    workspace: int
    turns: int
    cu_seqlens_q: Any
    problem: bytes


def backward_kernel(types: _Types, variant: BackwardVariant, config: BackwardConfig) -> Kernel:
    """Return the main kernel for the types of ``QTile`` and ``KTile``."""
    named = dict(zip(("QTile", "KTile"), types, strict=True))
    constants = {**config.constants, **variant.constants}
    return shipped_kernel("attention_backward.cu", named, constants)


def queries_kernel(
    source: str, types: _Types, variant: BackwardVariant, config: BackwardConfig
) -> Kernel:
    """Return the kernel before or after the main one, by its source.

    These kernels do not depend on the mask, so few variants are compiled.
    """
    constants = {**config.constants, **variant.constants}
    named = dict(zip(("QTile", "KTile"), types, strict=True))
    return shipped_kernel(source, named, {name: constants[name] for name in _OF_QUERIES})


def backward_steps(  # noqa: PLR0913 - what the three launches share
    maps: Maps,
    variant: BackwardVariant,
    config: BackwardConfig,
    problem: bytes,
    *,
    tiles: tuple[int, int],
    sms: int,
    broken_sequence: Any = 0,
    stream: Any = None,
) -> list[Step]:
    """Prepare the three launches.

    Args:
        maps: The tiles or maps of the arrays.
        variant: The variant to compile the kernels for.
        config: The tile config.
        problem: The ``BackwardProblem``.
        tiles: Number of tiles of queries in the workspace, and upper bound on tiles of keys.
        sms: Number of CTAs of attention_backward.cu that run at once.
        broken_sequence: For packed arrays, the memory that receives an invalid sequence's number.
        stream: On emulated devices, the stream.
    """
    of_queries, of_keys = tiles
    types = (maps.q.cuda_type, maps.k.cuda_type)

    rows = _RowsArguments(maps.out, maps.dout, 0, 0, 0, 0, 0, 0, broken_sequence, problem)
    main = _MainArguments(*maps[:3], maps.dout, *maps[6:], 0, 0, 0, 0, 0, 0, problem)
    dq = _DqArguments(maps.dq, 0, 0, 0, problem)
    before, after = (
        queries_kernel(f"attention_backward_{part}.cu", types, variant, config)
        for part in ("rows", "dq")
    )
    kernel = backward_kernel(types, variant, config)
    moved = Addresses._fields
    return [
        prepared_step(before, of_queries, _ROWS_THREADS, rows, moved, stream=stream),
        prepared_step(kernel, min(of_keys, sms), _THREADS, main, moved, stream=stream),
        prepared_step(after, of_queries, _DQ_THREADS, dq, moved, stream=stream),
    ]
