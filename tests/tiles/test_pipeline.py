"""Pipelines: states, the layout of shared memory, the search for deadlocks and overwrites."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync.errors import ArgumentError
from tmaasync.pipeline import Pipeline, PipelineState, SharedBuffer

MAX_SHARED_BYTES = 232448


@dataclass(frozen=True)
class Tile:
    tile_bytes: int
    smem_alignment: int = 128


BIG = Tile(16384, 1024)

# --- PipelineState ------------------------------------------------------------------------------


@given(stages=st.integers(1, 8), steps=st.integers(0, 64))
def test_index_phase_and_count_follow_from_the_step_count(stages: int, steps: int) -> None:
    consumer, producer = PipelineState.for_consumer(stages), PipelineState.for_producer(stages)

    for _ in range(steps):
        consumer.step()
        producer.step()

    lap = steps // stages
    assert (consumer.index, consumer.phase, consumer.count) == (steps % stages, lap % 2, steps)
    assert (producer.index, producer.phase, producer.count) == (steps % stages, 1 - lap % 2, steps)


@given(stages=st.integers(0, 5), laps=st.lists(st.integers(0, 12), max_size=3))
def test_to_advance_is_to_step_so_often(stages: int, laps: list[int]) -> None:
    state, other = PipelineState(stages), PipelineState(stages)
    for count in laps:
        state.advance(count)
        for _ in range(count):
            other.step()

    assert state == other


@given(stages=st.integers(0, 5), steps=st.integers(0, 20))
def test_next_steps_and_returns_a_copy_of_the_new_state(stages: int, steps: int) -> None:
    state, other = PipelineState(stages), PipelineState(stages)
    for _ in range(steps):
        returned = state.next()
        other.step()
        assert returned == state == other

    returned = state.next()
    state.step()
    assert stages == 0 or returned != state


def test_a_ring_without_stages_stays_where_it_is() -> None:
    state = PipelineState(0)
    state.step()
    assert state == PipelineState(0)


def test_a_state_is_its_own_context() -> None:
    state = PipelineState(3, 1, 1, 4)
    with state as same:
        assert same is state


@pytest.mark.parametrize("numbers", [(-1,), (2, 2), (2, -1), (2, 0, 2), (0, 1)])
def test_a_state_outside_the_pipeline_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="index below stages"):
        PipelineState(*numbers)


# --- Pipeline: the plan -------------------------------------------------------------------------

tiles_of_any_size = st.dictionaries(
    st.sampled_from(["a", "b", "Scales", "q_2"]),
    st.builds(Tile, st.integers(1, 9000), st.sampled_from([16, 128, 256, 512, 1024])),
    min_size=1,
)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    return Pipeline.fit(
        tiles=draw(tiles_of_any_size),
        consumers=draw(st.integers(1, 4)),
        cluster_size=draw(st.integers(1, 16)),
        extra_bytes=draw(st.sampled_from([0, 1, 16, 4096, 65536])),
        side=draw(st.dictionaries(st.just("bias"), tiles_of_any_size.map(first_tile))),
        max_stages=draw(st.integers(1, 12)),
    )


def first_tile(tiles: dict[str, Tile]) -> Tile:
    return next(iter(tiles.values()))


@given(pipelines())
def test_every_buffer_is_aligned_and_none_overlap(pipeline: Pipeline) -> None:
    buffers = pipeline.shared_map

    for before, after in pairwise(buffers):
        assert before.end_bytes <= after.offset_bytes
    for buffer in buffers:
        assert buffer.offset_bytes % buffer.alignment == 0
        assert pipeline.shared_alignment % buffer.alignment == 0
    assert pipeline.shared_bytes % pipeline.shared_alignment == 0
    assert buffers[-1].end_bytes <= pipeline.shared_bytes <= MAX_SHARED_BYTES


@given(pipelines())
def test_every_stage_has_each_tile_and_both_barriers_in_full_size(pipeline: Pipeline) -> None:
    sizes = {(buffer.name, buffer.stage): buffer.size_bytes for buffer in pipeline.shared_map}

    for stage in range(pipeline.stages):
        for name, tile in (*pipeline.tiles.items(), *pipeline.side.items()):
            assert sizes.pop((name, stage)) == tile.tile_bytes
        assert sizes.pop(("full_barriers", stage)) == 8
        assert sizes.pop(("empty_barriers", stage)) == 8
    assert sizes == ({("extra", None): pipeline.extra_bytes} if pipeline.extra_bytes else {})


@given(pipelines())
def test_the_constants_lead_to_every_buffer(pipeline: Pipeline) -> None:
    constants = pipeline.constants()

    for buffer in pipeline.shared_map:
        name = buffer.name.upper()
        stride = constants.get(f"{name}_STRIDE", 8)
        assert buffer.offset_bytes == constants[f"{name}_OFFSET"] + (buffer.stage or 0) * stride
    assert constants["STAGES"] == pipeline.stages
    staged = (*pipeline.tiles.values(), *pipeline.side.values())
    assert constants["STAGE_BYTES"] == sum(tile.tile_bytes for tile in staged)
    assert constants["SHARED_BYTES"] == pipeline.shared_bytes
    assert constants["EMPTY_ARRIVALS"] == pipeline.consumers * pipeline.cluster_size


@given(tiles=tiles_of_any_size, extra_bytes=st.integers(0, 100_000))
def test_fit_takes_the_most_stages_that_fit(tiles: dict[str, Tile], extra_bytes: int) -> None:
    pipeline = Pipeline.fit(tiles=tiles, extra_bytes=extra_bytes)

    with pytest.raises(ArgumentError, match=f"Use at most {pipeline.stages} stages"):
        Pipeline(pipeline.stages + 1, tiles=tiles, extra_bytes=extra_bytes)


def test_a_matmul_ring_is_laid_out_as_by_hand() -> None:
    pipeline = Pipeline(4, tiles={"a": BIG, "b": Tile(32768, 1024)}, consumers=2, cluster_size=2)

    assert pipeline.constants() == {
        "STAGES": 4,
        "STAGE_BYTES": 49152,
        "SHARED_BYTES": 4 * 49152 + 1024,
        "SHARED_ALIGNMENT": 1024,
        "CONSUMERS": 2,
        "CLUSTER_SIZE": 2,
        "FULL_ARRIVALS": 1,
        "EMPTY_ARRIVALS": 4,
        "A_OFFSET": 0,
        "A_STRIDE": 49152,
        "B_OFFSET": 16384,
        "B_STRIDE": 49152,
        "FULL_BARRIERS_OFFSET": 196608,
        "EMPTY_BARRIERS_OFFSET": 196640,
    }


def test_members_lie_in_their_order_and_extra_bytes_after_the_ring() -> None:
    pipeline = Pipeline(
        2, tiles={"scales": Tile(200, 128), "a": BIG}, side={"bias": Tile(16, 16)}, extra_bytes=100
    )

    assert [(b.name, b.offset_bytes) for b in pipeline.shared_map if b.stage in (0, None)] == [
        ("scales", 0),
        ("a", 1024),
        ("full_barriers", 2 * 17408),
        ("empty_barriers", 2 * 17408 + 16),
        ("bias", 2 * 17408 + 32),
        ("extra", 35 * 1024),
    ]
    assert pipeline.shared_bytes == 36 * 1024
    assert pipeline.shared_map[1] == SharedBuffer(
        name="a", stage=0, offset_bytes=1024, size_bytes=16384, alignment=1024
    )


def test_too_many_stages_are_refused_with_the_number_that_fits() -> None:
    with pytest.raises(ArgumentError, match=r"shared_bytes is 263168; .* at most 7 stages"):
        Pipeline(8, tiles={"a": BIG, "b": BIG})


def test_a_stage_that_never_fits_is_refused_with_its_size() -> None:
    with pytest.raises(ArgumentError, match="One stage alone takes 300160: use smaller tiles"):
        Pipeline.fit(tiles={"a": Tile(300_000)})


def test_the_whole_of_shared_memory_can_be_used() -> None:
    pipeline = Pipeline(1, tiles={"a": Tile(MAX_SHARED_BYTES - 128)})
    assert pipeline.shared_bytes == MAX_SHARED_BYTES


def test_all_broken_arguments_are_named_at_once() -> None:
    with pytest.raises(ArgumentError) as raised:
        Pipeline(0, tiles={"a-b": Tile(0, 48)}, consumers=0, cluster_size=17, extra_bytes=-1)

    for words in (
        "stages is 0",
        "consumers is 0",
        "cluster_size is 17",
        "extra_bytes is -1",
        "tiles is 'a-b'",
        "tiles['a-b'].tile_bytes is 0",
        "tiles['a-b'].smem_alignment is 48",
    ):
        assert words in str(raised.value)


@pytest.mark.parametrize("names", [("a", "A"), ("extra",), ("full_barriers",), ("",), ("é",)])
def test_tile_names_must_make_distinct_constants(names: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError, match=f"tiles is '{names[-1]}'.*Choose another name"):
        Pipeline(1, tiles=dict.fromkeys(names, BIG))


def test_a_name_that_is_no_text_is_refused() -> None:
    names: Any = {1: BIG}
    with pytest.raises(ArgumentError, match="tiles is 1; it names constants of the kernel"):
        Pipeline(2, tiles=names)


def test_more_arrivals_than_an_mbarrier_counts_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"consumers is 524288; 2 CTAs make 1048576 arr.* 1048575"
    ):
        Pipeline(2, tiles={"a": BIG}, consumers=2**19, cluster_size=2)


def test_a_side_tile_may_not_have_the_name_of_a_tile() -> None:
    with pytest.raises(ArgumentError, match=r"side is 'a'.*Choose another name"):
        Pipeline(1, tiles={"a": BIG}, side={"a": Tile(16, 16)})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"producer_threads": 0}, "producer_threads is 0; a block has 1 to 1024 threads"),
        ({"producer_threads": 1025}, "producer_threads is 1025"),
        ({"producer_threads": 32, "cluster_size": 2}, "cluster_size is 2; only TMA multicasts"),
        ({"loads_ahead": 0}, "loads_ahead is 0; loads in flight take 1 stage at least, and all 2"),
        ({"loads_ahead": 3}, "loads_ahead is 3"),
        ({"loads_ahead": 1, "consumers": 2}, "consumers is 2; with loads_ahead one thread loads"),
        ({"loads_ahead": 1, "cluster_size": 2}, "cluster_size is 2; with loads_ahead"),
        ({"loads_ahead": 1, "producer_threads": 32}, "producer_threads is 32; with loads_ahead"),
    ],
)
def test_arguments_that_no_ring_has_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        Pipeline(2, tiles={"a": BIG}, **arguments)

    assert words in str(raised.value)


def test_later_changes_of_the_callers_dictionary_do_not_reach_the_pipeline() -> None:
    tiles = {"a": BIG}
    pipeline = Pipeline(2, tiles=tiles)
    tiles["b"] = BIG
    assert pipeline.stage_bytes == BIG.tile_bytes


def test_the_limits_are_the_chips() -> None:
    tiles = {"a": SimpleNamespace(tile_bytes=16384, smem_alignment=1024)}
    stages = {arch: Pipeline.fit(tiles=tiles, arch=arch).stages for arch in ("sm_90a", "sm_120a")}
    assert stages == {"sm_90a": 14, "sm_120a": 6}  # 227 KiB and 99 KiB, with the barriers
    with pytest.raises(ArgumentError, match=r"at most 101376 \(99 KiB\).*Use at most 6 stages"):
        Pipeline(7, tiles=tiles, arch="sm_120a")
    with pytest.raises(ArgumentError, match="cluster_size is 16; it must be from 1 to 8"):
        Pipeline(2, tiles=tiles, cluster_size=16, arch="sm_120a")
    with pytest.raises(ArgumentError, match=r"arch is 'sm_80'; its limits are not known.*sm_120a"):
        Pipeline(2, tiles=tiles, arch="sm_80")
