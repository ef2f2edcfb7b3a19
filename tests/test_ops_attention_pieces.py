"""How keys are split over thread blocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tmaasync.ops.attention.kernel import Blocking, Sizes
from tmaasync.ops.attention.pieces import Pieces, parts_of_packed, pieces_of, splits_keys
from tmaasync.ops.attention.scores import Scores
from tmaasync.ops.attention.split_launch import SplitLaunch

DECODE = Sizes(queries=1, keys=8192, heads=64, heads_per_kv_head=8, batch=1, head_dim=128)
OF_HEADS = Blocking(128, 1, 128, heads_per_tile=8)


def scores(
    causal: bool | str = False, window: tuple[int | None, int | None] | None = None
) -> Scores:
    return Scores.of(128, causal, None, window, None)


def counted(pieces: Pieces, spans: int, blocks: int) -> None:
    """Every block of every span is worked on once, and every part has a place of its own."""
    seen = np.zeros((spans, blocks), int)
    parts: dict[int, list[int]] = {}
    for span, first, end, place in pieces.table.reshape(-1, 4).tolist():
        if span >= 0:
            assert first < end
            seen[span, first:end] += 1
            assert place >= 0 or (first, end) == (0, blocks)
            if place >= 0:
                parts.setdefault(span, []).append(place)
    assert (seen == 1).all()
    told = {span: list(range(place, place + n)) for span, place, n, _ in pieces.splits.tolist()}
    assert {span: sorted(places) for span, places in parts.items()} == told
    every = [place for places in told.values() for place in places]
    assert sorted(every) == list(range(pieces.places))


@pytest.mark.parametrize("seed", range(40))
def test_every_block_is_in_one_piece_and_shares_are_equal(seed: int) -> None:
    drawn = random.Random(seed)
    queries, keys, heads = drawn.randint(1, 600), drawn.randint(1, 3000), drawn.randint(1, 9)
    sizes = Sizes(queries, keys, heads, 1, drawn.randint(1, 3), 128)
    blocking = Blocking(128, 2, 128, cluster=drawn.choice((1, 2)))
    clusters = drawn.randint(1, 40)
    spans, blocks = blocking.spans(sizes), -(-keys // blocking.block_n)

    pieces = pieces_of(sizes, blocking, clusters)

    counted(pieces, spans, blocks)
    rounds = spans // clusters
    assert (pieces.table[:rounds, :, 3] < 0).all()
    last = pieces.table[rounds:]
    loads = np.where(last[..., 0] < 0, 0, last[..., 2] - last[..., 1]).sum(axis=0)
    assert loads.sum() == (spans - rounds * clusters) * blocks
    busy = loads[: np.count_nonzero(loads)]
    assert busy.sum() == loads.sum()
    assert busy.max(initial=0) - busy.min(initial=blocks) <= 1


def test_one_query_of_one_sequence_has_most_of_the_chip() -> None:
    pieces = pieces_of(DECODE, OF_HEADS, 132)

    assert splits_keys(DECODE, OF_HEADS, scores(), 132)
    assert OF_HEADS.spans(DECODE) == 8
    assert (pieces.table[0, :, 0] >= 0).all()
    assert pieces.table.shape[1] >= 64  # 8 parts of each or more


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"keys": 512}, scores()),  # adding up costs more
        ({"batch": 33}, scores()),  # two rounds are full
        ({"batch": 67}, scores()),  # the last of five is not, which is little of all
        ({"queries": 500}, scores(causal=True)),  # tiles see more or less
        ({"queries": 5}, scores(causal="top_left")),  # and these see five keys
        ({}, scores(window=(100, 100))),
        ({}, scores(window=(100, None))),
    ],
)
def test_else_keys_are_not_split(changes: dict[str, int], more: Scores) -> None:
    assert not splits_keys(DECODE._replace(**changes), OF_HEADS, more, 132)


def test_a_second_round_of_few_spans_is_split() -> None:
    sizes = DECODE._replace(batch=17)
    pieces = pieces_of(sizes, OF_HEADS, 132)

    assert OF_HEADS.spans(sizes) == 136
    assert splits_keys(sizes, OF_HEADS, scores(), 132)
    assert (pieces.table[0, :, 1:] == [0, 64, -1]).all()
    assert pieces.splits[:, 0].tolist() == [132, 133, 134, 135]
    assert (pieces.splits[:, 2] > 8).all()


@pytest.mark.parametrize(
    ("tiles", "keys", "more", "wanted"),
    [
        (8, 32768, scores(), 16),
        (32, 8192, scores(causal=True), 4),
        (100, 8192, scores(), 1),
        (132, 8192, scores(), 1),
        (8, 300, scores(), 1),
        (8, 32768, scores(window=(100, None)), 1),
    ],
)
def test_few_packed_tiles_have_several_ctas_each(
    tiles: int, keys: int, more: Scores, wanted: int
) -> None:
    typical = DECODE._replace(keys=keys)

    assert parts_of_packed(tiles, typical, OF_HEADS, more, 132) == wanted


def test_the_few_queries_of_a_causal_mask_see_nearly_all() -> None:
    assert splits_keys(DECODE._replace(queries=5), OF_HEADS, scores(causal=True), 132)


class Launch:
    """Notes where it was launched."""

    def __init__(self, name: str, launched: list[tuple[str, tuple[int, ...], int]]) -> None:
        self.name, self.launched = name, launched

    def launch_at(self, addresses: tuple[int, ...], stream: int) -> None:
        self.launched.append((self.name, addresses, stream))

    def bind(self, addresses: tuple[int, ...], stream: int) -> Callable[[], None]:
        return lambda: self.launch_at(addresses, stream)


@pytest.mark.parametrize("is_aimed", [False, True])
@pytest.mark.parametrize(("memory", "parts"), [((9,), 9), ((9, 25), 25)], ids=["", "factors"])
def test_sums_are_written_and_added_up_in_the_same_memory(
    memory: tuple[int, ...], parts: int, is_aimed: bool
) -> None:
    """Where factors lie before the parts, the first kernel is told where those start."""
    launched: list[tuple[str, tuple[int, ...], int]] = []
    both: Any = object.__new__(SplitLaunch)
    both._attend, both._merge = Launch("attend", launched), Launch("merge", launched)
    addresses = (1, 2, 3, 4, 5, *memory)

    if is_aimed:
        both.bind(addresses, 7)()
    else:
        both.launch_at(addresses, 7)

    assert launched == [("attend", (1, 2, 3, 4, 5, 9), 7), ("merge", (4, 5, parts), 7)]
