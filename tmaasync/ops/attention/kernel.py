"""attention.cu on the host: how queries and keys are cut, the tiles, what it is compiled with."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.tensormap import MAX_SHARED_BYTES
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = ["Blocking", "Tiles", "Variant", "attention_kernel", "attention_tiles", "padded_dim"]

GROUP_ROWS = 64
"""Rows of queries of a consumer: those of one wgmma."""

_BARRIER_BYTES = 1024
_ELEMENT_BYTES = 2

Tiles = tuple[TMATensorTile, TMATensorTile, TMATensorTile, TMATensorTile]


@dataclass(frozen=True, slots=True)
class Variant:
    """What scores go through, as far as the kernel is compiled for it."""

    has_left: bool = False
    has_right: bool = False
    has_softcap: bool = False
    has_lse: bool = False


@dataclass(frozen=True, slots=True)
class Blocking:
    """Tiles of ``64 * consumers`` rows of queries, of ``heads_per_tile`` heads; blocks of keys."""

    head_dim: int
    """Columns of the tiles: a multiple of 32."""

    consumers: int
    block_n: int
    heads_per_tile: int = 1

    @property
    def rows(self) -> int:
        """Rows of queries of a tile, its heads together."""
        return GROUP_ROWS * self.consumers

    @property
    def positions(self) -> int:
        """Positions of a tile."""
        return self.rows // self.heads_per_tile

    @property
    def threads(self) -> int:
        """Of a CTA: a warpgroup for every consumer, and one that loads."""
        return 128 * (1 + self.consumers)

    @property
    def stages(self) -> int:
        """Buffers in each ring."""
        block_bytes = 2 * self.block_n * self.head_dim * _ELEMENT_BYTES
        return min(2, (MAX_SHARED_BYTES - _BARRIER_BYTES - self._tile_bytes) // block_bytes)

    @property
    def output_is_over_queries(self) -> bool:
        """Whether there is no memory left for an output of its own."""
        block_bytes = 2 * self.block_n * self.head_dim * _ELEMENT_BYTES
        used = 2 * self._tile_bytes + self.stages * block_bytes
        return used + _BARRIER_BYTES > MAX_SHARED_BYTES

    @property
    def _tile_bytes(self) -> int:
        return self.rows * self.head_dim * _ELEMENT_BYTES

    @property
    def swizzle(self) -> Swizzle:
        """That of all tiles: lines of 128 bytes, or of 64."""
        return Swizzle.B128 if self.head_dim % 64 == 0 else Swizzle.B64

    @property
    def constants(self) -> dict[str, int]:
        """What the kernel is compiled with."""
        return {
            "CONSUMERS": self.consumers,
            "BLOCK_N": self.block_n,
            "HEAD_DIM": self.head_dim,
            "STAGES": self.stages,
            "HEADS_PER_TILE": self.heads_per_tile,
            "O_OVER_Q": self.output_is_over_queries,
        }


def padded_dim(head_dim: int) -> int:
    """Columns of the tiles: whole lines of 64 bytes, and zeros where there are none.

    >>> [padded_dim(dim) for dim in (8, 64, 72, 96, 128, 200, 256)]
    [32, 64, 96, 96, 128, 224, 256]
    """
    return -(-head_dim // 32) * 32


# Consumers, and keys of a block, that registers and shared memory hold: without and with a mask
# that cuts blocks (there, narrower blocks waste less on the diagonal).
_SHAPES = {
    64: ((3, 128), (3, 128)),
    96: ((2, 160), (2, 128)),
    128: ((2, 160), (2, 128)),
    192: ((2, 96), (2, 96)),
    256: ((2, 80), (2, 80)),
}


def choose_blocking(head_dim: int, *, cuts_blocks: bool) -> Blocking:
    """The blocking for a head dimension."""
    columns = padded_dim(head_dim)
    shapes = next(shapes for most, shapes in _SHAPES.items() if columns <= most)
    return Blocking(columns, *shapes[cuts_blocks])


def attention_tiles(
    q: ArrayView, k: ArrayView, v: ArrayView, o: ArrayView, blocking: Blocking
) -> Tiles:
    """The tiles that the kernel takes, over arrays of [batch, positions, heads, head_dim]."""
    heads = blocking.heads_per_tile
    rows = (1, GROUP_ROWS // heads, heads, blocking.head_dim)
    block = (1, blocking.block_n, 1, blocking.head_dim)
    swizzle = blocking.swizzle
    return (
        create_tma_tile(q, rows, swizzle=swizzle),
        create_tma_tile(k, block, swizzle=swizzle),
        create_tma_tile(v, block, swizzle=swizzle),
        create_tma_tile(o, rows, swizzle=swizzle),
    )


@functools.cache
def attention_kernel(  # noqa: PLR0913 - one per tile
    q: str, k: str, v: str, o: str, variant: Variant, blocking: Blocking
) -> Kernel:
    """The kernel for four types of tile, a variant and a blocking."""
    return Kernel(
        "attention.cu",
        types={"QTile": q, "KTile": k, "VTile": v, "OTile": o},
        constants={
            **blocking.constants,
            "HAS_LEFT": variant.has_left,
            "HAS_RIGHT": variant.has_right,
            "HAS_SOFTCAP": variant.has_softcap,
            "HAS_LSE": variant.has_lse,
        },
    )
