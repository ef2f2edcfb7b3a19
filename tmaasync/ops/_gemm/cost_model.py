"""Cost models that choose the tile config of a GEMM; nothing is measured in the call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from tmaasync._tile.window import Window
from tmaasync.ops._gemm.coefficients import GemmCoefficients, SplitKCoefficients, coefficients
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
    SPLITS,
    Fits,
    Problem,
    all_tiles,
    any_config,
    can_multicast_b,
    gains_side_by_side,
    has_large_consumers,
    is_legal,
    is_usual,
    paired_along_m,
    paired_along_n,
    skinny_tiles,
)

__all__ = [
    "busiest_sm_work",
    "candidates",
    "choose_channels_per_box",
    "choose_config",
    "choose_conv2d_config",
    "choose_fold",
    "choose_grouped_config",
    "choose_scaled_config",
    "choose_skinny_config",
    "default_config",
    "loads_per_multiply_add",
    "ranked_configs",
    "ranked_split_k",
]

_MIN_TILES_TO_SHARE = 4  # along M, of many GEMMs: the second of the last pair may have no rows
_LARGE_TILE = 1 / 128 + 1 / 256  # elements loaded for a multiply-add
_NARROWEST = 2  # of the tiles of a skinny GEMM: with one consumer and with two


def default_config(
    problem: Problem, occupancy: Occupancy, fits: Fits = any_config, epilogue_depth: int = 0
) -> TileConfig:
    """Return the cost models' choice for gemm.cu; K is split where that is faster.

    Takes the arguments of `choose_config`.
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
    """Return the tile config of least time without split-K: the first of `ranked_configs`.

    In many waves pairs of CTAs multicast what they share, unless they are ping-pong; in few, they
    would only wait for each other. Where rows are not ``on_lines``, pairs always do.

    Args:
        problem: The GEMM, or the batch of them.
        occupancy: SMs and max active clusters of the device.
        is_uneven: Whether ``problem.m`` is only a mean over the batches: the last row of tiles of
            each is then half empty.
        epilogue_depth: As how much of K the epilogue of a tile counts, before the stores.
        fits: Whether a tile config is allowed.
    """
    numbers = coefficients(occupancy.chip).gemm
    m, n, count = problem.m, problem.n, problem.batches
    found = ranked_configs(problem, occupancy, is_uneven=is_uneven, epilogue_depth=epilogue_depth)
    best = next(filter(fits, found))
    is_alone = best.ping_pong or (count > 1 and -(-m // best.block_m) < _MIN_TILES_TO_SHARE)
    if best.cluster > 1 or is_alone:
        return best
    waves = count * best.clusters(m, n) / occupancy.sms
    if waves > numbers.waves_to_share_a and gains_side_by_side(best, problem):
        pair = paired_along_n(best)
        active = occupancy.max_active_clusters(pair.cluster_size)
        if fits(pair) and count * pair.clusters(m, n) <= math.ceil(waves) * active:
            return pair
    shares = waves > numbers.waves_to_share_b and can_multicast_b(best, problem)
    pair = paired_along_m(best)
    return pair if shares and fits(pair) else best


def ranked_configs(
    problem: Problem, occupancy: Occupancy, *, is_uneven: bool = False, epilogue_depth: int = 0
) -> list[TileConfig]:
    """Return all tile configs by their time, the shortest first; in pairs where not ``on_lines``.

    The time is the longer of two. At the full clock it is the time of the busiest SM, `_sm_time`.
    Under the power limit the energy of all multiply-adds counts most, and the busiest SM less:
    `_power_limited_time`. Takes the arguments of `choose_config`.
    """
    m, n, k, count, on_lines = problem.m, problem.n, problem.k, problem.batches, problem.on_lines
    numbers = coefficients(occupancy.chip).gemm

    def time(config: TileConfig) -> float:
        rows = m + config.block_m // 2 if is_uneven else m
        clusters = count * config.clusters(rows, n)
        waves = -(-clusters // occupancy.max_active_clusters(config.cluster_size))
        alone = _sm_time(
            numbers, config, k, waves, on_lines=on_lines, epilogue_depth=epilogue_depth
        )
        even = count * m * n * k / occupancy.sms
        return max(alone, _power_limited_time(numbers, config, k, waves, even, epilogue_depth))

    alone = list(all_tiles(problem))
    if on_lines or count > 1:
        return sorted(alone, key=time)
    along_n = [paired_along_n(one) for one in alone if gains_side_by_side(one, problem)]
    along_m = [paired_along_m(one) for one in alone if can_multicast_b(one, problem)]
    return sorted(along_n + along_m, key=time)


def _sm_time(
    numbers: GemmCoefficients,
    config: TileConfig,
    k: int,
    waves: int,
    *,
    on_lines: bool,
    epilogue_depth: int = 0,
) -> float:
    """Return the time of a tile in each wave on one SM, in multiply-adds at its peak.

    Each wave takes ``block_m x block_n x k`` at the throughput that its loads allow. The first
    loads and the last stores, which nothing overlaps, count as ``exposed_depth`` elements of K, a
    tile whose columns are stored in narrow boxes as ``store_depth`` more.
    """
    area = config.block_m * config.block_n
    depth = waves * (k + numbers.store_depth[config.store_bytes]) + numbers.exposed_depth
    depth += _exposed_stores(config, waves) * epilogue_depth
    return depth * area / _throughput(numbers, config, on_lines=on_lines)


def _power_limited_time(
    numbers: GemmCoefficients,
    config: TileConfig,
    k: int,
    waves: int,
    even: float,
    epilogue_depth: int,
) -> float:
    """Return the time where power is short; ``even`` are the multiply-adds of an SM on average.

    The more SMs work at a time, the lower is the clock that the power allows.
    """
    busiest = busiest_sm_work(numbers, config, k, waves, epilogue_depth)
    more = loads_per_multiply_add(config) - _LARGE_TILE
    energy = numbers.multiply_add_energy * (1 + numbers.loads_to_energy * more)
    if has_large_consumers(config):
        energy /= numbers.large_consumers
    exponent = numbers.busiest_exponent
    return energy * math.pow(busiest, exponent) * math.pow(even, 1 - exponent)


def busiest_sm_work(
    numbers: GemmCoefficients, config: TileConfig, k: int, waves: int, epilogue_depth: int = 0
) -> float:
    """Return the busiest SM's multiply-adds, plus exposed stores in the same unit."""
    exposed = numbers.exposed_store_depth + numbers.store_depth[config.store_bytes] + epilogue_depth
    depth = waves * k + _exposed_stores(config, waves) * exposed
    return depth * config.block_m * config.block_n


def _exposed_stores(config: TileConfig, waves: int) -> int:
    """Return how many of its tiles an SM stores while it multiplies nothing."""
    return 1 if config.ping_pong else waves


def loads_per_multiply_add(config: TileConfig) -> float:
    return 1 / config.block_m + 1 / config.block_n


def _throughput(numbers: GemmCoefficients, config: TileConfig, *, on_lines: bool) -> float:
    """Return the share of the tensor cores' peak: small tiles load more for their work.

    (consumers, columns) of 64 rows: (2, 256) 1.0, (2, 128) 0.96, (1, 256) 0.91, (1, 128) 0.85, (1,
    64) 0.7.
    """
    if on_lines:
        loaded = loads_per_multiply_add(config)
    else:
        rows = config.block_m * config.b_multicast
        columns = config.block_n * config.a_multicast
        loaded = 2 * (1 / rows + 1 / columns)
    more = max(0.0, loaded - _LARGE_TILE)
    linear, square = numbers.loads_to_time
    share = max(0.05, 1 - linear * more - square * more * more)
    return share if is_usual(config) else numbers.large_consumers * share


# --- skinny GEMMs: memory bounds them ---------------------------------------------------------


def choose_skinny_config(
    problem: Problem, occupancy: Occupancy, fits: Fits = any_config
) -> TileConfig:
    """Return the tile config of an output no wider than `SKINNY_LIMIT`.

    Where N is contiguous in B, it takes a whole line of 64.
    """

    def rows(config: TileConfig) -> int:
        """Return those that the busiest SM loads."""
        clusters = problem.batches * config.clusters(problem.m, problem.n)
        return -(-clusters // occupancy.sms) * config.block_m

    return min(filter(fits, skinny_tiles(problem)[:_NARROWEST]), key=rows)


# --- split-K: few tiles of a long K -----------------------------------------------------------

# Tiles that were raced; about others the cost model knows too little.
_SPLIT_WIDTHS = (64, 128, 256)
_MAX_SPLIT_CONSUMERS = 2
_MIN_K_BLOCKS = 4  # of a split
_K_BLOCK_DEPTH = 64  # 16-bit elements


def _faster_with_split_k(
    problem: Problem, whole: TileConfig, occupancy: Occupancy, fits: Fits
) -> TileConfig:
    """Return the best tile config with split-K where that is faster than this one, else this."""
    best = next(filter(fits, ranked_split_k(problem, occupancy)), None)
    if best is None:
        return whole
    times = [_microseconds(problem, one, occupancy) for one in (whole, best)]
    return best if times[0] > coefficients(occupancy.chip).split_k.min_gain * times[1] else whole


def ranked_split_k(problem: Problem, occupancy: Occupancy) -> list[TileConfig]:
    """Return tile configs with split-K whose CTAs all run at once, by their time.

    None of them multicasts: larger clusters find less room.
    """
    found = _split_k_configs(problem, occupancy)
    return sorted(found, key=lambda one: _microseconds(problem, one, occupancy))


def _split_k_configs(problem: Problem, occupancy: Occupancy) -> Iterator[TileConfig]:
    if problem.m_major:
        found = skinny_tiles(problem)[:_NARROWEST]
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


def _was_raced_split(tile: TileConfig) -> bool:
    is_known = tile.block_n in _SPLIT_WIDTHS and tile.consumers <= _MAX_SPLIT_CONSUMERS
    return is_known and not tile.ping_pong


def _microseconds(problem: Problem, config: TileConfig, occupancy: Occupancy) -> float:
    """Return the time of few tiles: a soft maximum of three bounds, and the reduction."""
    numbers = coefficients(occupancy.chip).split_k
    k_bytes = problem.k_blocks * BLOCK_K_BYTES
    clusters = problem.batches * config.clusters(problem.m, problem.n)
    loads = clusters * (config.block_m * config.cluster + config.block_n) * k_bytes
    l2 = loads / (numbers.l2_bytes if config.split_k == 1 else numbers.l2_bytes_split)
    memory = problem.batches * (problem.m + problem.n) * k_bytes / numbers.memory_bytes
    waves = -(-clusters // occupancy.max_active_clusters(config.cluster_size))
    alone = _cta_microseconds(problem, config, waves, occupancy.chip)
    return math.sqrt(math.hypot(alone**2, l2**2, memory**2)) + _reduction(config, numbers)


def _cta_microseconds(problem: Problem, config: TileConfig, waves: int, chip: str) -> float:
    """Return the time of a CTA that has the chip for itself."""
    known = coefficients(chip)
    k_blocks = -(-problem.k_blocks // config.split_k)
    if problem.m_major:
        return waves * k_blocks / config.stages * known.split_k.pipeline_fill
    time = _sm_time(known.gemm, config, k_blocks * _K_BLOCK_DEPTH, waves, on_lines=problem.on_lines)
    return time / known.split_k.multiply_adds


def _reduction(config: TileConfig, numbers: SplitKCoefficients) -> float:
    """Return the time in which the CTAs of a cluster add up each other's accumulators."""
    if config.split_k == 1:
        return 0.0
    syncs = numbers.cluster_syncs + numbers.cluster_syncs_per_cta * config.split_k
    uneven = 0.0 if config.split_k & (config.split_k - 1) == 0 else numbers.uneven_cluster
    return syncs + config.partials_bytes / numbers.received_bytes + uneven


# --- candidates of tuning ----------------------------------------------------------------------

_GROUPS = (4, 8, 16)
_BEST = 10
_BEST_SPLIT_K = 6


def candidates(problem: Problem, occupancy: Occupancy) -> list[TileConfig]:
    """Return the best tiles, alone and in pairs, in groups of several sizes, and with split-K."""
    whole = skinny_tiles(problem) if problem.m_major else _whole_candidates(problem, occupancy)
    found = (*whole, *ranked_split_k(problem, occupancy)[:_BEST_SPLIT_K])
    return list(dict.fromkeys(config for config in found if is_legal(config, problem)))


def _whole_candidates(problem: Problem, occupancy: Occupancy) -> Iterator[TileConfig]:
    for tile in ranked_configs(problem, occupancy)[:_BEST]:
        clustered = [replace(tile, cluster=size, side_by_side=False) for size in CLUSTERS]
        if tile.block_m > tile.block_n:
            clustered.append(paired_along_n(tile))
        for config in clustered:
            rows = -(-problem.m // config.cluster_rows)
            for smaller, group_m in zip((0, *_GROUPS), _GROUPS, strict=False):
                # Groups that hold all rows have the same rasterisation order.
                if rows > smaller:
                    yield replace(config, group_m=group_m)


# --- grouped_gemm.cu --------------------------------------------------------------------------

_MAX_GROUPED_CONSUMERS = 2


def choose_grouped_config(rows: Problem, occupancy: Occupancy) -> TileConfig:
    """Return the tile config for groups of which only all their rows together are known.

    Up to `SKINNY_LIMIT` rows a group on average swap AB, with tiles as wide as a group of
    twice the average, since few groups have more. ``rows`` are all groups as one GEMM, whose
    ``batches`` are the groups.
    """
    average = -(-rows.m // rows.batches)
    if average <= SKINNY_LIMIT:
        width = min(2 * average, SKINNY_LIMIT)
        # After swap AB the kernel's B is A, whose rows are K-major.
        transposed = rows._replace(m=rows.n, n=width, layout="nt", m_major=True)
        return choose_skinny_config(transposed, occupancy)
    mean = rows._replace(m=average)
    return choose_config(mean, occupancy, is_uneven=True, fits=_was_raced_grouped)


def _was_raced_grouped(config: TileConfig) -> bool:
    is_usual = not (config.ping_pong or config.side_by_side)
    return is_usual and config.consumers <= _MAX_GROUPED_CONSUMERS


# --- scaled_gemm.cu and conv2d.cu: waves of tiles, by throughput ---------------------------

_Config = TypeVar("_Config", bound=TileConfig)

# Tiles of 128 x 256 of a block-scaled GEMM are 0.99 to 1.03 times as fast alone as in pairs that
# multicast B, in groups of as many rows (H200, 2026-11-23, probe in docs/notes/fp8.md).
_ALONE_GROUP = 16


def _of_least_time(
    throughput: Mapping[_Config, float], m: int, n: int, occupancy: Occupancy
) -> _Config:
    """Return the config of least time: waves of tiles, times work of a tile over throughput."""

    def time(config: _Config) -> float:
        waves = -(-config.clusters(m, n) // occupancy.sms)
        return waves * config.block_m * config.block_n / throughput[config]

    return min(throughput, key=time)


def _paired(config: _Config, m: int, n: int, occupancy: Occupancy) -> _Config:
    """Return the config in pairs that multicast B where it has more than a few waves."""
    waves_to_share = coefficients(occupancy.chip).multicast.waves_to_share
    shares = config.clusters(m, n) > waves_to_share * occupancy.sms
    return replace(config, cluster=2) if shares else config


def choose_scaled_config(
    m: int, n: int, occupancy: Occupancy, *, column_scales: bool
) -> ScaledTileConfig:
    """Return the tile config of least time of a block-scaled GEMM."""
    numbers = coefficients(occupancy.chip).scaled

    def skinny_time(shape: tuple[int, int]) -> float:
        tiles = ScaledTileConfig(*shape).clusters(m, n)
        return -(-tiles // occupancy.sms) * numbers.skinny_time[shape]

    if m <= numbers.max_skinny_rows:
        # CTAs that multicast would wait for each other.
        shape = min(numbers.skinny_time, key=skinny_time)
        return ScaledTileConfig(*shape, column_scales=column_scales)
    throughput = {
        ScaledTileConfig(*shape, column_scales=column_scales): share
        for shape, share in numbers.throughput.items()
    }
    best = _of_least_time(throughput, m, n, occupancy)
    if best.block_n == WIDE_SCALED:
        return replace(best, group_m=_ALONE_GROUP)
    return _paired(best, m, n, occupancy)


def choose_conv2d_config(
    m: int, k: int, occupancy: Occupancy, activation: str = "none"
) -> TileConfig:
    """Return the tile config of least time for ``m`` output pixels and ``k`` filters.

    Tiles that reach beyond the last filter or pixel cost as much as whole ones, so 320, 640 or
    1280 filters take tiles of 160 columns.
    """
    numbers = coefficients(occupancy.chip).conv2d
    throughput = {
        TileConfig(consumers, block_n, rows=rows): share
        for (consumers, rows, block_n), share in numbers.throughput.items()
        if (activation, consumers, rows, block_n) not in numbers.spilling
    }
    return _paired(_of_least_time(throughput, m, k, occupancy), m, k, occupancy)


def choose_channels_per_box(channels: int) -> int:
    """Return the channels of a box of patches: few zeros after the last, or few loads.

    >>> [choose_channels_per_box(channels) for channels in (8, 16, 24, 32, 40, 64, 72, 96, 320)]
    [16, 16, 32, 32, 64, 64, 32, 32, 64]
    """
    cost = coefficients().conv2d.box_cost
    return min(cost, key=lambda box: _time_of_tap(channels, box))


def _time_of_tap(channels: int, box: int) -> float:
    return -(-channels // box) * box * coefficients().conv2d.box_cost[box]


def choose_fold(images: Sequence[int], window: Window) -> int:
    """Return how many neighbouring pixels of a row to load as one of more channels, or 1.

    They fill a box, and divide the rows and the stride.

    >>> from tmaasync._tile.window import window_of
    >>> choose_fold((128, 224, 224, 8), window_of(2, (7, 7), 2, 1, 3))
    2
    >>> choose_fold((128, 224, 224, 8), window_of(2, (7, 7), 1, 1, 3))
    1
    """
    wide, channels = images[2:]
    if window.dilations[1] != 1:
        return 1
    time = {1: window.taps[1] * _time_of_tap(channels, choose_channels_per_box(channels))}
    for box in coefficients().conv2d.box_cost:
        fold = box // channels
        is_whole = fold > 1 and fold * channels == box
        if is_whole and wide % fold == 0 and window.strides[1] % fold == 0:
            time[fold] = window.folded(wide, fold).taps[1] * _time_of_tap(box, box)
    return min(time, key=lambda fold: time[fold])
