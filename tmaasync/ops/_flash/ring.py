"""Tile config, schedule, tiles and build of ring_attention.cu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel
from tmaasync.ops._flash.config import Sizes, TileConfig, Variant
from tmaasync.ops._flash.cost_model import choose_tile_config
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._flash.schedule import blocks_seen, heads_per_section, longest_first
from tmaasync.ops._flash.tiles import attention_tiles, cuda_types
from tmaasync.ops._operation import overridden, shipped_kernel
from tmaasync.tile import TMATensorTile, create_tma_tile

_PIECE_ROWS = 128  # mirror of kPieceRows in ring.cuh
_PUSH_BYTES = 4096
_PUSH_STAGES = 2
"""Push tiles in flight per CTA: 132 CTAs keep 1 MiB in flight, which saturates the links of an H200
(docs/decisions/several_gpus.md)."""

_PUSH_RING_BYTES = _PUSH_STAGES * _PUSH_BYTES + 1024  # with barriers and alignment
_LEAST_STAGES = 2


class RingSizes(NamedTuple):
    """The sizes of a problem: every rank has ``length`` positions, in ``chunks``."""

    ranks: int
    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    chunks: int

    @property
    def chunk_length(self) -> int:
        return self.length // self.chunks

    @property
    def keys(self) -> int:
        """The keys of all ranks."""
        return self.ranks * self.length

    @property
    def per_kv_head(self) -> int:
        return self.heads // self.kv_heads

    @property
    def pieces(self) -> int:
        """Pieces of a rank's keys and values: each has a signal, and is pushed to every rank."""
        pieces = -(-self.chunk_length // _PIECE_ROWS)
        return self.batch * self.kv_heads * self.chunks * pieces

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys of all ranks."""
        return 2 * self.batch * self.keys * self.kv_heads * self.head_dim

    def of_rank(self) -> Sizes:
        """Return the sizes of a rank's queries and all keys."""
        return Sizes(
            self.length, self.keys, self.heads, self.per_kv_head, self.batch, self.head_dim
        )

    def of_chunk(self, keys: int) -> Sizes:
        return self.of_rank()._replace(queries=self.chunk_length, keys=keys)

    def buffer_chunk(self, reader: int, source: int, chunk: int) -> int:
        """Return where a rank keeps a chunk of ``source`` in its buffer, counted in chunks."""
        if self.chunks == 2:
            return 2 * self.ranks - 1 - source if chunk else source
        return self.ranks - 1 - (source - reader) % self.ranks

    def buffered_keys(self, rank: int) -> int:
        """Return the rows of its buffer that a rank reads: up to the end of its last chunk."""
        if self.chunks == 1:
            return self.keys
        return (2 * self.ranks - rank) * self.chunk_length


@dataclass(frozen=True)
class RingTileConfig(TileConfig):
    """A tile config of ring_attention.cu, whose CTAs also hold the ring that they push from."""

    source: ClassVar[str] = "ring_attention.cu"

    @classmethod
    def of(cls, config: TileConfig) -> RingTileConfig:
        """Return the same tile config, with fewer keys in a block if the ring needs the room."""
        found = cls(**{field.name: getattr(config, field.name) for field in fields(TileConfig)})
        while found.stages < _LEAST_STAGES:
            found = replace(found, block_n=found.block_n - 16)
        return found

    @property
    def _fixed_bytes(self) -> int:
        return super()._fixed_bytes + _PUSH_RING_BYTES


def ring_config(sizes: RingSizes, variant: Variant, sms: int, shared_bytes: int) -> RingTileConfig:
    """Return the tile config that the cost model of attention.cu chooses for one chunk."""
    chunks = sizes.of_chunk(sizes.keys)._replace(batch=sizes.chunks * sizes.batch)
    chosen = RingTileConfig.of(choose_tile_config(chunks, sms, variant)).within(shared_bytes)
    config: RingTileConfig = overridden(RingTileConfig.of(chosen))
    return config


def ring_spans(sizes: RingSizes, config: TileConfig) -> int:
    heads = sizes.batch * sizes.heads // config.heads_per_tile
    return heads * sizes.chunks * -(-sizes.chunk_length // config.span_positions)


def zigzag_schedule(
    sizes: RingSizes, rank: int, scores: Scores, config: TileConfig, clusters: int
) -> npt.NDArray[np.int32]:
    """Return the LPT schedule of a rank's two chunks: [waves, clusters], as `lpt_schedule`."""
    ends = [(chunk + 1) * sizes.chunk_length for chunk in (rank, 2 * sizes.ranks - 1 - rank)]
    blocks = [blocks_seen(sizes.of_chunk(keys), scores, config) for keys in ends]
    heads = sizes.batch * sizes.heads // config.heads_per_tile
    section = heads_per_section(sizes.of_rank(), config)
    return longest_first(np.concatenate(blocks), heads, section, clusters)


# --- tiles and kernel ---------------------------------------------------------------------------


class RingTiles(NamedTuple):
    """The tiles of a rank; the first six move with the caller's arrays."""

    first_q: TMATensorTile
    second_q: TMATensorTile
    k: TMATensorTile
    v: TMATensorTile
    first_o: TMATensorTile
    second_o: TMATensorTile
    buffered_k: TMATensorTile
    buffered_v: TMATensorTile


def ring_tiles(
    q: Sequence[ArrayView],
    own: Sequence[ArrayView],
    o: Sequence[ArrayView],
    buffered: Sequence[ArrayView],
    config: TileConfig,
) -> RingTiles:
    """Return a rank's tiles.

    Args:
        q: Its chunks of the queries.
        own: Its keys and values.
        o: Its chunks of the output.
        buffered: Keys and values in its buffer.
        config: The tile config.
    """
    first, last = (
        attention_tiles(queries, buffered[0], buffered[1], out, config)
        for queries, out in zip((q[0], q[-1]), (o[0], o[-1]), strict=True)
    )
    k, v = map(push_tile, own)
    return RingTiles(first[0], last[0], k, v, first[3], last[3], first[1], first[2])


def push_tile(view: ArrayView) -> TMATensorTile:
    """Return the tile of 4 KiB or less that a stage of the ring holds."""
    row_bytes = view.shape[-1] * view.element.itemsize
    rows = min(_PIECE_ROWS, 1 << (_PUSH_BYTES // row_bytes).bit_length() - 1)
    return create_tma_tile(view, (1, rows, 1, view.shape[-1]))


def ring_kernel(tiles: RingTiles, variant: Variant, config: TileConfig) -> Kernel:
    names = ("QTile", "KTile", "VTile", "OTile", "PushTile")
    of = (tiles.first_q, tiles.buffered_k, tiles.buffered_v, tiles.first_o, tiles.k)
    constants = {**config.constants, **variant.constants, "PUSH_STAGES": _PUSH_STAGES}
    types = dict(zip(names, cuda_types(of), strict=True))
    return shipped_kernel(config.source, types, constants, "ring_attention")


class RingArguments(NamedTuple):
    """The parameters of ring_attention.cu after its tiles of q, k, v and the output."""

    lse: Any
    buffered_k: TMATensorTile
    buffered_v: TMATensorTile
    targets: Any
    signals: Any
    shards: bytes
    rounds: Any
    schedule: Any
    waves: int
    problem: bytes
