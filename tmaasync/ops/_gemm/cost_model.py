"""Cost models that choose the tile config of a GEMM, without measuring in the call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tmaasync.ops._gemm.coefficients import SplitKCoefficients, coefficients
from tmaasync.ops._gemm.config import (
    BLOCK_K_BYTES,
    SKINNY_LIMIT,
    WIDE_SCALED,
    Occupancy,
    ScaledTileConfig,
    TileConfig,
)
from tmaasync.ops._gemm.legal_tiles import (
    CLUSTERS,
    RACED_GROUPS,
    RACED_SPLITS,
    SPLITS,
    Fits,
    Problem,
    all_tiles,
    any_config,
    can_multicast_b,
    gains_side_by_side,
    is_legal,
    is_usual,
    paired_along_m,
    paired_along_n,
    skinny_tiles,
)
from tmaasync.ops._gemm.tensor_time import config_time, sm_time, soft_max

_MIN_TILES_TO_SHARE = 4  # tiles along M in a batch: the last pair's second tile may be empty
_NARROWEST = 2  # configs considered for a skinny GEMM: one and two consumers


def default_config(
    problem: Problem, occupancy: Occupancy, fits: Fits = any_config, epilogue_depth: int = 0
) -> TileConfig:
    """Return the cost models' choice for gemm.cu, with split-K if it is faster.

    The arguments are as in `choose_config`.
    """
    if problem.m_major:
        whole = choose_skinny_config(problem, occupancy, fits)
    else:
        whole = choose_config(problem, occupancy, epilogue_depth=epilogue_depth, fits=fits)
    return _faster_with_split_k(problem, whole, occupancy, fits)


# --- gemm.cu: the time at the full clock, and under the power limit ---------------------------


def choose_config(
    problem: Problem,
    occupancy: Occupancy,
    *,
    is_uneven: bool = False,
    epilogue_depth: int = 0,
    fits: Fits = any_config,
) -> TileConfig:
    """Return the fastest tile config without split-K: the first of `ranked_configs`.

    In many waves, pairs of tall tiles along N multicast A, unless an odd number of tiles in a row
    costs a wave. In few waves, paired CTAs would only wait for each other. If rows are not
    ``on_lines``, pairs always multicast; in a batch only in many waves.

    Args:
        problem: The GEMM, or the batch of GEMMs.
        occupancy: SMs and max active clusters of the device.
        is_uneven: Whether ``problem.m`` is a mean over the batches, so that the last row of tiles
            of each is half empty on average.
        epilogue_depth: Cost of a tile's epilogue before the stores, in elements of K.
        fits: Returns whether a tile config is allowed.
    """
    m, n, count = problem.m, problem.n, problem.batches
    found = ranked_configs(problem, occupancy, is_uneven=is_uneven, epilogue_depth=epilogue_depth)
    best = next(filter(fits, found))
    waves = count * best.clusters(m, n) / occupancy.sms
    has_few_rows = count > 1 and -(-m // best.block_m) < _MIN_TILES_TO_SHARE
    is_alone = best.ping_pong or has_few_rows
    is_short = waves <= coefficients().gemm.waves_to_share
    if best.cluster > 1 or is_alone or is_short:
        return best
    if gains_side_by_side(best, problem):
        pair = paired_along_n(best)
        active = occupancy.max_active_clusters(pair.cluster_size)
        if fits(pair) and count * pair.clusters(m, n) <= math.ceil(waves) * active:
            return pair
    pair = paired_along_m(best)
    gains = not problem.on_lines and can_multicast_b(best, problem)
    return pair if gains and fits(pair) else best


def ranked_config(
    problem: Problem, occupancy: Occupancy, *, shares_device: bool, max_area: int | None = None
) -> TileConfig:
    """Return the tile config of a GEMM whose CTAs wait for other ranks, without split-K.

    Ranks that share a device get no clusters: the CTAs of another rank could leave a GPC with SMs
    that hold no whole cluster, and CTAs that are not resident send nothing. Where rows do not start
    on lines the cost model knows pairs alone, so these ranks take its choice for rows that do.

    Args:
        problem: The GEMM of a rank.
        occupancy: SMs and max active clusters of its device.
        shares_device: Whether another rank has the same device.
        max_area: The most elements of the output that a consumer may accumulate.
    """
    if shares_device:
        problem = problem._replace(on_lines=True)

    def fits(config: TileConfig) -> bool:
        is_alone = config.cluster_size == 1
        is_small = max_area is None or config.rows * config.block_n <= max_area
        return is_small and (is_alone or not shares_device)

    return choose_config(problem, occupancy, fits=fits)


def ranked_configs(
    problem: Problem, occupancy: Occupancy, *, is_uneven: bool = False, epilogue_depth: int = 0
) -> list[TileConfig]:
    """Return all tile configs, fastest first; in pairs if not ``on_lines``.

    The arguments are as in `choose_config`.
    """
    time = partial(
        config_time, problem, occupancy, is_uneven=is_uneven, epilogue_depth=epilogue_depth
    )
    alone = list(all_tiles(problem))
    if problem.on_lines or problem.batches > 1:
        return sorted(alone, key=time)
    along_n = [paired_along_n(one) for one in alone if gains_side_by_side(one, problem)]
    along_m = [paired_along_m(one) for one in alone if can_multicast_b(one, problem)]
    return sorted(along_n + along_m, key=time)


# --- skinny GEMMs, which are bound by memory --------------------------------------------------


def choose_skinny_config(
    problem: Problem, occupancy: Occupancy, fits: Fits = any_config
) -> TileConfig:
    """Return the tile config for an output no wider than a tile.

    If N is contiguous in B, a tile is a whole line of 64 columns wide.
    """

    def rows(config: TileConfig) -> int:
        """Return the rows that the busiest SM loads."""
        clusters = problem.batches * config.clusters(problem.m, problem.n)
        return -(-clusters // occupancy.sms) * config.block_m

    return min(filter(fits, skinny_tiles(problem)[:_NARROWEST]), key=rows)


# --- split-K, for few tiles and a long K ------------------------------------------------------

_MIN_K_BLOCKS = 4  # per split
_K_BLOCK_DEPTH = BLOCK_K_BYTES // 2  # 16-bit elements
_PARTIAL_BYTES = 4  # per accumulator


def _faster_with_split_k(
    problem: Problem, whole: TileConfig, occupancy: Occupancy, fits: Fits
) -> TileConfig:
    """Return the best split-K config if it is faster than ``whole``, else ``whole``."""
    known = coefficients()
    chosen, time = whole, _microseconds(problem, whole, occupancy)
    for ranked, microseconds, min_gain in (
        (ranked_split_k, _microseconds, known.split_k.min_gain),
        (ranked_over_grid, _grid_microseconds, known.grid.min_gain),
    ):
        best = next(filter(fits, ranked(problem, occupancy)), None)
        if best is None:
            continue
        best_time = microseconds(problem, best, occupancy)
        if time > min_gain * best_time:
            chosen, time = best, best_time
    return chosen


def ranked_split_k(problem: Problem, occupancy: Occupancy) -> list[TileConfig]:
    """Return the split-K configs whose CTAs all run at once, fastest first.

    None of them multicasts, because fewer large clusters are resident.
    """
    found = _split_k_configs(problem, occupancy)
    return sorted(found, key=lambda one: _microseconds(problem, one, occupancy))


def _split_k_configs(problem: Problem, occupancy: Occupancy) -> Iterator[TileConfig]:
    if problem.m_major:
        found = skinny_tiles(problem)[:_NARROWEST]
        if problem.n > SKINNY_LIMIT:
            # Two consumers with the same split_k take 1.02 to 1.8 times as long.
            found = [tile for tile in found if tile.consumers == 1]
    else:
        found = list(filter(_was_raced_split, all_tiles(problem)))
    for tile in found:
        clusters = problem.batches * tile.clusters(problem.m, problem.n)
        for split_k in SPLITS:
            if clusters * split_k > occupancy.sms or problem.k_blocks < _MIN_K_BLOCKS * split_k:
                break
            config = replace(tile, split_k=split_k)
            active = occupancy.max_active_clusters(config.cluster_size)
            if clusters <= active and config.holds_partials:
                yield config


def _microseconds(problem: Problem, config: TileConfig, occupancy: Occupancy) -> float:
    """Return the time for few tiles: `soft_max` of three bounds, plus the reduction."""
    numbers = coefficients().split_k
    k_bytes = problem.k_blocks * BLOCK_K_BYTES
    clusters = problem.batches * config.clusters(problem.m, problem.n)
    loads = clusters * (config.block_m * config.cluster + config.block_n) * k_bytes
    l2 = loads / (numbers.l2_bytes if config.split_k == 1 else numbers.l2_bytes_split)
    memory = problem.batches * (problem.m + problem.n) * k_bytes / numbers.memory_bytes
    waves = -(-clusters // occupancy.max_active_clusters(config.cluster_size))
    alone = _cta_microseconds(problem, config, waves)
    time = soft_max(alone, l2, memory)
    return time + _reduction(config, numbers)


def _cta_microseconds(problem: Problem, config: TileConfig, waves: int) -> float:
    """Return the time of a CTA that runs alone on the chip."""
    known = coefficients()
    k_blocks = -(-problem.k_blocks // config.split_k)
    loads = waves * k_blocks / config.stages * known.split_k.pipeline_fill
    if problem.m_major and problem.n <= SKINNY_LIMIT:
        return loads
    depth = k_blocks * _K_BLOCK_DEPTH
    multiplies = sm_time(known.gemm, config, depth, waves, on_lines=problem.on_lines)
    return max(loads, multiplies) if problem.m_major else multiplies


def _reduction(config: TileConfig, numbers: SplitKCoefficients) -> float:
    """Return the time of the reduction between the CTAs of a cluster."""
    if config.split_k == 1:
        return 0.0
    syncs = numbers.cluster_syncs + numbers.cluster_syncs_per_cta * config.split_k
    uneven = 0.0 if config.split_k & (config.split_k - 1) == 0 else numbers.uneven_cluster
    return syncs + config.partials_bytes / numbers.received_bytes + uneven


# --- split-K over the grid ----------------------------------------------------------------------

_NARROW_GROUP_TILES = 4  # 1024 x 1024 x 8192 takes 25.0 us with 4, 29.9 us with 16


def ranked_over_grid(problem: Problem, occupancy: Occupancy) -> list[TileConfig]:
    """Return tile configs of one wave, with or without split-K over the grid, fastest first."""
    found = _grid_configs(problem, occupancy)
    return sorted(found, key=lambda one: _grid_microseconds(problem, one, occupancy))


def _grid_configs(problem: Problem, occupancy: Occupancy) -> Iterator[TileConfig]:
    if problem.m_major or problem.batches > 1 or not problem.on_lines:
        return
    for whole in filter(_was_raced_over_grid, all_tiles(problem)):
        tile = replace(whole, group_m=_NARROW_GROUP_TILES) if whole.consumers == 1 else whole
        ctas = tile.clusters(problem.m, problem.n)
        most = min(occupancy.sms // ctas, problem.k_blocks // _MIN_K_BLOCKS)
        if most == 1 and ctas >= _MIN_CTAS and problem.k_blocks >= _MIN_UNSPLIT_K_BLOCKS:
            yield tile
        for split_k in range(max(2, most - 1), most + 1):
            if ctas * split_k >= _MIN_CTAS:
                yield replace(tile, split_k=split_k, over_grid=True)


def _grid_microseconds(problem: Problem, config: TileConfig, occupancy: Occupancy) -> float:
    """Return the time of one wave: `soft_max` of three bounds, plus the combine kernel."""
    numbers = coefficients().grid
    k_blocks = -(-problem.k_blocks // config.split_k)
    alone = k_blocks * numbers.k_block[config.consumers, config.block_n]
    k_bytes = problem.k_blocks * BLOCK_K_BYTES
    tiles = config.clusters(problem.m, problem.n)
    l2 = tiles * (config.block_m + config.block_n) * k_bytes / numbers.l2_bytes
    memory = (problem.m + problem.n) * k_bytes / numbers.memory_bytes
    time = numbers.fill + soft_max(alone, l2, memory)
    if not config.over_grid:
        return time
    partials = config.split_k * problem.m * problem.n * _PARTIAL_BYTES
    return time + numbers.combine + partials / numbers.combined_bytes


# --- candidates for tuning ---------------------------------------------------------------------

_BEST = 10


def candidates(problem: Problem, occupancy: Occupancy) -> list[TileConfig]:
    """Return the best tiles, alone and in pairs, in groups of several sizes, and with split-K."""
    whole = skinny_tiles(problem) if problem.m_major else _whole_candidates(problem, occupancy)
    found = (
        *whole,
        *ranked_split_k(problem, occupancy)[:RACED_SPLITS],
        *ranked_over_grid(problem, occupancy)[:RACED_SPLITS],
    )
    return list(dict.fromkeys(config for config in found if is_legal(config, problem)))


def _whole_candidates(problem: Problem, occupancy: Occupancy) -> Iterator[TileConfig]:
    for tile in ranked_configs(problem, occupancy)[:_BEST]:
        clustered = [replace(tile, cluster=size, side_by_side=False) for size in CLUSTERS]
        if tile.block_m > tile.block_n:
            clustered.append(paired_along_n(tile))
        for config in clustered:
            rows = -(-problem.m // config.cluster_rows)
            for smaller, group_m in zip((0, *RACED_GROUPS), RACED_GROUPS, strict=False):
                # All groups that hold all rows give the same rasterisation order.
                if rows > smaller:
                    yield replace(config, group_m=group_m)


# --- grouped_gemm.cu --------------------------------------------------------------------------


def choose_grouped_config(rows: Problem, occupancy: Occupancy) -> TileConfig:
    """Return the tile config for groups of which only the total rows are known.

    If groups have at most `SKINNY_LIMIT` rows on average, swap AB, with tiles as wide as twice the
    average, because few groups are larger. ``rows`` describes all groups as one GEMM; its
    ``batches`` is the number of groups.
    """
    average = -(-rows.m // rows.batches)
    if average <= SKINNY_LIMIT:
        width = min(2 * average, SKINNY_LIMIT)
        # After swap AB the kernel's B is A, which is K-major.
        transposed = rows._replace(m=rows.n, n=width, layout="nt", m_major=True)
        return choose_skinny_config(transposed, occupancy)
    mean = rows._replace(m=average)
    return choose_config(mean, occupancy, is_uneven=True, fits=_was_raced_grouped)


# --- scaled_gemm.cu: waves of tiles, by throughput ---------------------------------------------

_Config = TypeVar("_Config", bound=TileConfig)

# 128 x 256 tiles of a block-scaled GEMM are 0.99 to 1.03 times as fast alone as in pairs that
# multicast B, with groups of the same rows (H200, 2026-11-23).
_ALONE_GROUP = 16


def _of_least_time(
    throughput: Mapping[_Config, float], m: int, n: int, occupancy: Occupancy
) -> _Config:
    """Return the fastest config, by a measure that is proportional to the time."""

    def waves_of_work(config: _Config) -> float:
        waves = -(-config.clusters(m, n) // occupancy.sms)
        return waves * config.block_m * config.block_n / throughput[config]

    return min(throughput, key=waves_of_work)


def paired_in_many_waves(config: _Config, m: int, n: int, occupancy: Occupancy) -> _Config:
    """Return the config in pairs that multicast B, if it has more than a few waves."""
    waves_to_share = coefficients().multicast.waves_to_share
    shares = config.clusters(m, n) > waves_to_share * occupancy.sms
    return replace(config, cluster=2) if shares else config


def choose_scaled_config(
    m: int, n: int, occupancy: Occupancy, *, column_scales: bool
) -> ScaledTileConfig:
    """Return the fastest tile config of a block-scaled GEMM."""
    numbers = coefficients().scaled

    def skinny_time(shape: tuple[int, int]) -> float:
        tiles = ScaledTileConfig(*shape).clusters(m, n)
        return -(-tiles // occupancy.sms) * numbers.skinny_time[shape]

    if m <= numbers.max_skinny_rows:
        # No multicast: the CTAs would wait for each other.
        shape = min(numbers.skinny_time, key=skinny_time)
        return ScaledTileConfig(*shape, column_scales=column_scales)
    throughput = {
        ScaledTileConfig(*shape, column_scales=column_scales): share
        for shape, share in numbers.throughput.items()
    }
    best = _of_least_time(throughput, m, n, occupancy)
    if best.block_n == WIDE_SCALED:
        return replace(best, group_m=_ALONE_GROUP)
    return paired_in_many_waves(best, m, n, occupancy)


def ranked_scaled_config(
    m: int, n: int, occupancy: Occupancy, *, column_scales: bool, shares_device: bool
) -> ScaledTileConfig:
    """Return the tile config of a block-scaled GEMM whose CTAs wait for other ranks.

    Ranks that share a device get no clusters, as in `ranked_config`.
    """
    config = choose_scaled_config(m, n, occupancy, column_scales=column_scales)
    return replace(config, cluster=1) if shares_device else config


# --- tile configs that were raced for a use: about others the model knows too little ------------

_SPLIT_WIDTHS = (64, 128, 256)  # columns: benchmarks/bench_split.py --sweep, H200, 2026-11-21
_MAX_CONSUMERS = 2  # of split-K, and of groups

# The range of benchmarks/bench_split.py --sweep (H200, 2026-11-23) for split-K over the grid: one
# wave of CTAs that nearly fills the 132 SMs, and without split-K a K of this many blocks.
_MIN_CTAS = 96
_MIN_UNSPLIT_K_BLOCKS = 64


def _was_raced_split(config: TileConfig) -> bool:
    """Return whether the config was raced with split-K in a cluster."""
    is_known = config.block_n in _SPLIT_WIDTHS and config.consumers <= _MAX_CONSUMERS
    return is_known and not config.ping_pong


def _was_raced_over_grid(config: TileConfig) -> bool:
    """Return whether the config was raced in one wave, with and without split-K over the grid."""
    is_known = (config.consumers, config.block_n) in coefficients().grid.k_block
    return is_known and is_usual(config)


def _was_raced_grouped(config: TileConfig) -> bool:
    """Return whether the config was raced for a grouped GEMM."""
    is_alone = not (config.ping_pong or config.side_by_side)
    return is_alone and config.consumers <= _MAX_CONSUMERS
