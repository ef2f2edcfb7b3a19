"""The time of the tensor cores for a tile config, and how it combines with other bounds."""

from __future__ import annotations

import math

from tmaasync.ops._gemm.coefficients import GemmCoefficients, coefficients
from tmaasync.ops._gemm.config import Occupancy, PersistentWork, TileConfig
from tmaasync.ops._gemm.legal_tiles import Problem, has_large_consumers, is_usual

_LARGE_TILE = 1 / 128 + 1 / 256  # elements loaded per multiply-add


def soft_max(*times: float) -> float:
    """Return a little more than the longest of times that overlap: their 4-norm."""
    return math.sqrt(math.hypot(*(time**2 for time in times)))


def config_time(
    problem: Problem,
    occupancy: Occupancy,
    config: TileConfig,
    *,
    is_uneven: bool = False,
    epilogue_depth: int = 0,
) -> float:
    """Return the time of a tile config without split-K, in microseconds.

    The arguments are as in `cost_model.choose_config`.
    """
    numbers = coefficients().gemm
    m, k, count, on_lines = problem.m, problem.k, problem.batches, problem.on_lines
    rows = m + config.block_m // 2 if is_uneven else m
    clusters = count * config.clusters(rows, problem.n)
    active = occupancy.max_active_clusters(config.cluster_size)
    waves = -(-clusters // active)
    # Rows beyond the last are computed too, from earlier rows (kShiftsRows in gemm.cu).
    multiplied = m if is_uneven else -(-m // config.cluster_rows) * config.cluster_rows
    even = count * multiplied * problem.n * k / occupancy.sms
    time = tensor_time(
        numbers, config, k, waves, even, on_lines=on_lines, epilogue_depth=epilogue_depth
    )
    is_short = time < numbers.most_late and not is_uneven
    if is_short and not config.starts_early(PersistentWork(m, k, clusters), active):
        time += numbers.late_start
    return time


def tensor_time(
    numbers: GemmCoefficients,
    config: TileConfig,
    k: int,
    waves: int,
    even: float,
    *,
    on_lines: bool,
    epilogue_depth: int,
) -> float:
    """Return the time of the tensor cores, in microseconds: the longer of two bounds.

    At the full clock the bound is the busiest SM: `sm_time`. At the power limit it is mainly the
    energy of all multiply-adds, and less the busiest SM: `_power_limited_time`.
    """
    alone = sm_time(numbers, config, k, waves, on_lines=on_lines, epilogue_depth=epilogue_depth)
    return max(alone, _power_limited_time(numbers, config, k, waves, even, epilogue_depth))


def sm_time(
    numbers: GemmCoefficients,
    config: TileConfig,
    k: int,
    waves: int,
    *,
    on_lines: bool,
    epilogue_depth: int = 0,
) -> float:
    """Return the time of one SM with a tile in each wave, in microseconds.

    Each wave takes ``block_m x block_n x k`` at the throughput that its loads allow. The exposed
    first loads and last stores count as ``exposed_depth`` elements of K. Narrow store boxes add
    ``store_depth`` per tile.
    """
    area = config.block_m * config.block_n
    depth = waves * (k + numbers.store_depth[config.store_bytes]) + numbers.exposed_depth
    depth += _exposed_stores(config, waves) * epilogue_depth
    work = depth * area / _throughput(numbers, config, on_lines=on_lines)
    return work / numbers.multiply_adds


def _power_limited_time(
    numbers: GemmCoefficients,
    config: TileConfig,
    k: int,
    waves: int,
    even: float,
    epilogue_depth: int,
) -> float:
    """Return the microseconds at the power limit; ``even`` is an SM's average multiply-adds.

    The more SMs work at once, the lower the clock that the power limit allows.
    """
    busiest = busiest_sm_work(numbers, config, k, waves, epilogue_depth)
    more = config.loads_per_multiply_add - _LARGE_TILE
    energy = numbers.multiply_add_energy * (1 + numbers.loads_to_energy * more)
    if has_large_consumers(config):
        energy /= numbers.large_consumers
    exponent = numbers.busiest_exponent
    work = energy * math.pow(busiest, exponent) * math.pow(even, 1 - exponent)
    return work / numbers.multiply_adds


def busiest_sm_work(
    numbers: GemmCoefficients, config: TileConfig, k: int, waves: int, epilogue_depth: int = 0
) -> float:
    """Return the busiest SM's multiply-adds, plus exposed stores in the same unit."""
    exposed = numbers.exposed_store_depth + numbers.store_depth[config.store_bytes] + epilogue_depth
    depth = waves * k + _exposed_stores(config, waves) * exposed
    return depth * config.block_m * config.block_n


def _exposed_stores(config: TileConfig, waves: int) -> int:
    """Return the number of an SM's tiles whose stores overlap no multiplication."""
    return 1 if config.ping_pong else waves


def _throughput(numbers: GemmCoefficients, config: TileConfig, *, on_lines: bool) -> float:
    """Return the fraction of the tensor cores' peak: small tiles load more per multiply-add.

    By (consumers of 64 rows, columns): (2, 256) 1.0, (2, 128) 0.96, (1, 256) 0.91, (1, 128) 0.85,
    (1, 64) 0.7.
    """
    if on_lines:
        loaded = config.loads_per_multiply_add
    else:
        rows = config.block_m * config.b_multicast
        columns = config.block_n * config.a_multicast
        loaded = 2 * (1 / rows + 1 / columns)
    more = max(0.0, loaded - _LARGE_TILE)
    linear, square = numbers.loads_to_time
    share = max(0.05, 1 - linear * more - square * more * more)
    return share if is_usual(config) else numbers.large_consumers * share
