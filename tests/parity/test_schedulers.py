"""Tile schedulers: every tile exactly once, in the documented order, for any grid and cluster."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.backends import Emulate

from tmaasync import EmulatedFault, Kernel

TILE_M, TILE_N = 64, 128
MOST_TILES = 160  # of one CTA
MOST_BLOCKS = 1024  # along K, in the test of stream-K
FIELDS = 5

SOURCE = """
#include <tmaasync/structured/dynamic_scheduler.cuh>
#include <tmaasync/structured/grouped_scheduler.cuh>
#include <tmaasync/structured/list_scheduler.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/sequence_tiles.cuh>
#include <tmaasync/structured/static_scheduler.cuh>
#include <tmaasync/structured/stream_k_scheduler.cuh>

using namespace tmaasync;

using Cluster = ClusterShape<ALONG_M, ALONG_N, SPLIT_K>;
using Tiles = OutputTiles<TILE_M, TILE_N, Cluster, GROUP_M>;
using Grouped = GroupedScheduler<TILE_M, TILE_N, ALONG_M, GROUP_M, GROUPS_ALONG_N>;

// The tiles of a CTA, in its order.
struct Record {
    i32* next;

    __device__ explicit Record(i32* tiles) : next(tiles + blockIdx.x * MOST_TILES * FIELDS) {}
    __device__ void add(const OutputTile& tile) { add(tile.m, tile.n, tile.batch, 0, 0); }
    __device__ void add(const GroupTile& tile) {
        add(tile.m, tile.n, tile.group, tile.rows.start, tile.shares_b);
    }
    __device__ void add(const StreamKTile<OutputTile, Cluster>& tile) {
        const KRange& blocks = tile.k_blocks;
        const int range = blocks.first * MOST_BLOCKS + blocks.count;
        add(tile.m, tile.n, tile.batch, range, 2 * tile.peers + tile.finishes);
    }
    template <typename Tile>
    __device__ void add(const Tile& tile) {
        if (tile.row >= tile.rows.length) return;
        add(tile.row, tile.head, tile.rows.length, tile.rows.start, 0);
    }
    __device__ void add(int m, int n, int batch, int first_row, int shares_b) {
        const int fields[FIELDS] = {m, n, batch, first_row, shares_b};
        for (int i = 0; i < FIELDS; ++i) next[i] = fields[i];
        next += FIELDS;
    }
};

// The range-based loop is over a copy, so that the explicit loop starts from the same state.
template <typename Scheduler>
__device__ void visit(Scheduler schedule, i32* looped, i32* stepped) {
    Record first(looped), second(stepped);
    for (const auto tile : schedule) first.add(tile);
    for (; !schedule.done(); schedule.step()) second.add(schedule.tile());
}

