"""Cost models that choose the tile config of a GEMM; nothing is measured in the call.

Their numbers are in h200.toml, with unit, script and date of each.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from tmaasync._elements import element
from tmaasync.ops._gemm.config import (
    BLOCK_K_BYTES,
    SKINNY_LIMIT,
    Occupancy,
    ScaledTileConfig,
    TileConfig,
)

__all__ = [
    "COEFFICIENTS",
    "CONSUMER_LAYOUTS",
    "SKINNY_WIDTHS",
    "SPLITS",
    "Coefficients",
    "Fits",
    "Problem",
    "busiest_sm_work",
    "candidates",
    "choose_channels_per_box",
    "choose_config",
    "choose_conv2d_config",
    "choose_grouped_config",
    "choose_scaled_config",
    "choose_skinny_config",
    "coefficients",
    "default_config",
    "has_large_consumers",
    "is_legal",
    "loads_per_multiply_add",
    "paired_along_m",
    "paired_along_n",
    "ranked_configs",
    "ranked_split_k",
]

# --- the numbers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class GemmCoefficients:
    loads_to_time: tuple[float, float]
    exposed_depth: int
    store_depth: Mapping[int, int]
    large_consumers: float
    busiest_exponent: float
    multiply_add_energy: float
    loads_to_energy: float
    exposed_store_depth: int
    waves_to_share_b: int
    waves_to_share_a: int


@dataclass(frozen=True)
class SplitKCoefficients:
    multiply_adds: float
    memory_bytes: float
    l2_bytes: float
    l2_bytes_split: float
    pipeline_fill: float
    cluster_syncs: float
    cluster_syncs_per_cta: float
    received_bytes: float
    uneven_cluster: float
    min_gain: float


@dataclass(frozen=True)
class EpilogueCoefficients:
    bias_depth: int
    addend_depth: int
    activation_depth: Mapping[str, int]
    min_ping_pong_columns: int
    widest: Mapping[tuple[int, int], int]
    widest_dividing: Mapping[tuple[int, int], int]
    widest_gelu_row_bias: Mapping[tuple[int, int], int]
    spilling_dividing: Mapping[tuple[int, int], bool]
    spilling_gelu_addend: Mapping[tuple[int, int], bool]


@dataclass(frozen=True)
class ScaledCoefficients:
    throughput: Mapping[tuple[int, int], float]
    max_skinny_rows: int
    skinny_time: Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Conv2dCoefficients:
    throughput: Mapping[tuple[int, int, int], float]
    spilling: Mapping[tuple[str, int, int, int], bool]
    box_cost: Mapping[int, float]


@dataclass(frozen=True)
class MulticastCoefficients:
    waves_to_share: int


@dataclass(frozen=True)
class Coefficients:
    """The numbers of a chip, section by section; the file has the units."""

    gemm: GemmCoefficients
    split_k: SplitKCoefficients
    epilogue: EpilogueCoefficients
    scaled: ScaledCoefficients
    conv2d: Conv2dCoefficients
    multicast: MulticastCoefficients

    @classmethod
    def read(cls, path: Path) -> Coefficients:
        """Read a file; each section has the entries of its class and no others."""
        sections = tomllib.loads(path.read_text())
        return cls(
            **{
                name: section(**{key: _value(entry) for key, entry in sections[name].items()})
                for name, section in get_type_hints(cls).items()
            }
        )


def _value(entry: Mapping[str, Any]) -> Any:
    """Return a number, or a table by the columns before its last."""
    value = entry["value"]
    if "columns" in entry:
        return {row[0] if len(row) == 2 else tuple(row[:-1]): row[-1] for row in value}
    return tuple(value) if isinstance(value, list) else value


COEFFICIENTS = Path(__file__).with_name("h200.toml")
"""Numbers of an H200, the only chip that was fitted; others are taken to be like it."""


@functools.cache
def coefficients() -> Coefficients:
    return Coefficients.read(COEFFICIENTS)


# --- the problem ------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A GEMM as the kernel computes it, after swap AB and staging.

    ``layout`` has a letter for each operand: ``n`` where it is stored as it is written, [M, K]
    or [K, N] with the last side contiguous, and ``t`` where its transpose is. ``on_lines`` says
    whether the rows of both start on 128-byte lines of L2: where they do not, every row of a box
    takes two requests.
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


def _any_config(_: TileConfig) -> bool:
    return True


def default_config(
    problem: Problem, occupancy: Occupancy, fits: Fits = _any_config, epilogue_depth: int = 0
) -> TileConfig:
    """Return the cost models' choice for gemm.cu; K is split where that is faster.

    Takes the arguments of `choose_config`.
    """
    if problem.m_major:
        whole = choose_skinny_config(problem, occupancy, fits)
    else:
        whole = choose_config(problem, occupancy, epilogue_depth=epilogue_depth, fits=fits)
    return _faster_with_split_k(problem, whole, occupancy, fits)


# --- the tiles that gemm.cu has ---------------------------------------------------------------


class ConsumerLayout(NamedTuple):
    """The number of consumer warpgroups, and their shares of a CTA tile."""

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
"""All that the kernel has; the first of equals is taken."""

SKINNY_WIDTHS = (8, 16, 32, 64)
"""How wide the tiles of a skinny GEMM may be."""

_NARROWEST = 2  # of the tiles of a skinny GEMM: with one consumer and with two
_LINE_COLUMNS = 64  # columns of B that a line holds where N is contiguous
_WIDTH_STEP = 16  # columns that one store writes at least: 32 bytes of 16-bit elements
_GROUP_TILES = 16  # along M before the next column of tiles (L2 swizzle)
_LARGE_TILE = 1 / 128 + 1 / 256  # elements loaded for a multiply-add
_TALL_FROM = 128  # rows of output; of fewer the smaller tiles are taken among equals
_USUAL_ROWS = 64
_MIN_TILES_TO_SHARE = 4  # along M, of many GEMMs: the second of the last pair may have no rows


def _legal_widths(widest: int, problem: Problem) -> range:
    """Return the columns that a tile can have; where N is contiguous in B, whole lines of 64."""
    step = _WIDTH_STEP if problem.b_is_k_major else _LINE_COLUMNS
    return range(step, widest + 1, step)


def _can_multicast_b(config: TileConfig, problem: Problem) -> bool:
    """Whether two CTAs can each load half of the columns: whole boxes of B for each."""
    return config.block_n % (_WIDTH_STEP if problem.b_is_k_major else 2 * _LINE_COLUMNS) == 0


def _can_multicast_a(config: TileConfig, problem: Problem) -> bool:
    """Whether two CTAs can each load half of the rows: whole boxes of A for each."""
    return problem.a_is_k_major or config.block_m % (2 * _LINE_COLUMNS) == 0


def _tiles(problem: Problem) -> Iterator[TileConfig]:
    """Yield all tiles of the kernel, the usual ones first."""
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


def _gains_side_by_side(config: TileConfig, problem: Problem) -> bool:
    """Whether multicasting A shares the longer side of the tiles, and can be done."""
    is_tall = config.block_m > config.block_n and not config.ping_pong
    return is_tall and _can_multicast_a(config, problem)


def _is_usual(config: TileConfig) -> bool:
    return config.consumers <= 2 and config.rows == _USUAL_ROWS


def has_large_consumers(config: TileConfig) -> bool:
    """Whether there are three consumers, or two of 128 rows that cooperate."""
    return not (_is_usual(config) or config.ping_pong)


# --- gemm.cu: the time at the full clock, and under the power limit ---------------------------


def choose_config(
    problem: Problem,
    occupancy: Occupancy,
    *,
    is_uneven: bool = False,
    epilogue_depth: int = 0,
    fits: Fits = _any_config,
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
    numbers = coefficients().gemm
    m, n, count = problem.m, problem.n, problem.batches
    found = ranked_configs(problem, occupancy, is_uneven=is_uneven, epilogue_depth=epilogue_depth)
    best = next(filter(fits, found))
    is_alone = best.ping_pong or (count > 1 and -(-m // best.block_m) < _MIN_TILES_TO_SHARE)
    if best.cluster > 1 or is_alone:
        return best
    waves = count * best.clusters(m, n) / occupancy.sms
    if waves > numbers.waves_to_share_a and _gains_side_by_side(best, problem):
        pair = paired_along_n(best)
        active = occupancy.max_active_clusters(pair.cluster_size)
        if fits(pair) and count * pair.clusters(m, n) <= math.ceil(waves) * active:
            return pair
    shares = waves > numbers.waves_to_share_b and _can_multicast_b(best, problem)
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

    def time(config: TileConfig) -> float:
        rows = m + config.block_m // 2 if is_uneven else m
        clusters = count * config.clusters(rows, n)
        waves = -(-clusters // occupancy.max_active_clusters(config.cluster_size))
        alone = _sm_time(config, k, waves, on_lines=on_lines, epilogue_depth=epilogue_depth)
        even = count * m * n * k / occupancy.sms
        return max(alone, _power_limited_time(config, k, waves, even, epilogue_depth))

    alone = list(_tiles(problem))
    if on_lines or count > 1:
        return sorted(alone, key=time)
    along_n = [paired_along_n(one) for one in alone if _gains_side_by_side(one, problem)]
    along_m = [paired_along_m(one) for one in alone if _can_multicast_b(one, problem)]
    return sorted(along_n + along_m, key=time)


def _sm_time(
    config: TileConfig, k: int, waves: int, *, on_lines: bool, epilogue_depth: int = 0
) -> float:
    """Return the time of a tile in each wave on one SM, in multiply-adds at its peak.

    Each wave takes ``block_m x block_n x k`` at the throughput that its loads allow. The first
    loads and the last stores, which nothing overlaps, count as ``exposed_depth`` elements of K, a
    tile whose columns are stored in narrow boxes as ``store_depth`` more.
    """
    numbers = coefficients().gemm
    area = config.block_m * config.block_n
    depth = waves * (k + numbers.store_depth[config.store_bytes]) + numbers.exposed_depth
    depth += _exposed_stores(config, waves) * epilogue_depth
    return depth * area / _throughput(config, on_lines=on_lines)


def _power_limited_time(
    config: TileConfig, k: int, waves: int, even: float, epilogue_depth: int
) -> float:
    """Return the time where power is short; ``even`` are the multiply-adds of an SM on average.

    The more SMs work at a time, the lower is the clock that the power allows.
    """
    numbers = coefficients().gemm
    busiest = busiest_sm_work(config, k, waves, numbers.exposed_store_depth + epilogue_depth)
    more = loads_per_multiply_add(config) - _LARGE_TILE
    energy = numbers.multiply_add_energy * (1 + numbers.loads_to_energy * more)
    if has_large_consumers(config):
        energy /= numbers.large_consumers
    exponent = numbers.busiest_exponent
    return energy * math.pow(busiest, exponent) * math.pow(even, 1 - exponent)


def busiest_sm_work(config: TileConfig, k: int, waves: int, exposed_store_depth: float) -> float:
    """Return the busiest SM's multiply-adds, plus exposed stores in the same unit."""
    store_depth = coefficients().gemm.store_depth[config.store_bytes]
    depth = waves * k + _exposed_stores(config, waves) * (exposed_store_depth + store_depth)
    return depth * config.block_m * config.block_n


