"""The legal tile configs of gemm.cu for a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tmaasync._elements import element
from tmaasync.ops._gemm.config import BLOCK_K_BYTES, SKINNY_LIMIT, TileConfig


class Problem(NamedTuple):
    """A GEMM as the kernel computes it, after swap AB and staging.

    ``layout`` has one letter per operand: ``n`` if it is stored as [M, K] or [K, N] with the last
    side contiguous, ``t`` if its transpose is. ``on_lines``: whether the rows of both operands
    start on 128-byte lines of L2. If not, every row of a box takes two requests.
    """

    m: int
    n: int
    k: int
    batches: int
    operands: str
    output: str
    layout: str
    m_major: bool
    on_lines: bool

    @property
    def a_is_k_major(self) -> bool:
        return self.layout[0] == "n"

    @property
    def b_is_k_major(self) -> bool:
        return self.layout[1] == "t"

    @property
    def k_blocks(self) -> int:
        itemsize = element(self.operands.split("/")[0]).itemsize
        return -(-self.k * itemsize // BLOCK_K_BYTES)


Fits = Callable[[TileConfig], bool]
"""Whether a kernel supports a tile config."""


def any_config(_: TileConfig) -> bool:
    return True


# --- tiles --------------------------------------------------------------------------------------


class ConsumerLayout(NamedTuple):
    """The number of consumer warpgroups, their rows, and the widest tile."""

    consumers: int
    rows: int
    """Rows of each consumer."""
    widest: int
    """Most columns whose accumulators fit into their registers."""
    ping_pong: bool = False


CONSUMER_LAYOUTS = (
    ConsumerLayout(2, 64, 256),
    ConsumerLayout(1, 64, 256),
    ConsumerLayout(3, 64, 192),
    ConsumerLayout(2, 128, 192),
    ConsumerLayout(2, 128, 192, ping_pong=True),
)
"""All consumer layouts of the kernel; among equals the first wins."""

SKINNY_WIDTHS = (8, 16, 32, 64)
"""Tile widths for up to `SKINNY_LIMIT` columns; wider outputs get a tile of their own width."""

_LINE_COLUMNS = 64  # columns of B in a line if N is contiguous
_SKINNY_STEP = 8  # step of wider tiles: widths rounded up to 32 take up to 1.27 times as long
_WIDTH_STEP = 16  # minimum columns of a store: 32 bytes of 16-bit elements
_GROUP_TILES = 16  # tiles along M before the next column of tiles (L2 swizzle)
_TALL_FROM = 128  # output rows up to which smaller tiles win among equals
_USUAL_ROWS = 64


def _legal_widths(widest: int, problem: Problem) -> range:
    """Return the legal tile widths; if N is contiguous in B, whole lines of 64 columns."""
    step = _WIDTH_STEP if problem.b_is_k_major else _LINE_COLUMNS
    return range(step, widest + 1, step)


def can_multicast_b(config: TileConfig, problem: Problem) -> bool:
    """Return whether two CTAs can each load half of the columns, in whole boxes of B."""
    return config.block_n % (_WIDTH_STEP if problem.b_is_k_major else 2 * _LINE_COLUMNS) == 0


def can_multicast_a(config: TileConfig, problem: Problem) -> bool:
    """Return whether two CTAs can each load half of the rows, in whole boxes of A."""
    return problem.a_is_k_major or config.block_m % (2 * _LINE_COLUMNS) == 0


def all_tiles(problem: Problem) -> Iterator[TileConfig]:
    """Yield all tile configs of the kernel, the usual ones first."""
    for form in CONSUMER_LAYOUTS if problem.m > _TALL_FROM else sorted(CONSUMER_LAYOUTS):
        for width in _legal_widths(form.widest, problem):
            yield TileConfig(
                *(form.consumers, width, 1, _GROUP_TILES, form.rows), ping_pong=form.ping_pong
            )


def paired_along_m(config: TileConfig) -> TileConfig:
    """Return the config with pairs of tiles along M that multicast B."""
    return replace(config, cluster=2, group_m=_GROUP_TILES // 2)


def paired_along_n(config: TileConfig) -> TileConfig:
    """Return the config with pairs of tiles along N that multicast A."""
    return replace(config, cluster=2, side_by_side=True)


def gains_side_by_side(config: TileConfig, problem: Problem) -> bool:
    """Return whether multicasting A is possible and shares the longer side of the tiles."""
    is_tall = config.block_m > config.block_n and not config.ping_pong
    return is_tall and can_multicast_a(config, problem)


def is_usual(config: TileConfig) -> bool:
    return config.consumers <= 2 and config.rows == _USUAL_ROWS


def has_large_consumers(config: TileConfig) -> bool:
    """Return whether the config has three consumers, or two cooperative ones of 128 rows."""
    return not (is_usual(config) or config.ping_pong)


def skinny_tiles(problem: Problem) -> list[TileConfig]:
    """Return all tile configs at least as wide as the output, narrowest first."""
    widths: Sequence[int] = SKINNY_WIDTHS if problem.b_is_k_major else (_LINE_COLUMNS,)
    if problem.n > SKINNY_LIMIT:
        step = _SKINNY_STEP if problem.b_is_k_major else _LINE_COLUMNS
        widths = [-(-problem.n // step) * step]
    return [
        # Among configs with equal loads, larger tiles load B less often.
        TileConfig(consumers, width, m_major=True)
        for width in widths
        if width >= problem.n
        for consumers in (2, 1)
    ]


# --- configs that a user may pass ---------------------------------------------------------------

SPLITS = (2, 3, 4, 6, 8)
"""Legal numbers of parts of K for split-K in a cluster, one part per CTA."""

MAX_GRID_SPLITS = 132
"""Maximum parts of K for split-K over the grid: the SMs of an H200 (its datasheet)."""

CLUSTERS = (1, 2)
MAX_GROUP = 64

RACED_GROUPS = (4, 8, 16)
"""Clusters along M before the next column of tiles, that the tuner tries."""
RACED_SPLITS = 6
"""The best tile configs with split-K, that the tuner tries."""


def is_legal(config: TileConfig, problem: Problem) -> bool:
    has_all_stages = config == replace(config, max_stages=TileConfig(1, 8).max_stages)
    if config.m_major != problem.m_major or not has_all_stages:
        return False
    if not 1 <= config.group_m <= MAX_GROUP:
        return False
    if not _has_legal_split_k(config, problem):
        return False
    if problem.m_major:
        return config in [
            replace(tile, group_m=config.group_m, split_k=config.split_k)
            for tile in skinny_tiles(problem)
        ]
    kind = (config.consumers, config.rows, config.ping_pong)
    layouts = {(one.consumers, one.rows, one.ping_pong): one.widest for one in CONSUMER_LAYOUTS}
    is_wide = config.block_n in _legal_widths(layouts.get(kind, 0), problem)
    is_alone = config.cluster == 1 and not config.side_by_side
    is_shared = is_alone or _can_multicast(config, problem)
    return is_wide and config.cluster in CLUSTERS and is_shared


def _can_multicast(config: TileConfig, problem: Problem) -> bool:
    """Return whether each CTA of a cluster can load a part of the shared tile."""
    if config.side_by_side:
        shares = can_multicast_a(config, problem)
        return shares and config.cluster > 1 and config.cluster_splits == 1
    return can_multicast_b(config, problem)


def _has_legal_split_k(config: TileConfig, problem: Problem) -> bool:
    if config.over_grid:
        is_in_range = 2 <= config.split_k <= min(MAX_GRID_SPLITS, problem.k_blocks)
        is_matrix = problem.batches == 1 and not problem.m_major
        return is_in_range and is_matrix and not config.ping_pong
    if config.split_k == 1:
        return True
    is_cluster = config.split_k in SPLITS and config.cluster_size <= SPLITS[-1]
    return is_cluster and config.holds_partials and not config.ping_pong
