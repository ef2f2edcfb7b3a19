"""Registers of producer and consumer warpgroups (``setmaxnreg``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from tmaasync._hardware import MAX_BLOCK_THREADS, WARPGROUP_THREADS
from tmaasync._kinds import check_integers, is_integer, shown
from tmaasync.errors import ArgumentError, Violation

__all__ = ["RegisterSplit", "launch_registers"]

_REGISTERS = 64 * 1024  # of one SM
_MAX_WARPGROUPS = MAX_BLOCK_THREADS // WARPGROUP_THREADS
_GRANULE = 8
_LEAST, _MOST = 24, 256  # PTX ISA: setmaxnreg
_USUAL = 240  # where libraries stop; a thread can address 255


@dataclass(frozen=True, slots=True)
class RegisterSplit:
    """Registers per thread of producer and consumer warpgroups (``setmaxnreg``, sm_90a).

    Every thread of a block starts with the same number. Producers, which only issue copies, give
    most of theirs back; consumers, which hold accumulators, claim them. A consumer that claims more
    than the block has left would wait for ever: these numbers raise an error.

    `constants` passes the numbers to the kernel, which has ``__launch_bounds__(threads, 1)``. There
    ``WarpSpecialized<n, RegisterSplit<PRODUCER_REGISTERS, CONSUMER_REGISTERS>>`` applies them, and
    a static assertion checks the same rules. Without ``WarpSpecialized``, all of a producer
    warpgroup calls ``release_registers<PRODUCER_REGISTERS>()`` and all of a consumer warpgroup
    ``claim_registers<CONSUMER_REGISTERS>()``.

    Args:
        producers: Producer warpgroups, of 128 threads each.
        consumers: Consumer warpgroups.
        producer: Registers that each producer thread keeps: a multiple of 8 from 24.
        consumer: Registers of each consumer thread: a multiple of 8 up to 256. 0 for both leaves
            all as they are.

    Raises:
        ArgumentError: The numbers are none that the instruction takes, or do not fit; every broken
            rule is listed.

    >>> split = RegisterSplit.fit(producers=1, consumers=2)
    >>> split
    RegisterSplit(producers=1, consumers=2, producer=24, consumer=240)
    >>> print(split.explain())  # doctest: +NORMALIZE_WHITESPACE
    3 warpgroups start with 168 registers a thread, 64512 in all. A producer thread keeps 24, a
    consumer thread gets 240: 64512 in all.
    >>> RegisterSplit(1, 2, 40, 240)  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    tmaasync.errors.ArgumentError: consumer is 240; with producer=40 the block would need 66560
    registers and has 64512, so that setmaxnreg.inc would wait for ever. Use consumer=232, or fewer
    registers for producers.
    """

    producers: int
    consumers: int
    producer: int
    consumer: int

    def __post_init__(self) -> None:
        """Refuse a split that the hardware cannot have."""
        ArgumentError.raise_for(_number_violations(self))
        ArgumentError.raise_for(_fit_violations(self))

    @classmethod
    def fit(cls, *, producers: int = 1, consumers: int = 2, producer: int = 24) -> Self:
        """Return the split that gives consumers most, up to 240.

        Args:
            producers: Producer warpgroups.
            consumers: Consumer warpgroups.
            producer: Registers that each producer thread keeps.

        Raises:
            ArgumentError: As above.
        """
        # Without registers: refuses impossible warpgroups with the same messages.
        cls(producers, consumers, 0, 0)
        ArgumentError.raise_for(_register_violations("producer", producer))
        return cls(producers, consumers, producer, _most(producers, consumers, producer))

    @property
    def off(self) -> Self:
        """The same warpgroups without any reallocation."""
        return replace(self, producer=0, consumer=0)

    @property
    def is_off(self) -> bool:
        """True if all threads keep the registers that they start with."""
        return self.consumer == 0

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return WARPGROUP_THREADS * (self.producers + self.consumers)

    @property
    def launch_registers(self) -> int:
        """Registers that every thread starts with.

        The compiler takes it from ``__launch_bounds__``, and no more than consumers will have.
        """
        whole = _launch_limit(self.producers + self.consumers)
        return whole if self.is_off else min(whole, self.consumer)

    @property
    def constants(self) -> Mapping[str, int]:
        """Constants for ``Kernel(constants=...)``."""
        return {"PRODUCER_REGISTERS": self.producer, "CONSUMER_REGISTERS": self.consumer}

    def explain(self) -> str:
        """Describe the registers that every thread starts with, keeps and gets."""
        groups = self.producers + self.consumers
        start = (
            f"{groups} warpgroups start with {self.launch_registers} registers a thread, "
            f"{self.threads * self.launch_registers} in all."
        )
        if self.is_off:
            return f"{start} No thread releases or claims any."
        return (
            f"{start} A producer thread keeps {self.producer}, a consumer thread gets "
            f"{self.consumer}: {_needed(self)} in all."
        )


def launch_registers(threads: int) -> int:
    """Return the most registers with which every one of an SM's threads can start."""
    check_integers(threads=threads)
    if threads < 1:
        rule, remedy = "a block has at least one thread", "Pass the threads of a block"
        raise ArgumentError.broken("threads", threads, rule, remedy)
    return min(_REGISTERS // threads // _GRANULE * _GRANULE, _MOST)


def _launch_limit(warpgroups: int) -> int:
    return launch_registers(WARPGROUP_THREADS * warpgroups)


def _needed(split: RegisterSplit) -> int:
    per_lane = split.producers * split.producer + split.consumers * split.consumer
    return WARPGROUP_THREADS * per_lane


def _most(producers: int, consumers: int, producer: int) -> int:
    """Return the registers left for each consumer thread."""
    warpgroups = producers + consumers
    left = warpgroups * _launch_limit(warpgroups) - producers * producer
    return min(_USUAL, left // consumers // _GRANULE * _GRANULE)


# --- rules ------------------------------------------------------------------------------------


def _number_violations(split: RegisterSplit) -> Iterator[Violation]:
    """Yield numbers that no split has."""
    for name in ("producers", "consumers"):
        count = getattr(split, name)
        if not is_integer(count) or count < 1:
            yield Violation(
                name, shown(count), "each role takes at least one warpgroup", "Pass 1 or more"
            )
    if all(is_integer(given) and given == 0 for given in (split.producer, split.consumer)):
        return
    for name in ("producer", "consumer"):
        yield from _register_violations(name, getattr(split, name))


def _register_violations(name: str, registers: object) -> Iterator[Violation]:
    is_number = is_integer(registers) and registers % _GRANULE == 0
    if is_number and _LEAST <= registers <= _MOST:  # type: ignore[operator]
        return
    yield Violation(
        name,
        shown(registers),
        f"setmaxnreg takes multiples of {_GRANULE} from {_LEAST} to {_MOST}",
        "Round it, or pass 0 for producer and consumer to leave registers as they are",
    )


def _fit_violations(split: RegisterSplit) -> Iterator[Violation]:
    warpgroups = split.producers + split.consumers
    if warpgroups > _MAX_WARPGROUPS:
        yield Violation(
            "consumers",
            split.consumers,
            f"with {split.producers} producers the block has {split.threads} threads, and "
            f"{MAX_BLOCK_THREADS} are the most",
            f"Use {_MAX_WARPGROUPS} warpgroups in all",
        )
        return
    if split.is_off:
        return
    if split.producer > split.launch_registers:
        yield Violation(
            "producer",
            split.producer,
            f"its threads start with {split.launch_registers}, and setmaxnreg.dec only lowers that",
            f"Use at most {split.launch_registers}",
        )
        return
    room = split.threads * split.launch_registers
    if _needed(split) > room:
        yield Violation(
            "consumer",
            split.consumer,
            f"with producer={split.producer} the block would need {_needed(split)} registers and "
            f"has {room}, so that setmaxnreg.inc would wait for ever",
            f"Use consumer={_most(split.producers, split.consumers, split.producer)}, or fewer "
            "registers for producers",
        )
