"""The protocol of a pipeline as a value: each role's operations on each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from tmaasync._kinds import not_flags, not_integers, not_sequences_of_integers, shown
from tmaasync.errors import ArgumentError, Violation

_PRODUCER_STEPS = ("wait", "expect_bytes", "expect_tx", "arrive", "load")
_CONSUMER_STEPS = ("wait", "read", "arrive")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProtocol:
    """Each role's operations on each stage; ``standard`` builds the standard protocol.

    Describe your own kernel by editing it with ``dataclasses.replace``:

    * ``load_bytes``: bytes of each load into one stage; ``expected_bytes``: what one
      ``expect_bytes`` or ``expect_tx`` announces.
    * ``full_arrivals``, ``empty_arrivals``: the counts with which the barriers are initialised.
    * ``producer``: its steps per stage, of ``wait`` (for the empty barrier), ``expect_bytes``
      (arrives on the full barrier), ``expect_tx`` (does not), ``arrive`` and ``load`` (all loads).
    * ``consumer``: its steps per stage, of ``wait`` (for the full barrier), ``read`` and ``arrive``
      (on the empty barrier).
    * ``producers``: threads that fill a stage together; each does every ``arrive`` of the producer.
    * ``producer_phase``, ``consumer_phase``: the parity of the first wait.
    * ``consumers_pre_arrive``: every consumer arrives on every empty barrier before the loop.
    * ``reads_in_flight``: reads that still run after their step: N of ``wgmma.wait_group<N>``.
    * ``release_lag``: ``arrive`` releases the stage that was read this many steps before.

    >>> from dataclasses import replace
    >>> protocol = PipelineProtocol.standard(2, consumers=1, load_bytes=(64, 64))
    >>> replace(protocol, release_lag=1).consumer
    ('wait', 'read', 'arrive')
    """

    stages: int
    consumers: int
    load_bytes: tuple[int, ...]
    expected_bytes: int
    empty_arrivals: int
    full_arrivals: int = 1
    producers: int = 1
    producer: tuple[str, ...] = ("wait", "expect_bytes", "load")
    consumer: tuple[str, ...] = ("wait", "read", "arrive")
    producer_phase: int = 1
    consumer_phase: int = 0
    consumers_pre_arrive: bool = False
    reads_in_flight: int = 0
    release_lag: int = 0

    def __post_init__(self) -> None:
        """Reject numbers that describe no pipeline; whether a pipeline works, the search finds."""
        ArgumentError.raise_for(_kind_violations(self))
        ArgumentError.raise_for(_violations(self))

    @classmethod
    def standard(cls, stages: int, *, consumers: int, load_bytes: Sequence[int]) -> Self:
        """Return the standard protocol: one TMA producer, full and empty barriers, no mistake."""
        ArgumentError.raise_for(not_sequences_of_integers(load_bytes=load_bytes))
        return cls(
            stages=stages,
            consumers=consumers,
            load_bytes=tuple(load_bytes),
            expected_bytes=sum(load_bytes),
            empty_arrivals=consumers,
        )


def remedies(protocol: PipelineProtocol) -> tuple[Violation, ...]:
    """Return where a protocol departs from a sound one, the likeliest cause first."""
    return (
        *_order_remedies(protocol),
        *_count_remedies(protocol),
        *_phase_remedies(protocol),
        *_lag_remedies(protocol),
    )


def _order_remedies(protocol: PipelineProtocol) -> Iterator[Violation]:
    producer, consumer = protocol.producer, protocol.consumer
    if "wait" not in producer[: producer.index("load")]:
        yield Violation(
            "producer",
            producer,
            "it loads before it waits for an empty stage",
            "Wait, then load",
        )
    if "arrive" in producer and "expect_tx" in producer[producer.index("arrive") :]:
        yield Violation(
            "producer", producer, "the phase may end before the bytes are expected", "Expect first"
        )
    if "wait" not in consumer[: consumer.index("read")]:
        yield Violation(
            "consumer", consumer, "it reads before it waits for a full stage", "Wait, then read"
        )
    if "arrive" in consumer[: consumer.index("read")] and protocol.release_lag == 0:
        yield Violation(
            "consumer", consumer, "it releases the stage before it has read", "Read, then arrive"
        )


def _count_remedies(protocol: PipelineProtocol) -> Iterator[Violation]:
    expects = protocol.producer.count("expect_bytes") + protocol.producer.count("expect_tx")
    loaded_bytes = sum(protocol.load_bytes)
    if expects * protocol.expected_bytes != loaded_bytes:
        yield Violation(
            "expected_bytes",
            protocol.expected_bytes,
            f"{expects} x {protocol.expected_bytes} are announced per stage, whose loads bring "
            f"{loaded_bytes}",
            f"Announce {loaded_bytes} once",
        )
    yield from _full_arrival_remedies(protocol)
    released = protocol.consumer.count("arrive")
    if protocol.consumers * released != protocol.empty_arrivals:
        yield Violation(
            "empty_arrivals",
            protocol.empty_arrivals,
            f"the consumers make {protocol.consumers} x {released} per stage",
            f"Let each arrive once, and initialise the empty barriers with {protocol.consumers}",
        )


def _full_arrival_remedies(protocol: PipelineProtocol) -> Iterator[Violation]:
    expects, arrives = protocol.producer.count("expect_bytes"), protocol.producer.count("arrive")
    made = expects + arrives * protocol.producers
    if made == protocol.full_arrivals:
        return
    if protocol.producers == 1:
        rule = f"the producer makes {made} per stage (expect_bytes arrives, expect_tx does not)"
        remedy = "Initialise the full barriers with 1 and call expect_bytes once"
    else:
        rule = f"the producer threads make {made} per stage"
        remedy = f"Initialise the full barriers with {made}"
    yield Violation("full_arrivals", protocol.full_arrivals, rule, remedy)


def _phase_remedies(protocol: PipelineProtocol) -> Iterator[Violation]:
    first = 0 if protocol.consumers_pre_arrive else 1
    if protocol.producer_phase != first:
        yield Violation(
            "producer_phase",
            protocol.producer_phase,
            "it must be 1 on fresh empty barriers, and 0 where the consumers arrive beforehand",
            f"Start the producer on phase {first}",
        )
    if protocol.consumer_phase != 0:
        yield Violation(
            "consumer_phase",
            protocol.consumer_phase,
            "a fresh barrier passes a wait on parity 1 at once",
            "Start the consumers on phase 0",
        )


def _lag_remedies(protocol: PipelineProtocol) -> Iterator[Violation]:
    if protocol.reads_in_flight > protocol.release_lag:
        yield Violation(
            "release_lag",
            protocol.release_lag,
            f"reads still running after the read step: {protocol.reads_in_flight}",
            f"Use release_lag={protocol.reads_in_flight}, or wait for the reads",
        )
    if protocol.release_lag >= protocol.stages:
        yield Violation(
            "release_lag",
            protocol.release_lag,
            f"stages is {protocol.stages}, and the producer needs one to go on",
            f"Use at least {protocol.release_lag + 1} stages, or release sooner",
        )


_INTEGERS = (
    "stages",
    "consumers",
    "full_arrivals",
    "producers",
    "empty_arrivals",
    "expected_bytes",
    "producer_phase",
    "consumer_phase",
    "reads_in_flight",
    "release_lag",
)


def _kind_violations(protocol: PipelineProtocol) -> Iterator[Violation]:
    yield from not_integers(**{name: getattr(protocol, name) for name in _INTEGERS})
    yield from not_flags(consumers_pre_arrive=protocol.consumers_pre_arrive)
    yield from not_sequences_of_integers(load_bytes=protocol.load_bytes)
    for name in ("producer", "consumer"):
        steps = getattr(protocol, name)
        if not isinstance(steps, tuple) or not all(isinstance(step, str) for step in steps):
            rule, remedy = "it must be a tuple of steps", "Pass names such as ('wait', 'load')"
            yield Violation(name, shown(steps), rule, remedy)


def _violations(protocol: PipelineProtocol) -> Iterator[Violation]:
    for name, least in (
        ("stages", 1),
        ("consumers", 1),
        ("full_arrivals", 1),
        ("producers", 1),
        ("empty_arrivals", 1),
        ("expected_bytes", 0),
        ("reads_in_flight", 0),
        ("release_lag", 0),
    ):
        value = getattr(protocol, name)
        if value < least:
            yield Violation(name, value, f"it must be at least {least}", f"Pass {least} or more")
    if not len(protocol.load_bytes) or min(protocol.load_bytes) < 1:
        yield Violation(
            "load_bytes",
            protocol.load_bytes,
            "each load brings bytes",
            "List the tiles' tile_bytes",
        )
    for name in ("producer_phase", "consumer_phase"):
        if getattr(protocol, name) not in (0, 1):
            yield Violation(name, getattr(protocol, name), "a phase is 0 or 1", "Pass a parity")
    yield from _step_violations("producer", protocol.producer, _PRODUCER_STEPS, "load")
    yield from _step_violations("consumer", protocol.consumer, _CONSUMER_STEPS, "read")


def _step_violations(
    name: str, steps: tuple[str, ...], known: tuple[str, ...], once: str
) -> Iterator[Violation]:
    if not set(steps) <= set(known) or steps.count(once) != 1:
        yield Violation(
            name,
            steps,
            f"its steps are {', '.join(known)}, with one {once}",
            "Leave out the others",
        )
