"""The problem of packed attention: bounds on its sizes, and its tile config."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tmaasync._driver import DeviceLimits
from tmaasync._forks import cached_property
from tmaasync._ragged.batch import MAX_ROWS
from tmaasync.ops._flash.config import GROUP_ROWS, Batch, Sizes, TileConfig, Variant, problem
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._flash.pages import Pages
from tmaasync.ops._flash.schedule import packed_kv_splits, section
from tmaasync.ops._flash.tensor_memory import config_on
from tmaasync.ops._layouts import Layout
from tmaasync.ops._operation import overridden

INVARIANT_SPLITS = 8
"""Splits of each sequence's keys in batch-invariant decode: against the choice of the cost model it
takes 0.91 to 1.14 times as long from 1 to 64 sequences, with 16 splits 1.00 to 1.19 times (H200,
2026-11-29, benchmarks/bench_batch_invariant.py)."""


@dataclass(frozen=True)
class PackedProblem:
    """Packed arrays with the layouts of q and k, and a batch of given size on a GPU.

    The lengths of the sequences may differ by call.
    """

    q: Layout
    k: Layout
    batch: Batch
    scores: Scores
    pages: Pages
    variant: Variant
    limits: DeviceLimits

    @cached_property
    def config(self) -> TileConfig:
        config = config_on(self.limits, self._typical, self.variant)
        tiles = self._tiles(config) * self.q.shape[1] // config.heads_per_tile
        if self.batch.is_invariant:
            splits = INVARIANT_SPLITS if self._is_short(config) else 1
        else:
            splits = packed_kv_splits(tiles, self._typical, config, self.scores, self.limits.sms)
        few = config.for_queries(self.batch.max_queries)
        chosen: TileConfig = overridden(replace(few, kv_splits=splits))
        # The list costs a launch; it puts the longest tiles first (LPT), but split tiles all run
        # at once.
        is_paged = self.pages.size > 0
        has_one = is_paged and chosen.kv_splits > 1 and self._is_short(chosen)
        return replace(chosen, one_tile_each=has_one)

    def _is_short(self, config: TileConfig) -> bool:
        """Whether each sequence fits in one tile."""
        return self.batch.max_queries <= config.positions

    @property
    def max_tiles(self) -> int:
        """An upper bound on the tiles for any lengths."""
        return self.max_tiles_of_head * self.q.shape[1] // self.config.heads_per_tile

    @property
    def max_tiles_of_head(self) -> int:
        return self._tiles(self.config)

    @property
    def section(self) -> tuple[int, int]:
        """See `section`, for the longest sequence."""
        longest = self._sizes(self.batch.max_queries, self.batch.max_keys)
        return section(longest, self.config)

    @property
    def record(self) -> bytes:
        """The ``AttentionProblem`` of the kernels."""
        return problem(self._packed, self.scores, self.pages.step, self.pages.total)

    def _tiles(self, config: TileConfig) -> int:
        tiles = self.batch.size
        if self.batch.max_queries > config.positions:
            tiles += self.q.shape[0] // config.positions
        return tiles

    @property
    def _typical(self) -> Sizes:
        """The sizes of a sequence of mean length; for paged keys, of the longest.

        Batch-invariant calls have one tile config for short sequences, and one for all others.
        """
        size = self.batch.size
        if self.batch.is_invariant:
            queries = 1 if self.batch.max_queries * self._heads_per_kv_head <= GROUP_ROWS else 4096
            return self._sizes(queries, 8192)._replace(batch=self.limits.sms)
        return self._sizes(max(1, self.q.shape[0] // size), max(1, self._packed.keys // size))

    @property
    def _packed(self) -> Sizes:
        """The rows of all sequences; an upper bound for paged keys, which may be shared."""
        keys = self.k.shape[0]
        if self.pages.size:
            # Below the number that converted cumulative lengths beyond 32 bits have.
            keys = min(self.batch.size * self.batch.max_keys, MAX_ROWS - 1)
        return self._sizes(self.q.shape[0], keys)

    def _sizes(self, queries: int, keys: int) -> Sizes:
        heads, head_dim = self.q.shape[1:]
        shares = (heads, self._heads_per_kv_head)
        return Sizes(queries, keys, *shares, self.batch.size, head_dim, self.q.element.itemsize)

    @property
    def _heads_per_kv_head(self) -> int:
        return self.q.shape[1] // self.k.shape[-2]