def _exposed_stores(config: TileConfig, waves: int) -> int:
    """Return how many of its tiles an SM stores while it multiplies nothing."""
    return 1 if config.ping_pong else waves


def loads_per_multiply_add(config: TileConfig) -> float:
    return 1 / config.block_m + 1 / config.block_n


def _throughput(config: TileConfig, *, on_lines: bool) -> float:
    """Return the share of the tensor cores' peak: small tiles load more for their work.

    (consumers, columns) of 64 rows: (2, 256) 1.0, (2, 128) 0.96, (1, 256) 0.91, (1, 128) 0.85, (1,
    64) 0.7.
    """
    numbers = coefficients().gemm
    if on_lines:
        loaded = loads_per_multiply_add(config)
    else:
        rows = config.block_m * config.b_multicast
        columns = config.block_n * config.a_multicast
        loaded = 2 * (1 / rows + 1 / columns)
    more = max(0.0, loaded - _LARGE_TILE)
    linear, square = numbers.loads_to_time
    share = max(0.05, 1 - linear * more - square * more * more)
    return share if _is_usual(config) else numbers.large_consumers * share


# --- skinny GEMMs: memory bounds them ---------------------------------------------------------


def choose_skinny_config(
    problem: Problem, occupancy: Occupancy, fits: Fits = _any_config
) -> TileConfig:
    """Return the tile config of an output no wider than `SKINNY_LIMIT`.

    Where N is contiguous in B, it takes a whole line of 64.
    """

    def rows(config: TileConfig) -> int:
        """Return those that the busiest SM loads."""
        clusters = problem.batches * config.clusters(problem.m, problem.n)
        return -(-clusters // occupancy.sms) * config.block_m

    return min(filter(fits, _skinny_tiles(problem)[:_NARROWEST]), key=rows)


def _skinny_tiles(problem: Problem) -> list[TileConfig]:
    """Return all tiles as wide as the output, the narrowest first."""
    widths = SKINNY_WIDTHS if problem.b_is_k_major else (_LINE_COLUMNS,)
    return [
        # Among configs with equal loads, larger tiles load B less often.
        TileConfig(consumers, width, m_major=True)
        for width in widths
        if width >= problem.n
        for consumers in (2, 1)
    ]


# --- split-K: few tiles of a long K -----------------------------------------------------------

SPLITS = (2, 3, 4, 6, 8)
"""Into how many parts K may be split, one for each CTA of a cluster."""

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
    return best if times[0] > coefficients().split_k.min_gain * times[1] else whole


def ranked_split_k(problem: Problem, occupancy: Occupancy) -> list[TileConfig]:
    """Return tile configs with split-K whose CTAs all run at once, by their time.

    None of them multicasts: larger clusters find less room.
    """
    found = _split_k_configs(problem, occupancy)
    return sorted(found, key=lambda one: _microseconds(problem, one, occupancy))


def _split_k_configs(problem: Problem, occupancy: Occupancy) -> Iterator[TileConfig]:
    if problem.m_major:
        found = _skinny_tiles(problem)[:_NARROWEST]
    else:
        found = list(filter(_was_raced_split, _tiles(problem)))
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
    numbers = coefficients().split_k
    k_bytes = problem.k_blocks * BLOCK_K_BYTES
    clusters = problem.batches * config.clusters(problem.m, problem.n)
    loads = clusters * (config.block_m * config.cluster + config.block_n) * k_bytes
    l2 = loads / (numbers.l2_bytes if config.split_k == 1 else numbers.l2_bytes_split)
    memory = problem.batches * (problem.m + problem.n) * k_bytes / numbers.memory_bytes
    waves = -(-clusters // occupancy.max_active_clusters(config.cluster_size))
    alone = _cta_microseconds(problem, config, waves)
    return math.sqrt(math.hypot(alone**2, l2**2, memory**2)) + _reduction(config)


def _cta_microseconds(problem: Problem, config: TileConfig, waves: int) -> float:
    """Return the time of a CTA that has the chip for itself."""
    numbers = coefficients().split_k
    k_blocks = -(-problem.k_blocks // config.split_k)
    if problem.m_major:
        return waves * k_blocks / config.stages * numbers.pipeline_fill
    time = _sm_time(config, k_blocks * _K_BLOCK_DEPTH, waves, on_lines=problem.on_lines)
    return time / numbers.multiply_adds


def _reduction(config: TileConfig) -> float:
    """Return the time in which the CTAs of a cluster add up each other's accumulators."""
    numbers = coefficients().split_k
    if config.split_k == 1:
        return 0.0
    syncs = numbers.cluster_syncs + numbers.cluster_syncs_per_cta * config.split_k
    uneven = 0.0 if config.split_k & (config.split_k - 1) == 0 else numbers.uneven_cluster
    return syncs + config.partials_bytes / numbers.received_bytes + uneven


# --- candidates of tuning ----------------------------------------------------------------------

_CLUSTERS = (1, 2)
_GROUPS = (4, 8, 16)
_MAX_GROUP = 64
_BEST = 10
_BEST_SPLIT_K = 6


def is_legal(config: TileConfig, problem: Problem) -> bool:
    has_all_stages = config == replace(config, max_stages=TileConfig(1, 8).max_stages)
    if config.m_major != problem.m_major or not has_all_stages:
        return False
    if not 1 <= config.group_m <= _MAX_GROUP:
        return False
    if not _has_legal_split_k(config):
        return False
    if problem.m_major:
        return config in [
            replace(tile, group_m=config.group_m, split_k=config.split_k)
            for tile in _skinny_tiles(problem)
        ]
    kind = (config.consumers, config.rows, config.ping_pong)
    layouts = {(one.consumers, one.rows, one.ping_pong): one.widest for one in CONSUMER_LAYOUTS}
    is_wide = config.block_n in _legal_widths(layouts.get(kind, 0), problem)
    is_alone = config.cluster == 1 and not config.side_by_side
    is_shared = is_alone or _can_multicast(config, problem)
    return is_wide and config.cluster in _CLUSTERS and is_shared


def _can_multicast(config: TileConfig, problem: Problem) -> bool:
    """Whether a cluster's CTAs can each load a part of the shared tile."""
    if config.side_by_side:
        shares = _can_multicast_a(config, problem)
        return shares and config.cluster > 1 and config.split_k == 1
    return _can_multicast_b(config, problem)


def _has_legal_split_k(config: TileConfig) -> bool:
    if config.split_k == 1:
        return True
    is_cluster = config.split_k in SPLITS and config.cluster_size <= SPLITS[-1]
    return is_cluster and config.holds_partials and not config.ping_pong


def candidates(problem: Problem, occupancy: Occupancy) -> list[TileConfig]:
    """Return the best tiles, alone and in pairs, in groups of several sizes, and with split-K."""
    whole = _skinny_tiles(problem) if problem.m_major else _whole_candidates(problem, occupancy)
    found = (*whole, *ranked_split_k(problem, occupancy)[:_BEST_SPLIT_K])
    return list(dict.fromkeys(config for config in found if is_legal(config, problem)))


def _whole_candidates(problem: Problem, occupancy: Occupancy) -> Iterator[TileConfig]:
    for tile in ranked_configs(problem, occupancy)[:_BEST]:
        clustered = [replace(tile, cluster=size, side_by_side=False) for size in _CLUSTERS]
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


def _of_least_time(
    throughput: Mapping[_Config, float], m: int, n: int, occupancy: Occupancy
) -> _Config:
    """Return the config of least time: waves of tiles, times work of a tile over throughput.

    More than a few waves take pairs that multicast B.
    """

    def time(config: _Config) -> float:
        waves = -(-config.clusters(m, n) // occupancy.sms)
        return waves * config.block_m * config.block_n / throughput[config]

    best = min(throughput, key=time)
    waves_to_share = coefficients().multicast.waves_to_share
    shares = best.clusters(m, n) > waves_to_share * occupancy.sms
    return replace(best, cluster=2) if shares else best


def choose_scaled_config(
    m: int, n: int, occupancy: Occupancy, *, column_scales: bool
) -> ScaledTileConfig:
    """Return the tile config of least time of a block-scaled GEMM."""
    numbers = coefficients().scaled

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
    return _of_least_time(throughput, m, n, occupancy)


def choose_conv2d_config(
    m: int, k: int, occupancy: Occupancy, activation: str = "none"
) -> TileConfig:
    """Return the tile config of least time for ``m`` output pixels and ``k`` filters.

    Tiles that reach beyond the last filter or pixel cost as much as whole ones, so 320, 640 or
    1280 filters take tiles of 160 columns.
    """
    numbers = coefficients().conv2d
    throughput = {
        TileConfig(consumers, block_n, rows=rows): share
        for (consumers, rows, block_n), share in numbers.throughput.items()
        if (activation, consumers, rows, block_n) not in numbers.spilling
    }
    return _of_least_time(throughput, m, k, occupancy)


def choose_channels_per_box(channels: int) -> int:
    """Return the channels of a box of patches: few zeros after the last, or few loads.

    >>> [choose_channels_per_box(channels) for channels in (8, 16, 24, 32, 40, 64, 72, 96, 320)]
    [16, 16, 32, 32, 64, 64, 32, 32, 64]
    """
    cost = coefficients().conv2d.box_cost

    def time(box: int) -> float:
        return -(-channels // box) * box * cost[box]

    return min(cost, key=time)