extern "C" __global__ void static_schedule(i32* looped, i32* stepped, int m, int n, int batches) {
    visit(StaticScheduler(Tiles(m, n, batches)), looped, stepped);
}
extern "C" __global__ void list_schedule(
    i32* looped, i32* stepped, int m, int n, int batches, const i32* table, int waves
) {
    visit(ListScheduler(Tiles(m, n, batches), table, waves), looped, stepped);
}
extern "C" __global__ void stream_k_schedule(
    i32* looped, i32* stepped, int m, int n, int batches, int k_blocks
) {
    visit(StreamKScheduler(Tiles(m, n, batches), k_blocks), looped, stepped);
}
extern "C" __global__ void grouped_schedule(
    i32* looped, i32* stepped, const i32* ends, int groups, int total_rows, int extent
) {
    visit(Grouped({ends, groups, total_rows}, extent), looped, stepped);
}
extern "C" __global__ void dynamic_schedule(i32* taken, u32* counter, int m, int n, int batches) {
    Record record(taken);
    for (const auto tile : DynamicScheduler(Tiles(m, n, batches), counter)) record.add(tile);
}
struct SequenceTile {
    RaggedSequence rows;
    i32 head;
    i32 row;
};
extern "C" __global__ void sequence_schedule(
    i32* looped, i32* stepped, const i32* cu_seqlens, int sequences, int heads, int rows
) {
    const SequenceTiles<SequenceTile, TILE_M> tiles{cu_seqlens, sequences, heads, rows};
    visit(StaticScheduler(tiles), looped, stepped);
}
extern "C" __global__ void k_ranges(i32* ranges, int blocks, int splits) {
    for (int rank = 0; rank < splits; ++rank) {
        const KRange range(blocks, rank, splits);
        ranges[2 * rank] = range.first;
        ranges[2 * rank + 1] = range.count;
    }
}
extern "C" __global__ void own_k_range(i32* ranges, int blocks) {
    const auto range = KRange::of<Cluster>(blocks);
    ranges[2 * blockIdx.x] = range.first;
    ranges[2 * blockIdx.x + 1] = range.count;
}
"""


class Cluster(NamedTuple):
    """CTAs of a cluster, and how the tiles are rasterised."""

    along_m: int = 1
    along_n: int = 1
    split_k: int = 1
    group_m: int = 8
    groups_along_n: bool = False

    @property
    def ctas(self) -> int:
        return self.along_m * self.along_n * self.split_k

    def rank(self, cta: int) -> tuple[int, int]:
        """The number of a CTA along M and along N."""
        rank = cta % (self.along_m * self.along_n)
        return rank % self.along_m, rank // self.along_m


CLUSTERS = (
    Cluster(),
    Cluster(group_m=1),
    Cluster(along_m=2, group_m=3),
    Cluster(along_n=2),
    Cluster(along_m=2, along_n=2, group_m=2),
    Cluster(split_k=3),
    Cluster(along_m=2, split_k=2),
)
GROUPED = (Cluster(), Cluster(along_m=2, group_m=2), Cluster(along_m=2, groups_along_n=True))
Tile = tuple[int, ...]


@functools.cache
def kernel(entry: str, cluster: Cluster, debug: bool = False) -> Kernel:
    constants = {name.upper(): value for name, value in cluster._asdict().items()}
    constants |= {
        "TILE_M": TILE_M, "TILE_N": TILE_N, "MOST_TILES": MOST_TILES, "FIELDS": FIELDS,
        "MOST_BLOCKS": MOST_BLOCKS,
    }  # fmt: skip
    return Kernel(SOURCE, entry, constants=constants, debug=debug)


def run(
    backend: Any,
    entry: str,
    cluster: Cluster,
    clusters: int,
    *arguments: Any,
    records: int = 2,
    debug: bool = False,
) -> list[list[Tile]]:
    """Return the tiles of every CTA; both loops must have visited the same."""
    empty = np.full((clusters * cluster.ctas, MOST_TILES, FIELDS), -1, np.int32)
    held = [backend.array(empty) for _ in range(records)]
    held_arguments = [
        backend.array(value) if isinstance(value, np.ndarray) else value for value in arguments
    ]
    shape = cluster.ctas if cluster.ctas > 1 else None

    kernel(entry, cluster, debug)(
        clusters * cluster.ctas, 1, (*held, *held_arguments), cluster=shape
    )

    visited = [backend.host(record) for record in held]
    assert all(np.array_equal(record, visited[0]) for record in visited)
    return [
        [tuple(map(int, tile)) for tile in tiles if tile[0] >= 0] for tiles in visited[0]
    ]  # fmt: skip


# --- the tiles of an output -----------------------------------------------------------------------


def rasterized(m_tiles: int, n_tiles: int, batches: int, group_m: int) -> list[Tile]:
    """Return (batch, m, n) of all tiles: groups of rows, in them column by column."""
    tiles = [
        (batch, m, n) for batch in range(batches) for m in range(m_tiles) for n in range(n_tiles)
    ]
    return sorted(tiles, key=lambda tile: (tile[0], tile[1] // group_m, tile[2], tile[1]))


def cluster_tiles(cluster: Cluster, m: int, n: int, batches: int) -> list[Tile]:
    m_tiles, n_tiles = -(-m // (TILE_M * cluster.along_m)), -(-n // (TILE_N * cluster.along_n))
    return rasterized(m_tiles, n_tiles, batches, cluster.group_m)


def own_tile(cluster: Cluster, cta: int, tile: Tile) -> Tile:
    """The first row and column and the batch of a CTA's part of a cluster's tile."""
    batch, m_tile, n_tile = tile
    rank_m, rank_n = cluster.rank(cta)
    m, n = m_tile * cluster.along_m + rank_m, n_tile * cluster.along_n + rank_n
    return (m * TILE_M, n * TILE_N, batch, 0, 0)


sizes = st.integers(1, 600)
problems = st.tuples(sizes, sizes, st.integers(1, 3))
few = settings(max_examples=25, deadline=None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cluster", [CLUSTERS[number] for number in (1, 2, 4, 6)], ids=str)
@few
@given(problem=problems, clusters=st.integers(1, 7))
def test_clusters_take_the_rasterised_tiles_in_turn(
    cluster: Cluster, problem: tuple[int, int, int], clusters: int
) -> None:
    m, n, batches = problem
    visited = run(Emulate(), "static_schedule", cluster, clusters, m, n, batches)

    wanted = cluster_tiles(cluster, m, n, batches)
    for cta, tiles in enumerate(visited):
        own = wanted[cta // cluster.ctas :: clusters]
        assert tiles == [own_tile(cluster, cta, tile) for tile in own], cta


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 3, 8)
@pytest.mark.parametrize("cluster", CLUSTERS[:3], ids=str)
@pytest.mark.parametrize("clusters", [1, 5, 40])
def test_dynamic_clusters_take_every_tile_once_and_reset_the_counter(
    backend: Any, cluster: Cluster, clusters: int
) -> None:
    # Each CTA of a cluster asks for itself, as only one of them may: one to a cluster.
    cluster = cluster._replace(along_m=1)
    counter = backend.array(np.zeros(1, np.uint32))

    for m, n, batches in ((500, 600, 1), (64, 128, 2), (130, 300, 3)):
        visited = run(
            backend, "dynamic_schedule", cluster, clusters, counter, m, n, batches, records=1
        )

        taken = sorted(tile for tiles in visited for tile in tiles)
        wanted = cluster_tiles(cluster, m, n, batches)
        assert taken == sorted(own_tile(cluster, 0, tile) for tile in wanted)
        assert backend.host(counter)[0] == 0


@few
@given(
    problem=problems,
    clusters=st.integers(1, 6),
    cluster=st.sampled_from(CLUSTERS[4:6]),
    seed=st.integers(0, 99),
)
def test_clusters_take_what_the_list_names(
    problem: tuple[int, int, int], clusters: int, cluster: Cluster, seed: int
) -> None:
    wanted = cluster_tiles(cluster, *problem)
    order = np.random.default_rng(seed).permutation(len(wanted))
    waves = -(-len(order) // clusters)
    table = np.full((waves, clusters), -1, np.int32)
    table.reshape(-1)[: len(order)] = order

    visited = run(Emulate(), "list_schedule", cluster, clusters, *problem, table, waves)

    for cta, tiles in enumerate(visited):
        listed = [index for index in table[:, cta // cluster.ctas] if index >= 0]
        assert tiles == [own_tile(cluster, cta, wanted[index]) for index in listed], cta


def test_a_listed_tile_that_is_not_there_is_reported() -> None:
    table = np.array([[0, 4]], np.int32)

    with pytest.raises(EmulatedFault) as caught:
        run(Emulate(), "list_schedule", Cluster(), 2, 128, 256, 1, table, 1, debug=True)

    assert caught.value.reason.startswith("table[wave][cluster] is 4; it must be below 4")


# --- stream-K -------------------------------------------------------------------------------------


class Share(NamedTuple):
    """The blocks of K of a tile that one cluster has."""

    cluster: int
    tile: int
    first: int
    end: int
    peers: int
    finishes: bool


def stream_k_shares(
    cluster: Cluster, clusters: int, problem: tuple[int, int, int], k_blocks: int
) -> list[list[Share]]:
    """Return the shares of every cluster, in its order; its CTAs have the same."""
    visited = run(Emulate(), "stream_k_schedule", cluster, clusters, *problem, k_blocks)
    tiles = cluster_tiles(cluster, *problem)
    shares: list[list[Share]] = []
    for number in range(clusters):
        ctas = range(number * cluster.ctas, (number + 1) * cluster.ctas)
        taken = [
            [(index_of(cluster, cta, tiles)[tile[:3]], *tile[3:]) for tile in visited[cta]]
            for cta in ctas
        ]
        assert all(own == taken[0] for own in taken)
        shares.append([])
        for tile, blocks, peers in taken[0]:
            first, count = divmod(blocks, MOST_BLOCKS)
            shares[-1].append(Share(number, tile, first, first + count, peers // 2, peers % 2 == 1))
    return shares


def index_of(cluster: Cluster, cta: int, tiles: list[Tile]) -> dict[Tile, int]:
    return {own_tile(cluster, cta, tile)[:3]: index for index, tile in enumerate(tiles)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cluster", [CLUSTERS[0], CLUSTERS[4]], ids=str)
@few
@given(problem=problems, clusters=st.integers(1, 12), k_blocks=st.integers(1, 40))
def test_stream_k_gives_every_cluster_an_equal_share(
    cluster: Cluster, problem: tuple[int, int, int], clusters: int, k_blocks: int
) -> None:
    count = len(cluster_tiles(cluster, *problem))
    shares = stream_k_shares(cluster, clusters, problem, k_blocks)

    totals = [sum(share.end - share.first for share in own) for own in shares]
    assert max(totals) - min(totals) <= 1
    by_tile = sorted(
        (share for own in shares for share in own), key=lambda share: (share.tile, share.first)
    )
    assert {share.tile for share in by_tile} == set(range(count))
    for _, group in itertools.groupby(by_tile, key=lambda share: share.tile):
        parts = list(group)
        assert parts[0].first == 0
        assert parts[-1].end == k_blocks
        assert all(one.end == after.first for one, after in itertools.pairwise(parts))
        # The clusters that share a tile follow one another, and the last one finishes it.
        own = parts[-1].cluster
        assert [share.cluster for share in parts] == list(range(own - len(parts) + 1, own + 1))
        assert [share.finishes for share in parts] == [False] * (len(parts) - 1) + [True]
        assert [share.peers for share in parts] == list(range(len(parts)))
        assert len(parts) <= 2 or count < clusters


@few
@given(problem=problems, clusters=st.integers(1, 12), k_blocks=st.integers(1, 40))
def test_a_cluster_leaves_one_tile_to_the_next_and_works_on_it_first(
    problem: tuple[int, int, int], clusters: int, k_blocks: int
) -> None:
    for own in stream_k_shares(Cluster(), clusters, problem, k_blocks):
        assert all(share.finishes for share in own[1:])
        divided = [share for share in own if share.peers or not share.finishes]
        assert len(divided) <= 2


# --- packed sequences -----------------------------------------------------------------------------


@few
@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    heads=st.integers(1, 3),
    unused=st.integers(0, 200),
    clusters=st.integers(1, 4),
)
def test_tiles_of_sequences_come_by_head_the_last_rows_first(
    lengths: list[int], heads: int, unused: int, clusters: int
) -> None:
    ends = np.cumsum([0, *lengths], dtype=np.int32)
    rows = int(ends[-1]) + unused
    visited = run(
        Emulate(), "sequence_schedule", Cluster(), clusters, ends, len(lengths), heads, rows
    )

    wanted: list[tuple[int, ...]] = [
        (row, head, length, int(start), 0)
        for start, length in zip(ends[:-1], lengths, strict=True)
        for head in range(heads)
        for row in reversed(range(0, length, TILE_M))
    ]
    assert sorted(tile for tiles in visited for tile in tiles) == sorted(wanted)
    for tiles in visited:  # empty tiles lie between
        assert tiles == sorted(tiles, key=wanted.index)


# --- groups of rows -------------------------------------------------------------------------------


def group_tiles(cluster: Cluster, ends: list[int], extent: int) -> Iterator[Tile]:
    """Yield (first row, group, m, n) of all tiles."""
    for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        m, n = (extent, end - start) if cluster.groups_along_n else (end - start, extent)
        for row in range(0, m, TILE_M):
            for column in range(0, n, TILE_N):
                yield (start, group, row, column)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cluster", GROUPED, ids=str)
@few
@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(0, 400)), min_size=1, max_size=6),
    extent=sizes,
    clusters=st.integers(1, 6),
)
def test_every_tile_of_every_group_is_taken_once(
    cluster: Cluster, lengths: list[int], extent: int, clusters: int
) -> None:
    ends = np.cumsum(lengths).astype(np.int32)

    visited = run(
        Emulate(), "grouped_schedule", cluster, clusters, ends, len(ends), int(ends[-1]), extent
    )

    wanted = list(group_tiles(cluster, ends.tolist(), extent))
    present = {tile[1] for tile in wanted}
    taken = [(start, group, m, n) for tiles in visited for m, n, group, start, _ in tiles]
    # The partner of an odd last tile lies beyond N, where TMA stores nothing.
    inside = sorted(tile for tile in taken if tile in set(wanted))
    assert inside == sorted(wanted)
    assert len(taken) - len(inside) <= (len(present) if cluster.ctas > 1 else 0)
    assert {tile[1] for tile in taken} <= present


def test_the_ctas_of_a_cluster_share_columns_or_have_the_last_row() -> None:
    cluster = GROUPED[1]
    ends = np.array([100, 100, 420, 990], np.int32)
    visited = run(Emulate(), "grouped_schedule", cluster, 3, ends, len(ends), 990, 300)

    pairs = [pair for i in range(0, 6, 2) for pair in zip(*visited[i : i + 2], strict=True)]
    assert {shares for pair in pairs for *_, shares in pair} == {0, 1}
    for (m0, n0, group0, _, shares0), (m1, n1, group1, _, shares1) in pairs:
        assert (group0, shares0) == (group1, shares1)
        if shares0:
            assert (m1 - m0, n1 - n0) == (TILE_M, 0)
        else:
            assert (m1 - m0, n1 - n0) == (0, TILE_N)


def test_a_group_that_ends_before_it_starts_is_empty_and_reported() -> None:
    ends = np.array([200, 100, 400], np.int32)
    arguments = (ends, 3, 300, 128)

    visited = run(Emulate(), "grouped_schedule", Cluster(), 1, *arguments)
    with pytest.raises(EmulatedFault, match=r"offsets\[group\] is 100; it must be at least 200"):
        run(Emulate(), "grouped_schedule", Cluster(), 1, *arguments, debug=True)

    # Clamped: 200 rows, none, and the 100 rows that the array has after them.
    assert [(group, m) for m, _, group, *_ in visited[0]] == [
        *((0, m) for m in (0, 64, 128, 192)), *((2, m) for m in (0, 64))
    ]  # fmt: skip


# --- ranges of K ----------------------------------------------------------------------------------


@few
@given(blocks=st.integers(0, 200), splits=st.integers(1, 8))
def test_the_ranges_of_k_follow_one_another_and_are_equal_up_to_one_block(
    blocks: int, splits: int
) -> None:
    ranges = np.zeros((splits, 2), np.int32)
    kernel("k_ranges", Cluster())(1, 1, (ranges, blocks, splits))

    ends = ranges.sum(axis=1)
    assert ranges[0, 0] == 0
    assert ends[-1] == blocks
    assert np.array_equal(ranges[1:, 0], ends[:-1])
    assert np.ptp(ranges[:, 1]) <= 1


@pytest.mark.on_the_cpu(2)
@pytest.mark.parametrize("cluster", [CLUSTERS[0], *CLUSTERS[-2:]], ids=str)
def test_the_ctas_that_share_loads_have_the_same_range_of_k(backend: Any, cluster: Cluster) -> None:
    held = backend.array(np.zeros((cluster.ctas, 2), np.int32))
    kernel("own_k_range", cluster)(cluster.ctas, 1, (held, 10), cluster=cluster.ctas)

    ranges = [tuple(map(int, pair)) for pair in backend.host(held)]
    sharing = cluster.along_m * cluster.along_n
    by_split = {1: [(0, 10)], 2: [(0, 5), (5, 5)], 3: [(0, 4), (4, 3), (7, 3)]}[cluster.split_k]
    assert ranges == [pair for pair in by_split for _ in range(sharing)]
