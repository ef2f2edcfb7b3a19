"""The search for an interleaving in which the protocol of a pipeline goes wrong.

The model is a loop without end: fill ``k`` goes into stage ``k % stages``, and each consumer reads
every fill in order. The barriers are ``tmaasync.barrier``'s. The loads of one fill land in
any order and as late as they like; fills land one after the other, which hides nothing, since no
two stages share a barrier and every consumer reads the fills in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tmaasync._kinds import check_integers, shown
from tmaasync._pipeline.protocol import PipelineProtocol, remedies
from tmaasync.barrier import BarrierWord
from tmaasync.errors import ArgumentError, ProtocolError

_MAX_STAGE_STATES = 4_000_000  # states x stages: some 15 seconds and 0.7 GB
_MAX_LONE_CONSUMERS = 3
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFault:
    """A failure of a pipeline: the shortest run to it, the reason, and the remedy.

    ``kind`` is ``"deadlock"``, ``"overwrite"`` (a load into a stage not yet read), ``"stale read"``
    (of a stage not yet landed) or ``"barrier"`` (more arrivals or bytes than a barrier can take).
    """

    kind: str
    run: tuple[str, ...]
    reason: str
    remedy: str

    def __str__(self) -> str:
        """Number the steps of the run."""
        count = f"{len(self.run)} step{'s' * (len(self.run) != 1)}"
        steps = [f"  {number}. {step}" for number, step in enumerate(self.run, 1)]
        return "\n".join([f"{self.kind} after {count}:", *steps, self.reason, self.remedy])


def check_protocol(protocol: PipelineProtocol) -> None:
    """Raise ``ProtocolError`` with the shortest faulty run, if there is one."""
    if fault := find_fault(protocol):
        raise ProtocolError(str(fault))


def find_fault(
    protocol: PipelineProtocol, max_stage_states: int = _MAX_STAGE_STATES
) -> PipelineFault | None:
    """Search all runs, shortest first, for a deadlock, an overwrite or a misused barrier.

    Consumers are alike: up to four move one by one; of more, all but three move together. A
    pipeline too large to search raises ``ProtocolError``: one with more than ``max_stage_states``
    states times stages.

    >>> from dataclasses import replace
    >>> protocol = PipelineProtocol.standard(2, consumers=1, load_bytes=(64, 32))
    >>> find_fault(protocol) is None
    True
    >>> print(find_fault(replace(protocol, expected_bytes=64)))
    stale read after 3 steps:
      1. producer passes empty[0] on parity 1, arrives on full[0] expecting 64 bytes
      2. producer loads fill 0 into stage 0
      3. 64 bytes of fill 0 land in stage 0
    consumer 0 reads fill 0 in stage 0, of which 32 bytes have not landed.
    expected_bytes is 64; 1 x 64 are announced per stage, whose loads bring 96. Announce 96 once.
    """
    _check_arguments(protocol, max_stage_states)
    search = _Search(protocol)
    here = _Visit(search.start())
    seen = {search.key(here.state)}
    queue = deque([here])
    while queue:
        here = queue.popleft()
        try:
            events = list(search.events(here.state))
        except ProtocolError as error:
            kind = error.kind if isinstance(error, _HazardError) else "barrier"
            return _fault(kind, here, str(error), protocol)
        if not events:
            return _fault("deadlock", here, search.who_waits(here.state), protocol)
        for step, state in events:
            key = search.key(state)
            if key not in seen:
                seen.add(key)
                queue.append(_Visit(state, here, step))
        if len(seen) * protocol.stages > max_stage_states:
            raise _too_long(len(seen), protocol)
    return None


def _check_arguments(protocol: object, max_stage_states: int) -> None:
    if not isinstance(protocol, PipelineProtocol):
        rule, remedy = "it must be a PipelineProtocol", "Pass pipeline.protocol()"
        raise ArgumentError.broken("protocol", shown(protocol), rule, remedy)
    check_integers(max_stage_states=max_stage_states)
    if protocol.stages * protocol.consumers > max_stage_states:
        raise _too_long(0, protocol)


def _too_long(states: int, protocol: PipelineProtocol) -> ProtocolError:
    return ProtocolError(
        f"the search gave up after {states} states of {protocol.stages} stages and "
        f"{protocol.consumers} consumers. Check the same protocol with fewer stages."
    )


class _HazardError(ProtocolError):
    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        super().__init__(reason)


class _State(NamedTuple):
    """Positions of all roles: the steps that each has done since the start."""

    full: tuple[BarrierWord, ...]
    empty: tuple[BarrierWord, ...]
    producer: int
    fills_landed: int
    bytes_to_land: tuple[int, ...]  # of fill number `fills_landed`, one entry per load
    consumers: tuple[int, ...]


class _Visit(NamedTuple):
    state: _State
    parent: _Visit | None = None
    step: str = ""


class _Search:
    """The moves that a protocol allows in a state."""

    def __init__(self, protocol: PipelineProtocol) -> None:
        self.protocol = protocol
        self.producer_blocks = _blocks(protocol.producer)
        self.consumer_blocks = _blocks(protocol.consumer)
        self.groups = _groups(protocol.consumers)

    def start(self) -> _State:
        given = self.protocol
        stages = range(given.stages)
        full = (BarrierWord.for_count(given.full_arrivals, f"full[{stage}]") for stage in stages)
        empty = (BarrierWord.for_count(given.empty_arrivals, f"empty[{stage}]") for stage in stages)
        if given.consumers_pre_arrive:
            empty = (_arrive(word, given.consumers) for word in empty)
        return _State(tuple(full), tuple(empty), 0, 0, given.load_bytes, (0,) * len(self.groups))

    def events(self, state: _State) -> Iterator[tuple[str, _State]]:
        """Yield what can happen next; a hazard or a misused barrier raises."""
        yield from self._producer_events(state)
        yield from self._landing_events(state)
        for consumer in range(len(self.groups)):
            yield from self._consumer_events(state, consumer)

    def key(self, state: _State) -> tuple[object, ...]:
        """Return the state as seen from the slowest consumer: equal keys have the same future.

        Counted from that consumer's fill, stages and parities are alike in every lap, and consumers
        of a group of one are interchangeable.
        """
        stages, blocks = self.protocol.stages, len(self.consumer_blocks)
        first = min(state.consumers) // blocks
        words = tuple(
            (word.pending, word.tx_count, (word.phase ^ fill // stages) & 1)
            for fill in range(first, first + stages)
            for word in (state.full[fill % stages], state.empty[fill % stages])
        )
        positions = [position - first * blocks for position in state.consumers]
        alone = len(positions) - (self.groups[-1].size > 1)
        return (
            words,
            state.producer - first * len(self.producer_blocks),
            state.fills_landed - first,
            state.bytes_to_land,
            *sorted(positions[:alone]),
            *positions[alone:],
            # Before the first fill nothing was read and nothing can be released.
            min(first, max(self.protocol.release_lag, self.protocol.reads_in_flight)),
        )

    def who_waits(self, state: _State) -> str:
        """Say what every role waits for, where none can go on."""
        fill = state.producer // len(self.producer_blocks)
        waits = [f"producer waits for {_wanted(state.empty[fill % self.protocol.stages])}"]
        for group, position in zip(self.groups, state.consumers, strict=True):
            fill = position // len(self.consumer_blocks)
            waits.append(f"{group.name} for {_wanted(state.full[fill % self.protocol.stages])}")
        return "no role can proceed: " + "; ".join(waits) + "."

    def _producer_events(self, state: _State) -> Iterator[tuple[str, _State]]:
        fill, block = divmod(state.producer, len(self.producer_blocks))
        lap, stage = divmod(fill, self.protocol.stages)
        parity = (self.protocol.producer_phase + lap) & 1
        full, done = state.full[stage], []
        for step in self.producer_blocks[block]:
            match step:
                case "wait":
                    if not state.empty[stage].has_completed(parity):
                        return
                    done.append(f"passes empty[{stage}] on parity {parity}")
                case "load":
                    self._refuse_overwrite(state, fill)
                    done.append(f"loads fill {fill} into stage {stage}")
                case _:
                    full, words = self._signal_full(step, full)
                    done.append(words)
        yield (
            f"producer {', '.join(done)}",
            state._replace(full=_with(state.full, stage, full), producer=state.producer + 1),
        )

    def _signal_full(self, step: str, full: BarrierWord) -> tuple[BarrierWord, str]:
        size_bytes = self.protocol.expected_bytes
        if step == "expect_bytes":
            words = f"arrives on {full.name} expecting {size_bytes} bytes"
            return full.expect_bytes(size_bytes), words
        if step == "expect_tx":
            return full.expect_tx(size_bytes), f"expects {size_bytes} bytes on {full.name}"
        return _arrive(full, self.protocol.producers), f"arrives on {full.name}"

    def _refuse_overwrite(self, state: _State, fill: int) -> None:
        stages = self.protocol.stages
        if fill < stages:
            return
        for group, position in zip(self.groups, state.consumers, strict=True):
            reads = _fills_past(self.consumer_blocks, "read", position)
            if reads - self.protocol.reads_in_flight < fill - stages + 1:
                raise _HazardError(
                    "overwrite",
                    f"producer loads fill {fill} into stage {fill % stages}, where {group.name} "
                    f"has not finished reading fill {fill - stages}.",
                )

    def _landing_events(self, state: _State) -> Iterator[tuple[str, _State]]:
        fill, waiting = state.fills_landed, state.bytes_to_land
        if fill == _fills_past(self.producer_blocks, "load", state.producer):
            return
        stage = fill % self.protocol.stages
        for load in range(len(waiting)):
            left = waiting[:load] + waiting[load + 1 :]
            full = state.full[stage].complete_tx(waiting[load])
            yield (
                f"{waiting[load]} bytes of fill {fill} land in stage {stage}",
                state._replace(
                    full=_with(state.full, stage, full),
                    fills_landed=fill if left else fill + 1,
                    bytes_to_land=left or self.protocol.load_bytes,
                ),
            )

    def _consumer_events(self, state: _State, consumer: int) -> Iterator[tuple[str, _State]]:
        group = self.groups[consumer]
        fill, block = divmod(state.consumers[consumer], len(self.consumer_blocks))
        lap, stage = divmod(fill, self.protocol.stages)
        parity = (self.protocol.consumer_phase + lap) & 1
        empty, done = state.empty, []
        for step in self.consumer_blocks[block]:
            match step:
                case "wait":
                    if not state.full[stage].has_completed(parity):
                        return
                    done.append(f"passes full[{stage}] on parity {parity}")
                case "read":
                    self._refuse_stale_read(state, fill, group.name)
                    done.append(f"reads fill {fill} in stage {stage}")
                case _:
                    empty, words = self._release(
                        empty, fill - self.protocol.release_lag, group.size
                    )
                    done.append(words)
        consumers = _with(state.consumers, consumer, state.consumers[consumer] + 1)
        yield f"{group.name} {', '.join(done)}", state._replace(empty=empty, consumers=consumers)

    def _refuse_stale_read(self, state: _State, fill: int, reader: str) -> None:
        if fill < state.fills_landed:
            return
        missing = state.bytes_to_land if fill == state.fills_landed else self.protocol.load_bytes
        raise _HazardError(
            "stale read",
            f"{reader} reads fill {fill} in stage {fill % self.protocol.stages}, of which "
            f"{sum(missing)} bytes have not landed.",
        )

    def _release(
        self, empty: tuple[BarrierWord, ...], fill: int, arrivals: int
    ) -> tuple[tuple[BarrierWord, ...], str]:
        if fill < 0:
            return empty, "has nothing to release yet"
        stage = fill % self.protocol.stages
        return _with(empty, stage, _arrive(empty[stage], arrivals)), f"arrives on empty[{stage}]"


class _Group(NamedTuple):
    """Consumers that move together."""

    name: str
    size: int


def _groups(consumers: int) -> tuple[_Group, ...]:
    alone = consumers if consumers <= _MAX_LONE_CONSUMERS + 1 else _MAX_LONE_CONSUMERS
    groups = [_Group(f"consumer {consumer}", 1) for consumer in range(alone)]
    if alone < consumers:
        groups.append(_Group(f"consumers {alone} to {consumers - 1}", consumers - alone))
    return tuple(groups)


def _blocks(steps: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Cut the steps of a role into blocks that the other roles see as one step.

    Only a signal (an arrival, an expectation, a load) lets others go on, and only a wait can hold
    the role up: a block ends after each signal and before each wait.
    """
    blocks: list[list[str]] = [[]]
    for step in steps:
        if step == "wait" and blocks[-1]:
            blocks.append([])
        blocks[-1].append(step)
        if step not in ("wait", "read"):
            blocks.append([])
    return tuple(tuple(block) for block in blocks if block)


def _fills_past(blocks: tuple[tuple[str, ...], ...], step: str, position: int) -> int:
    """Return how often a role at this position has done the step."""
    fill, block = divmod(position, len(blocks))
    return fill + any(step in done for done in blocks[:block])


def _arrive(word: BarrierWord, arrivals: int) -> BarrierWord:
    """Arrive one by one: the phase may complete on the way."""
    while arrivals:
        together = max(min(arrivals, word.pending), 1)
        word = word.arrive(together)
        arrivals -= together
    return word


def _with(items: tuple[_Item, ...], index: int, item: _Item) -> tuple[_Item, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _wanted(word: BarrierWord) -> str:
    return f"phase {word.phase} of {word.name} ({word.missing} missing)"


def _fault(kind: str, visit: _Visit, reason: str, protocol: PipelineProtocol) -> PipelineFault:
    run = []
    here: _Visit | None = visit
    while here and here.parent:
        run.append(here.step)
        here = here.parent
    advice = [str(remedy) for remedy in remedies(protocol)]
    return PipelineFault(
        kind=kind,
        run=tuple(reversed(run)),
        reason=reason,
        remedy="\n".join(advice) or "Compare it with PipelineProtocol.standard.",
    )
