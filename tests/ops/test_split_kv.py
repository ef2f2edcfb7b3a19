"""How keys are split over CTAs: stream-K for padded arrays, equal splits for packed ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tmaasync.ops._flash.config import Sizes, TileConfig
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._flash.schedule import (
    Schedule,
    packed_kv_splits,
    stream_k_pays,
    stream_k_schedule,
)
from tmaasync.ops._operation import LaunchSequence

DECODE = Sizes(queries=1, keys=8192, heads=64, heads_per_kv_head=8, batch=1, head_dim=128)
OF_HEADS = TileConfig(128, 1, 128, heads_per_tile=8)


def scores(
    causal: bool | str = False, window: tuple[int | None, int | None] | None = None
) -> Scores:
    return Scores.of(128, causal, None, window, None)


def counted(schedule: Schedule, spans: int, blocks: int) -> None:
    """Every block of every span is worked on once, and every split has a slot of its own."""
    seen = np.zeros((spans, blocks), int)
    slots: dict[int, list[int]] = {}
    table: list[Any] = schedule.table.ravel().tolist()
    for span, (first, end, slot) in table:
        if span >= 0:
            assert first < end
            seen[span, first:end] += 1
            assert slot >= 0 or (first, end) == (0, blocks)
            if slot >= 0:
                slots.setdefault(span, []).append(slot)
    assert (seen == 1).all()
    listed = {span: list(range(slot, slot + n)) for span, slot, n, _ in schedule.splits.tolist()}
    assert {span: sorted(own) for span, own in slots.items()} == listed
    every = [slot for own in listed.values() for slot in own]
    assert sorted(every) == list(range(schedule.partials))


@pytest.mark.parametrize("seed", range(40))
def test_every_block_is_worked_on_once_and_shares_are_equal(seed: int) -> None:
    drawn = random.Random(seed)
    queries, keys, heads = drawn.randint(1, 600), drawn.randint(1, 3000), drawn.randint(1, 9)
    sizes = Sizes(queries, keys, heads, 1, drawn.randint(1, 3), 128)
    config = TileConfig(128, 2, 128, cluster=drawn.choice((1, 2)))
    clusters = drawn.randint(1, 40)
    spans, blocks = config.spans(sizes), -(-keys // config.block_n)

    schedule = stream_k_schedule(sizes, config, clusters)

    counted(schedule, spans, blocks)
    waves = spans // clusters
    assert (schedule.table[:waves]["keys"]["slot"] < 0).all()
    last = schedule.table[waves:]
    loads = np.where(last["span"] < 0, 0, last["keys"]["end"] - last["keys"]["first"]).sum(axis=0)
    assert loads.sum() == (spans - waves * clusters) * blocks
    busy = loads[: np.count_nonzero(loads)]
    assert busy.sum() == loads.sum()
    assert busy.max(initial=0) - busy.min(initial=blocks) <= 1


def test_one_query_of_one_sequence_has_most_of_the_chip() -> None:
    schedule = stream_k_schedule(DECODE, OF_HEADS, 132)

    assert stream_k_pays(DECODE, OF_HEADS, scores(), 132)
    assert OF_HEADS.spans(DECODE) == 8
    assert (schedule.table[0]["span"] >= 0).all()
    assert schedule.table.shape[1] >= 64  # 8 parts of each or more


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"keys": 512}, scores()),  # adding up costs more
        ({"batch": 33}, scores()),  # two waves are full
        ({"batch": 67}, scores()),  # the last of five is not, which is little of all
        ({"queries": 500}, scores(causal=True)),  # tiles see more or less
        ({"queries": 5}, scores(causal="top_left")),  # and these see five keys
        ({}, scores(window=(100, 100))),
        ({}, scores(window=(100, None))),
    ],
)
def test_else_keys_are_not_split(changes: dict[str, int], more: Scores) -> None:
    assert not stream_k_pays(DECODE._replace(**changes), OF_HEADS, more, 132)


def test_a_second_wave_of_few_spans_is_split() -> None:
    sizes = DECODE._replace(batch=17)
    schedule = stream_k_schedule(sizes, OF_HEADS, 132)

    assert OF_HEADS.spans(sizes) == 136
    assert stream_k_pays(sizes, OF_HEADS, scores(), 132)
    first_wave = schedule.table[0]
    assert (first_wave["keys"]["first"] == 0).all()
    assert (first_wave["keys"]["end"] == 64).all()
    assert (first_wave["keys"]["slot"] == -1).all()
    assert schedule.splits["span"].tolist() == [132, 133, 134, 135]
    assert (schedule.splits["splits"] > 8).all()


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

    assert packed_kv_splits(tiles, typical, OF_HEADS, more, 132) == wanted


def test_the_few_queries_of_a_causal_mask_see_nearly_all() -> None:
    assert stream_k_pays(DECODE._replace(queries=5), OF_HEADS, scores(causal=True), 132)


class Launch:
    """Notes where it was launched."""

    def __init__(self, name: str, launched: list[tuple[str, Sequence[int], int]]) -> None:
        self.name, self.launched = name, launched

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        self.launched.append((self.name, addresses, stream))

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        return lambda: self.launch_at(addresses, stream)


@pytest.mark.parametrize("is_bound", [False, True])
def test_launches_follow_each_other_with_addresses_of_their_own(is_bound: bool) -> None:
    launched: list[tuple[str, Sequence[int], int]] = []
    attend, combine = Launch("attend", launched), Launch("combine", launched)
    both = LaunchSequence(
        (attend, lambda given: given[:2]), (combine, lambda given: (given[2], given[0]))
    )

    if is_bound:
        both.bind((1, 2, 3), 7)()
    else:
        both.launch_at((1, 2, 3), 7)

    assert launched == [("attend", (1, 2), 7), ("combine", (3, 1), 7)]
