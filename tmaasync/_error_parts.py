"""The parts of `tmaasync.errors`, which imports them: threads, waits and accesses of a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

Block = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AwaitedSignal:
    """A rank waits for its own signal to reach an epoch, and has seen a lower one."""

    rank: int
    number: int
    epoch: int
    seen: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} waits for epoch {self.epoch} of signal {self.number}, which has "
            f"epoch {self.seen}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingThreads:
    """Threads of one block that wait for the same thing.

    An mbarrier is named by its offset in the block's shared memory and, where the source gives it
    one, its name; a named barrier by its number; all are None for threads that wait in another
    instruction. ``signal`` is set in a wait for `Signals`, and ``of_stream`` where a stream waits
    for one, not a kernel. ``phase`` counts the barrier's phases
    from 0; bytes below zero came in beyond the expected. ``source`` is the line in the kernel, as
    in ``gemm.cu:120``.

    ``role`` is what the kernel calls these threads with ``set_role``. ``ring`` and ``stage`` are
    the ring and the stage that the mbarrier belongs to. ``delivered_to`` names the buffers that
    loads of this phase wrote, and ``late`` is a sentence about the warps that have yet to arrive.
    """

    block: Block
    threads: tuple[int, ...]
    instruction: str
    source: str | None = None
    barrier_name: str | None = None
    barrier_offset: int | None = None
    barrier_number: int | None = None
    barrier_block: Block | None = None
    phase: int | None = None
    missing_arrivals: int | None = None
    missing_bytes: int | None = None
    expected_bytes: int | None = None
    delivered_bytes: int | None = None
    role: str | None = None
    ring: str | None = None
    stage: int | None = None
    delivered_to: tuple[str, ...] = ()
    late: str | None = None
    signal: AwaitedSignal | None = None
    device: int | None = None
    of_stream: bool = False

    @property
    def hung_signal(self) -> HungSignal | None:
        """The wait for a signal as `HangError` lists it; None for other waits."""
        if self.signal is None:
            return None
        return HungSignal(
            rank=self.signal.rank,
            signal=self.signal.number,
            epoch=self.signal.epoch,
            seen=self.signal.seen,
            block=None if self.of_stream else self.block,
            thread=None if self.of_stream else self.threads[0],
            source=self.source,
        )

    def __str__(self) -> str:
        who = f"{_who(self.role, self.block, self.threads)}{at_source(self.source)}"
        who = f"{on_device(self.device)}{'a stream' if self.of_stream else who}"
        if self.signal is not None:
            return f"{who}: {self.instruction}: {self.signal}"
        if self.barrier_offset is not None:
            name = self.barrier_name or f"the mbarrier at shared offset {self.barrier_offset}"
            late = f"; {self.late}" if self.late else ""
            return (
                f"{who}: {self.instruction} on {name}, phase {self.phase}: {self._missing()}"
                f"{self._why()}{late}"
            )
        if self.barrier_number is not None:
            return (
                f"{who}: barrier {self.barrier_number}: {self.missing_arrivals} arrivals are "
                "missing"
            )
        return f"{who}: {self.instruction}"

    def _missing(self) -> str:
        arrivals, size = self.missing_arrivals or 0, self.missing_bytes or 0
        if size >= 0:
            return f"{arrivals} arrivals and {size} bytes are missing"
        surplus = f"{-size} bytes more than expected arrived"
        return f"{arrivals} arrivals are missing, and {surplus}" if arrivals else surplus

    def _why(self) -> str:
        """Return the likely cause of missing or surplus bytes."""
        if not self.missing_bytes:
            return ""
        to = f" to {', '.join(self.delivered_to)}" if self.delivered_to else ""
        expects = f"it expects {self.expected_bytes}"
        return f" ({expects}, and loads delivered {self.delivered_bytes}{to})"


def _who(role: str | None, block: Block, threads: tuple[int, ...]) -> str:
    """Name threads by their role, where the kernel names one."""
    if role is None:
        return f"block {block}, {_named(threads)}"
    named = f"thread {threads[0]}" if len(threads) == 1 else _named_warps(threads)
    return f"{role} ({named} of block {block})"


def one_thread(role: str | None, block: Block, thread: int) -> str:
    return f"block {block}, thread {thread}" if role is None else _who(role, block, (thread,))


_WARP_THREADS = 32


def _named_warps(threads: tuple[int, ...]) -> str:
    """Name whole warps by their numbers, other threads by their own."""
    warps = tuple(dict.fromkeys(thread // _WARP_THREADS for thread in threads))
    if len(threads) != len(warps) * _WARP_THREADS:
        return _named(threads)
    return f"warp{'s' if len(warps) > 1 else ''} {_ranges(warps)}"


def on_device(device: int | None) -> str:
    """Name a device of an emulated world."""
    return "" if device is None else f"device {device}, "


def of_rule(rule: str | None) -> str:
    return f" [rule: {rule}]" if rule else ""


def at_source(source: str | None) -> str:
    return "" if source is None else f" at {source}"


_MAX_RANGES = 4


def _named(threads: tuple[int, ...]) -> str:
    """Name the threads in runs; many runs become a count."""
    runs = _ranges(threads)
    if len(runs.split(", ")) <= _MAX_RANGES:
        return f"thread{'s' if len(threads) > 1 else ''} {runs}"
    return f"{len(threads)} of threads {threads[0]}-{threads[-1]}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Runs of neighbours: "0, 32-63"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


_MOST_WAITS = 24
_MOST_BLOCKS = 4


def listed(waits: Sequence[WaitingThreads]) -> str:
    """Return a line for each wait.

    Of more than 24, blocks that wait alike share a line, and the first lines of each device remain.
    """
    if len(waits) <= _MOST_WAITS:
        return "".join(f"\n  {wait}" for wait in waits)
    alike: dict[int | None, dict[str, list[WaitingThreads]]] = {}
    for wait in waits:
        of_device = alike.setdefault(wait.device, {})
        of_device.setdefault(str(replace(wait, block=())), []).append(wait)
    most = max(1, _MOST_WAITS // len(alike))
    shown = [same for of_device in alike.values() for same in [*of_device.values()][:most]]
    lines = "".join(f"\n  {same[0]}{_likewise(same[1:])}" for same in shown)
    others = len(waits) - sum(map(len, shown))
    return lines + (f"\n  and {others} more, which the error's waits list" if others else "")


def _likewise(waits: Sequence[WaitingThreads]) -> str:
    """Name the blocks of further waits, the first ones only if they are many."""
    blocks = list(dict.fromkeys(wait.block for wait in waits))
    named = ", ".join(map(str, blocks[:_MOST_BLOCKS]))
    more = f" and {len(blocks) - _MOST_BLOCKS} more" if len(blocks) > _MOST_BLOCKS else ""
    return f"; likewise block{'s' if len(blocks) > 1 else ''} {named}{more}" if blocks else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HungThreads:
    """Threads of one block that waited too long on the GPU for the same phase of an mbarrier.

    ``source`` is the line of the wait, as in ``gemm.cu:38``, ``code`` its text, and ``function``
    the function that it is in. ``barrier_offset`` counts from the start of dynamic shared memory;
    static shared memory has negative offsets. ``phase`` is the parity that the wait names. Some of
    the ``arrivals`` that end a phase are missing, or some of the bytes; a negative number of
    missing bytes means that more arrived than was expected. ``waited_seconds`` is the time until
    the kernel was stopped. ``role`` is what the kernel calls these threads with ``set_role``;
    ``ring`` and ``stage`` are the ring and the stage that the mbarrier belongs to.
    """

    block: Block
    cta_rank: int
    threads: tuple[int, ...]
    source: str
    code: str | None
    function: str
    barrier_name: str | None
    barrier_offset: int
    phase: int
    arrivals: int
    missing_arrivals: int
    missing_bytes: int
    waited_seconds: float
    cause: str
    role: str | None = None
    ring: str | None = None
    stage: int | None = None

    def __str__(self) -> str:
        name = self.barrier_name or f"the mbarrier at shared offset {self.barrier_offset}"
        code = "" if self.code is None else f": {self.code}"
        who = _who(self.role, self.block, self.threads)
        return (
            f"{who} in {self.function} at {self.source}{code}"
            f"\n    {name}, phase {self.phase}: {self._missing()} after "
            f"{self.waited_seconds:.2f} s; {self.cause}"
        )

    def _missing(self) -> str:
        arrivals = f"{self.missing_arrivals} of {self.arrivals} arrivals"
        if self.missing_bytes >= 0:
            return f"{arrivals} and {self.missing_bytes} bytes are missing"
        surplus = f"{-self.missing_bytes} bytes more than expected had arrived"
        return f"{arrivals} are missing, and {surplus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HungSignal:
    """A wait for a signal that took too long, or for ever: no rank had posted the epoch.

    ``rank`` waited for its own ``signal`` to reach ``epoch``, and had ``seen`` a lower one.
    ``block``, ``thread`` and ``source`` name the kernel's wait; None for a wait of a stream.
    ``waited_seconds`` is None on the emulator, which knows that the wait cannot end.
    """

    rank: int
    signal: int
    epoch: int
    seen: int
    waited_seconds: float | None = None
    block: Block | None = None
    thread: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        who = "a stream" if self.block is None else f"block {self.block}, thread {self.thread}"
        at = at_source(self.source)
        after = "" if self.waited_seconds is None else f", after {self.waited_seconds:.2f} s"
        return (
            f"rank {self.rank}, {who}{at}: signal {self.signal} has epoch {self.seen}, and the "
            f"wait is for {self.epoch}{after}; no rank has posted it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedAccess:
    """One of two accesses that race: its thread, its operation, and the line in the kernel.

    ``role`` is what the kernel calls the thread's warp with ``set_role``. ``barrier_name`` is the
    mbarrier that a TMA load completes on.
    """

    block: Block
    thread: int
    operation: str
    is_write: bool
    source: str | None
    role: str | None = None
    barrier_name: str | None = None
    device: int | None = None

    EARLIER: ClassVar[str] = "write before this launch, by the host or by another launch"

    def __str__(self) -> str:
        if self.operation == self.EARLIER:
            return self.operation
        who = one_thread(self.role, self.block, self.thread)
        return f"{on_device(self.device)}{who}{at_source(self.source)}: {self.operation}"
