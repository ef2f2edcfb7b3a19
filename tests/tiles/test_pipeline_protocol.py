"""PipelineProtocol finds deadlocks and races of a ring; a plain search agrees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiles.test_pipeline import BIG, pipelines

from tmaasync.errors import ArgumentError, ProtocolError
from tmaasync.pipeline import Pipeline, PipelineProtocol, check_protocol, find_fault

# --- PipelineProtocol: the search ---------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("load_bytes", [(64,), (64, 32), (64, 32, 32)])
def test_the_standard_ring_is_sound(
    stages: int, consumers: int, load_bytes: tuple[int, ...]
) -> None:
    protocol = PipelineProtocol.standard(stages, consumers=consumers, load_bytes=load_bytes)

    assert find_fault(protocol) is None
    check_protocol(protocol)


@pytest.mark.parametrize(
    "edit",
    [
        {"producer_phase": 0, "consumers_pre_arrive": True},
        {"release_lag": 1, "reads_in_flight": 1},
        {"release_lag": 1},
        {"producer": ("wait", "load", "expect_bytes")},
        {"producer": ("wait", "expect_tx", "arrive", "load")},
        {
            "producer": ("wait", "expect_tx", "load", "arrive"),
            "producers": 128,
            "full_arrivals": 128,
        },
    ],
)
@pytest.mark.parametrize("consumers", [1, 2, 5, 300])
def test_other_sound_ways_to_run_a_ring_are_sound(edit: dict[str, Any], consumers: int) -> None:
    protocol = PipelineProtocol.standard(3, consumers=consumers, load_bytes=(64, 32))
    assert find_fault(replace(protocol, **edit)) is None


_THREADS = {"producer": ("wait", "expect_tx", "load", "arrive"), "producers": 32}

# The edit, what happens, the length of the shortest run into it, words of the remedy. Lengths are
# counted by hand for two stages, two consumers and two loads: a fill is expected (1), loaded (2)
# and landed in two parts (3, 4); 8 steps fill the pipeline; a consumer's turn is one step.
MISTAKES: dict[str, tuple[dict[str, Any], str, int, str]] = {
    "a tile forgotten in the expected bytes": (
        {"expected_bytes": 64}, "stale read", 3, "Announce 96 once"
    ),
    "more bytes expected than loaded": ({"expected_bytes": 128}, "deadlock", 8, "Announce 96"),
    "no bytes expected": ({"expected_bytes": 0}, "stale read", 1, "Announce 96 once"),
    "a bare expect_tx": (
        {"producer": ("wait", "expect_tx", "load")}, "deadlock", 8, "expect_tx does not"
    ),
    "an arrival before the bytes are expected": (
        {"producer": ("wait", "arrive", "expect_tx", "load")}, "stale read", 1, "Expect first"
    ),
    "one expect_bytes per tile on a barrier of one": (
        {"producer": ("wait", "expect_bytes", "expect_bytes", "load"), "expected_bytes": 48},
        "barrier",
        1,
        "call expect_bytes once",
    ),
    "a full barrier for too many": ({"full_arrivals": 2}, "deadlock", 8, "full barriers with 1"),
    "an empty barrier for too many": (
        {"empty_arrivals": 3}, "deadlock", 12, "empty barriers with 2"
    ),
    "an empty barrier for too few": (
        {"empty_arrivals": 1}, "overwrite", 8, "empty barriers with 2"
    ),
    "a consumer that never releases": (
        {"consumer": ("wait", "read")}, "deadlock", 12, "Let each arrive once"
    ),
    "a consumer that releases twice": (
        {"consumer": ("wait", "read", "arrive", "arrive")}, "overwrite", 9, "Let each arrive once"
    ),
    "a release before the read": (
        {"consumer": ("wait", "arrive", "read")}, "overwrite", 9, "Read, then arrive"
    ),
    "a release with wgmma still reading": (
        {"reads_in_flight": 1}, "overwrite", 9, "Use release_lag=1"
    ),
    "a release as late as the pipeline is long": (
        {"release_lag": 2}, "deadlock", 12, "Use at least 3 stages"
    ),
    "a producer on phase 0": ({"producer_phase": 0}, "deadlock", 0, "producer on phase 1"),
    "a producer on phase 1 after early arrivals": (
        {"consumers_pre_arrive": True}, "deadlock", 0, "producer on phase 0"
    ),
    "a plain arrival after cp.async": (
        {"producer": ("wait", "load", "arrive"), "expected_bytes": 0}, "stale read", 2, "96 once"
    ),
    "full barriers for fewer threads than fill a stage": (
        {**_THREADS, "full_arrivals": 31}, "barrier", 2, "Initialise the full barriers with 32"
    ),
    "full barriers for more threads than fill a stage": (
        {**_THREADS, "full_arrivals": 33}, "deadlock", 10, "Initialise the full barriers with 32"
    ),
    "a consumer on phase 1": ({"consumer_phase": 1}, "stale read", 0, "consumers on phase 0"),
    "a consumer that does not wait": (
        {"consumer": ("read", "arrive")}, "stale read", 0, "Wait, then read"
    ),
    "a producer that does not wait": (
        {"producer": ("expect_bytes", "load")}, "barrier", 4, "Wait, then load"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_classic_mistake_is_found_by_its_shortest_run(mistake: str) -> None:
    edit, kind, steps, remedy = MISTAKES[mistake]
    right = PipelineProtocol.standard(2, consumers=2, load_bytes=(64, 32))

    fault = find_fault(replace(right, **edit))

    assert fault is not None
    assert (fault.kind, len(fault.run)) == (kind, steps)
    assert remedy in fault.remedy


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("off", [-1, 1])
def test_empty_arrivals_off_by_one_are_found_at_any_size(
    stages: int, consumers: int, off: int
) -> None:
    right = PipelineProtocol.standard(stages, consumers=consumers, load_bytes=(64,))
    arrivals = max(consumers + off, 1)

    fault = find_fault(replace(right, empty_arrivals=arrivals))

    if arrivals == consumers:
        assert fault is None
    else:
        assert fault is not None
        assert fault.kind == ("overwrite" if off < 0 else "deadlock")


@pytest.mark.parametrize("consumers", [5, 8, 256])
@pytest.mark.parametrize("off", [-1, 1])
def test_one_arrival_of_many_too_few_or_too_many_is_found(consumers: int, off: int) -> None:
    right = PipelineProtocol.standard(3, consumers=consumers, load_bytes=(64,))
    fault = find_fault(replace(right, empty_arrivals=consumers + off))

    assert fault is not None
    assert fault.kind == ("overwrite" if off < 0 else "deadlock")


def test_the_report_is_a_numbered_run_with_reason_and_remedy() -> None:
    right = PipelineProtocol.standard(1, consumers=2, load_bytes=(64,))

    with pytest.raises(ProtocolError) as raised:
        check_protocol(replace(right, empty_arrivals=1))

    assert str(raised.value).splitlines() == [
        "overwrite after 5 steps:",
        "  1. producer passes empty[0] on parity 1, arrives on full[0] expecting 64 bytes",
        "  2. producer loads fill 0 into stage 0",
        "  3. 64 bytes of fill 0 land in stage 0",
        "  4. consumer 0 passes full[0] on parity 0, reads fill 0 in stage 0, arrives on empty[0]",
        "  5. producer passes empty[0] on parity 0, arrives on full[0] expecting 64 bytes",
        "producer loads fill 1 into stage 0, where consumer 1 has not finished reading fill 0.",
        (
            "empty_arrivals is 1; the consumers make 2 x 1 per stage. "
            "Let each arrive once, and initialise the empty barriers with 2."
        ),
    ]


def test_a_deadlock_names_every_barrier_waited_for_and_what_it_lacks() -> None:
    right = PipelineProtocol.standard(1, consumers=1, load_bytes=(64,))
    fault = find_fault(replace(right, expected_bytes=80))

    assert fault is not None
    assert fault.reason == (
        "no role can proceed: producer waits for phase 0 of empty[0] (1 of 1 arrivals missing); "
        "consumer 0 for phase 0 of full[0] (16 bytes missing)."
    )


def test_a_ring_too_large_to_search_says_so() -> None:
    large = PipelineProtocol.standard(16, consumers=4, load_bytes=(16,) * 6)
    with pytest.raises(ProtocolError, match="Check the same protocol with fewer stages"):
        find_fault(large, max_stage_states=1000)


def test_what_describes_no_ring_is_refused_with_every_reason() -> None:
    with pytest.raises(ArgumentError) as raised:
        PipelineProtocol(
            stages=0,
            consumers=1,
            load_bytes=(),
            expected_bytes=-1,
            empty_arrivals=0,
            producer=("wait", "expect_bytes"),
            consumer=("wait", "sleep", "read"),
            consumer_phase=2,
        )

    for words in (
        "stages is 0",
        "load_bytes is ()",
        "expected_bytes is -1",
        "empty_arrivals is 0",
        "producer is ('wait', 'expect_bytes')",
        "consumer is ('wait', 'sleep', 'read')",
        "consumer_phase is 2",
    ):
        assert words in str(raised.value)


@given(pipelines())
def test_a_pipeline_describes_its_own_protocol(pipeline: Pipeline) -> None:
    protocol = pipeline.protocol()

    assert protocol.consumers == protocol.empty_arrivals == pipeline.constants()["EMPTY_ARRIVALS"]
    assert protocol.expected_bytes == pipeline.stage_bytes
    assert protocol.stages == pipeline.stages


@pytest.mark.parametrize("producer_threads", [1, 32, 256])
def test_pipelines_that_threads_fill_pass_their_own_check(producer_threads: int) -> None:
    pipeline = Pipeline(3, tiles={"a": BIG}, consumers=4, producer_threads=producer_threads)

    assert pipeline.constants()["FULL_ARRIVALS"] == pipeline.protocol().full_arrivals
    pipeline.check()


@pytest.mark.parametrize("loads_ahead", [1, 2, 3])
def test_pipelines_that_stores_drain_pass_their_own_check(loads_ahead: int) -> None:
    pipeline = Pipeline(3, tiles={"a": BIG}, loads_ahead=loads_ahead)

    assert pipeline.constants()["LOADS_AHEAD"] == loads_ahead
    pipeline.check()
    if loads_ahead < 3:
        sooner = replace(pipeline.protocol(), release_lag=pipeline.protocol().release_lag - 1)
        fault = find_fault(sooner)
        assert fault is not None
        assert fault.kind == "overwrite"


@pytest.mark.parametrize("cluster_size", [1, 2, 4])
@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_pipelines_pass_their_own_check(consumers: int, cluster_size: int) -> None:
    Pipeline(4, tiles={"a": BIG, "b": BIG}, consumers=consumers, cluster_size=cluster_size).check()


def test_a_cluster_whose_empty_barriers_count_one_cta_only_is_found() -> None:
    pipeline = Pipeline(2, tiles={"a": BIG}, consumers=2, cluster_size=2)
    fault = find_fault(replace(pipeline.protocol(), empty_arrivals=pipeline.consumers))

    assert fault is not None
    assert fault.kind == "overwrite"


# --- The search against a plain one: every step on its own, any landing order, no reduction -------


class PlainSearch:
    """A finite number of fills, in integers: states are (roles, loads in flight, barriers)."""

    def __init__(self, protocol: PipelineProtocol, fills: int) -> None:
        self.protocol, self.fills = protocol, fills

    def faults(self) -> set[str]:
        """All kinds of fault that any run can meet first."""
        protocol = self.protocol
        kinds: set[str] = set()
        full = ((protocol.full_arrivals, 0, 0),) * protocol.stages
        empty = ((protocol.empty_arrivals, 0, 0),) * protocol.stages
        for _ in range(protocol.consumers * protocol.consumers_pre_arrive):
            empty = tuple(self.signal(word, protocol.empty_arrivals, 1, 0) for word in empty)
        start: Any = ((0,) * (1 + protocol.consumers), frozenset(), full, empty)
        seen, todo = {start}, [start]
        while todo:
            state = todo.pop()
            following = list(self.moves(*state))
            kinds.update(move for move in following if isinstance(move, str))
            if not following and not self.finished(state[0]):
                kinds.add("deadlock")
            fresh = {move for move in following if not isinstance(move, str)} - seen
            seen |= fresh
            todo += fresh
        return kinds

    def finished(self, roles: tuple[int, ...]) -> bool:
        ends = [len(self.protocol.producer)] + [
            len(self.protocol.consumer)
        ] * self.protocol.consumers
        return roles == tuple(end * self.fills for end in ends)

    @staticmethod
    def signal(word: Any, count: int, arrivals: int, size_bytes: int) -> Any:
        pending, tx_count, phase = word
        if arrivals > pending:
            return "barrier"
        pending, tx_count = pending - arrivals, tx_count + size_bytes
        return (count, 0, phase + 1) if pending == tx_count == 0 else (pending, tx_count, phase)

    def moves(self, roles: Any, flying: Any, full: Any, empty: Any) -> Iterator[Any]:
        protocol = self.protocol
        for load in flying:
            stage = load[0] % protocol.stages
            word = self.signal(
                full[stage], protocol.full_arrivals, 0, -protocol.load_bytes[load[1]]
            )
            yield roles, flying - {load}, put(full, stage, word), empty
        for role, done in enumerate(roles):
            steps = protocol.consumer if role else protocol.producer
            fill, step = divmod(done, len(steps))
            if fill == self.fills:
                continue
            after = (put(roles, role, done + 1), flying, full, empty)
            stage, lap = fill % protocol.stages, fill // protocol.stages
            move = self.consume if role else self.produce
            yield from move(steps[step], fill, stage, lap, after)

    def produce(self, step: str, fill: int, stage: int, lap: int, state: Any) -> Any:
        protocol, (roles, flying, full, empty) = self.protocol, state
        if step == "wait":
            if empty[stage][2] % 2 != (protocol.producer_phase + lap) % 2:
                yield state
        elif step == "load":
            if any(self.reads(done) < fill - protocol.stages + 1 for done in roles[1:]):
                yield "overwrite"
            else:
                loads = {(fill, load) for load in range(len(protocol.load_bytes))}
                yield roles, flying | loads, full, empty
        else:
            size_bytes = protocol.expected_bytes if step.startswith("expect") else 0
            word = full[stage]
            for _ in range(protocol.producers if step == "arrive" else 1):
                arrivals = int(step != "expect_tx")
                if not isinstance(word, str):
                    word = self.signal(word, protocol.full_arrivals, arrivals, size_bytes)
            yield word if isinstance(word, str) else (roles, flying, put(full, stage, word), empty)

    def consume(self, step: str, fill: int, stage: int, lap: int, state: Any) -> Any:
        protocol, (roles, flying, full, empty) = self.protocol, state
        if step == "wait":
            if full[stage][2] % 2 != (protocol.consumer_phase + lap) % 2:
                yield state
        elif step == "read":
            loaded = roles[0] > fill * len(protocol.producer) + protocol.producer.index("load")
            yield state if loaded and fill not in {load[0] for load in flying} else "stale read"
        elif fill < protocol.release_lag:
            yield state
        else:
            stage = (fill - protocol.release_lag) % protocol.stages
            word = self.signal(empty[stage], protocol.empty_arrivals, 1, 0)
            yield roles, flying, full, put(empty, stage, word)

    def reads(self, done: int) -> int:
        """Fills that a consumer has finished reading; none is owed before fill 0."""
        fill, step = divmod(done, len(self.protocol.consumer))
        begun = fill + (step > self.protocol.consumer.index("read"))
        return max(begun - self.protocol.reads_in_flight, 0)


def put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


@st.composite
def edited_rings(draw: st.DrawFn) -> PipelineProtocol:
    load_bytes = draw(st.sampled_from([(32,), (32, 16)]))
    protocol = PipelineProtocol.standard(
        draw(st.integers(1, 2)), consumers=draw(st.integers(1, 2)), load_bytes=load_bytes
    )
    edits: dict[str, list[Any]] = {
        "expected_bytes": [0, 16, 32, 48, 64],
        "empty_arrivals": [1, 2, 3],
        "full_arrivals": [1, 2],
        "producers": [1, 2],
        "producer": [
            ("wait", "load", "expect_bytes"),
            ("expect_bytes", "wait", "load"),
            ("wait", "expect_tx", "load"),
            ("wait", "expect_tx", "arrive", "load"),
            ("wait", "arrive", "load", "expect_bytes"),
            ("wait", "expect_tx", "load", "arrive"),
        ],
        "consumer": [
            ("wait", "arrive", "read"),
            ("arrive", "wait", "read"),
            ("wait", "read", "arrive", "arrive"),
            ("read", "wait", "arrive"),
        ],
        "producer_phase": [0],
        "consumer_phase": [1],
        "consumers_pre_arrive": [True],
        "reads_in_flight": [1, 2],
        "release_lag": [1, 2],
    }
    names = draw(st.sets(st.sampled_from(sorted(edits)), max_size=3))
    return replace(protocol, **{name: draw(st.sampled_from(edits[name])) for name in sorted(names)})


@given(edited_rings())
def test_the_search_agrees_with_a_plain_one_that_takes_every_step_alone(
    protocol: PipelineProtocol,
) -> None:
    kinds = PlainSearch(protocol, fills=2 * protocol.stages + 2).faults()
    fault = find_fault(protocol)

    assert (fault is None) == (not kinds)
    if fault is not None:
        assert fault.kind in kinds
