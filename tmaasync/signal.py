"""Signals: flags in the memory of several GPUs that order accesses across GPUs.

A signal is a 4-byte word that holds an **epoch**, which increases monotonically. After its work a
rank posts an epoch to a signal of a peer; the peer waits until its signal reaches that epoch.
Epochs are never reset between iterations or launches. They are compared modulo 2^32: an epoch may
be ahead of a signal by less than 2^31.

| in a kernel | order at system scope |
|---|---|
| ``signals.post(to, signal, epoch)`` | release; after TMA stores, ``wait_group<0>()`` first |
| ``signals.post_reduce(to, signal, value)`` | the same; adds ``value`` to the signal |
| ``signals.wait(signal, epoch)`` | acquire, then ``fence.proxy.async.global`` |
| ``signals.epoch_of(signal)`` | acquire |
| ``signals.sync_ranks(first, epoch)`` | all earlier accesses happen before all later ones |

On the host, `Signals.stream_write` and `Signals.stream_wait` order copy-engine copies, such as
`Signals.stream_copy`. (PTX ISA, "Memory Consistency Model" and "Async proxy".)
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import SupportsIndex

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView, current_address, require_current, stream_of
from tmaasync._kinds import is_integer, not_integers, shown
from tmaasync._signal import streams
from tmaasync._signal.pads import MAX_RANKS, uncopied, views_of_pads
from tmaasync._signal.reports import HangReports
from tmaasync._signal.stream_waits import EPOCH_MODULUS, StreamWait, StreamWaits
from tmaasync.errors import ArgumentError, DriverError, HangError, HungSignal, Violation
from tmaasync.kernel.ranks import RankArgument, TracedRanks
from tmaasync.kernel.watch import budget_of

__all__ = ["RankSignals", "Signals"]

# Mirror of the struct in kernels/include/tmaasync/signal.cuh.
_ARGUMENT = {"pads": f"{MAX_RANKS}Q", "records": "Q", "budget_ns": "Q"}
_ARGUMENT |= dict.fromkeys(("ranks", "rank", "count", "padding"), "I")
_STRUCT = struct.Struct("<" + "".join(_ARGUMENT.values()))

_WORD_BYTES = 4
_DEFAULT_BUDGET_SECONDS = 10.0


class Signals:
    """The signals of several ranks: one signal pad (array) in the memory of each rank.

    ``signals[rank]`` is the argument of that rank's launches, for a parameter of the type
    ``const tmaasync::Signals``. Prepare the launches of all ranks first (`Kernel.prepare`), then
    call them, then call `synchronize`. Otherwise a running rank waits for its peers while the host
    still compiles, loads or allocates for them.

    Every wait has a time budget, in release builds too. When a wait exceeds it, `synchronize` and
    every later launch with these signals raise `HangError`. In a debug build the kernels of all
    ranks of the process then end with undefined output, and the CUDA contexts survive. In a release
    build the kernel traps, and its context is lost. On emulated devices waits have no budget: one
    that can never end raises `EmulatedDeadlock`, and the signals stay usable.

    Args:
        pads: One contiguous int32 or uint32 array per rank, all of the same length and initially
            zero; each element is a signal. Within one process each lies on its rank's device
            (`enable_peer_access`); across processes they are symmetric-memory buffers.
        budget_seconds: Maximum duration of a wait; by default the environment variable
            ``TMAASYNC_BUDGET_SECONDS``, else 10.

    Raises:
        ArgumentError: There are no pads or more than 16, or a pad is invalid; all are listed. Or
            ``budget_seconds`` is not a number from 1e-9 to 1e9.

    >>> import numpy as np
    >>> signals = Signals([np.zeros(8, np.uint32) for rank in range(2)])
    >>> len(signals), signals.count, signals[1].rank
    (2, 8, 1)
    """

    _remedy_as_argument = "Pass signals[rank], the argument of one rank"

    def __init__(self, pads: Sequence[object], *, budget_seconds: float | None = None) -> None:
        """Record the pads' addresses, and allocate memory for hang reports."""
        self._pads = views_of_pads(pads)
        self.count: int = self._pads[0].shape[0]
        self.budget_seconds = budget_of(budget_seconds, _DEFAULT_BUDGET_SECONDS)
        first = self._pads[0].device
        self._reports = HangReports(first)
        self._stream_waits = StreamWaits()
        self._hung: tuple[HungSignal, ...] = ()
        self._traced = TracedRanks()

    def __repr__(self) -> str:
        return f"<Signals of {len(self)} ranks, {self.count} each>"

    def __len__(self) -> int:
        return len(self._pads)

    def __getitem__(self, rank: SupportsIndex) -> RankSignals:
        """Return the kernel argument of a rank; negative ranks count from the last.

        Raises:
            IndexError: ``rank`` is out of range.
            TypeError: ``rank`` is not an integer.
        """
        if not is_integer(rank):
            raise TypeError(f"rank is {shown(rank)}; it must be an integer, 0 to {len(self) - 1}")
        number = int(rank)
        if not -len(self) <= number < len(self):
            raise IndexError(f"rank is {number}; there are {len(self)} ranks, from 0 on")
        return RankSignals(self, number % len(self))

    def __iter__(self) -> Iterator[RankSignals]:
        """Yield the kernel argument of each rank."""
        return (RankSignals(self, rank) for rank in range(len(self)))

    @property
    def pads(self) -> tuple[ArrayView, ...]:
        """Address, layout and device of the pad of each rank."""
        return tuple(self._pads)

    @property
    def reports_address(self) -> int:
        """The address to which kernels report waits that took too long; 0 for the emulator."""
        return self._reports.address

    # --- the end of waiting -------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for all work on the ranks' devices; on the emulator, run the queued launches.

        Afterwards the traces of GPU launches inside `trace.record` are available, including
        launches that hung in a debug build.

        Raises:
            HangError: A wait for a signal took too long; the error names the rank, the signal, and
                the expected and current epochs.
            DriverError: A kernel failed for another reason.
        """
        world = emulate.current_world()
        if world is not None:
            world.synchronize()
        devices = sorted({pad.device for pad in self._pads if pad.device is not None})
        steps: list[Callable[[], None]] = [
            self._end_stream_waits,
            *(functools.partial(_driver.synchronize_device, device) for device in devices),
        ]
        failed: list[DriverError] = []
        for step in steps:
            try:
                step()
            except DriverError as error:
                failed.append(error)
        self._traced.hand_over()
        self.check()
        if failed:
            raise failed[0]

    def check(self) -> None:
        """Raise a hang that kernels or `synchronize` have detected, without waiting.

        Raises:
            HangError: A wait for a signal took too long.
        """
        waits = (*self._hung, *self._reports.waits())
        if waits:
            raise HangError(f"Signals of {len(self)} ranks", self.budget_seconds, (), signals=waits)

    @property
    def has_hung(self) -> bool:
        """Whether a wait took too long; then these signals can no longer be used in a launch."""
        return bool(self._hung) or bool(self._reports.waits())

    # --- streams ------------------------------------------------------------------------------

    def stream_write(
        self, rank: int, to: int, signal: int, epoch: int, *, stream: object = None
    ) -> None:
        """Post an epoch from a stream of one rank to another rank, after the stream's earlier work.

        Use it to signal a finished copy-engine copy to a peer's kernel (``cuStreamWriteValue32``).
        Unlike a kernel, it needs no free SM.

        Args:
            rank: The rank of the stream.
            to: The rank of the signal.
            signal: The signal's index.
            epoch: The signal's new value, 0 to 2^32 - 1.
            stream: As in `Kernel`; by default the current stream of the pad's framework.

        Raises:
            ArgumentError: A number is out of range, or the pads are in host memory of no device.
            HangError: An earlier wait for a signal took too long.
        """
        rank, to, signal, epoch = self._checked(rank=rank, to=to, signal=signal, epoch=epoch)
        if self._world_device(rank) is not None:
            streams.post(self[rank], to, signal, epoch, stream)
            return
        device, handle = self._stream(rank, stream)
        _driver.write_word(device, handle, self._word(to, signal), epoch)

    def stream_wait(self, rank: int, signal: int, epoch: int, *, stream: object = None) -> None:
        """Make a stream of a rank wait until the rank's signal reaches an epoch.

        Work submitted to the stream afterwards, such as a copy-engine copy, happens after the
        poster's earlier work (``cuStreamWaitValue32``). Only `synchronize` ends a wait that exceeds
        the budget, which begins there: other functions that wait for the stream wait forever. The
        emulator needs no budget: a wait that can never end raises `EmulatedDeadlock`, which is a
        `HangError`.

        Args:
            rank: The rank of the signal and the stream.
            signal: The signal's index.
            epoch: The epoch to wait for, 0 to 2^32 - 1.
            stream: As in `Kernel`; by default the current stream of the pad's framework.

        Raises:
            ArgumentError: A number is out of range, or the pads are in host memory of no device.
            HangError: An earlier wait for a signal took too long.
        """
        rank, signal, epoch = self._checked(rank=rank, signal=signal, epoch=epoch)
        if self._world_device(rank) is not None:
            streams.wait(self[rank], signal, epoch, stream)
            return
        device, handle = self._stream(rank, stream)
        _driver.wait_for_word(device, handle, self._word(rank, signal), epoch)
        self._stream_waits.add(StreamWait(rank, signal, device, self._word(rank, signal), epoch))

    def stream_copy(
        self, rank: int, target: object, source: object, *, stream: object = None
    ) -> None:
        """Copy an array on a stream of a rank with a copy engine (``cuMemcpyAsync``).

        Put `stream_wait` before it and `stream_write` after it to order the copy with kernels of
        several ranks. On emulated devices it copies in stream order; a NumPy assignment would copy
        immediately.

        Args:
            rank: The rank of the stream.
            target: A contiguous array, of the source's shape and type, that the rank's device can
                access (`enable_peer_access`).
            source: A contiguous array that the rank's device can access.
            stream: As in `Kernel`; by default the current stream of the pad's framework.

        Raises:
            ArgumentError: An array is not contiguous, the target is read-only or of another shape
                or type, or the pads are in host memory of no device.
            HangError: An earlier wait for a signal took too long.
        """
        (rank,) = self._checked(rank=rank)
        to, of = _arrays.view(target, argument="target"), _arrays.view(source, argument="source")
        ArgumentError.raise_for(uncopied(to, of))
        low, high = of.byte_bounds
        if (emulated := self._world_device(rank)) is not None:
            streams.copy(emulated, target, source, high - low, stream)
            return
        device, handle = self._stream(rank, stream)
        _driver.bound_copy(device, to.address, of.address, high - low, handle)()

    def _end_stream_waits(self) -> None:
        self._hung += tuple(self._stream_waits.end(self.budget_seconds))

    def _stream(self, rank: int, stream: object) -> tuple[int, int]:
        pad = self._pads[rank]
        if pad.device is None:
            raise ArgumentError(
                "signals are in host memory, which has no streams. Make the pads on the devices of "
                "emulate.devices, inside its with, or pass pads on GPUs."
            )
        return pad.device, stream_of([pad.framework], pad.device, stream)

    def _world_device(self, rank: int) -> int | None:
        """Return the device of a rank's pad in the current emulated world, if it lies there."""
        world = emulate.current_world()
        return None if world is None else world.device_of(self._pads[rank].address)

    def _word(self, rank: int, signal: int) -> int:
        return self._pads[rank].address + signal * _WORD_BYTES

    def _checked(self, **numbers: int) -> tuple[int, ...]:
        """Return ranks, signal and epoch as ints; check them, and that no wait has hung."""
        ArgumentError.raise_for(not_integers(**numbers))
        ranks = f"there are {len(self)} ranks"
        rules = {
            "rank": (len(self), ranks),
            "to": (len(self), ranks),
            "signal": (self.count, f"a rank has {self.count} signals"),
            "epoch": (EPOCH_MODULUS, "epochs have 32 bits"),
        }
        ArgumentError.raise_for(
            Violation(name, value, rule, f"Pass 0 to {limit - 1}")
            for name, value in numbers.items()
            for limit, rule in [rules[name]]
            if not 0 <= value < limit
        )
        self.check()
        return tuple(map(int, numbers.values()))


class RankSignals(RankArgument):
    """The signals of all ranks, as the kernel argument of one rank; made by `Signals`.

    Pass it to a kernel for a parameter of the type `cuda_type`. The launch runs on the device of
    the rank's pad.
    """

    __slots__ = ("_signals", "rank")

    _kind = "signals"

    def __init__(self, signals: Signals, rank: int) -> None:
        """Use ``signals[rank]``."""
        self._signals = signals
        self.rank = rank

    def __repr__(self) -> str:
        return f"<RankSignals {self.rank} of {self._signals!r}>"

    @property
    def signals(self) -> Signals:
        """The signals of all ranks."""
        return self._signals

    @property
    def _view(self) -> ArrayView:
        return self._signals.pads[self.rank]

    @property
    def _traced(self) -> TracedRanks:
        return self._signals._traced

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter: pad addresses, report address, budget and sizes."""
        signals = self._signals
        addresses = [pad.address for pad in signals.pads]
        return _STRUCT.pack(
            *addresses,
            *itertools.repeat(0, MAX_RANKS - len(addresses)),
            signals.reports_address,
            int(signals.budget_seconds * 1e9),
            len(signals),
            self.rank,
            signals.count,
            0,
        )

    @property
    def cuda_type(self) -> str:
        """The type in CUDA C++."""
        return "tmaasync::Signals"

    def members(self) -> tuple[ArrayView, ...]:
        """Return the pads of all ranks."""
        return self._signals.pads

    def home(self) -> tuple[ArrayView]:
        """Return the rank's own pad, on whose device a launch runs."""
        return (self._view,)

    @property
    def is_current(self) -> bool:
        """True if every pad is still at its address, and no wait has hung."""
        signals = self._signals
        return not signals.has_hung and all(
            current_address(pad) == pad.address for pad in signals.pads
        )

    def check_alive(self, argument: str | None = None) -> None:
        """Check that every pad is still at its address, and that no wait has hung.

        Raises:
            StaleTileError: A pad was freed, resized or moved.
            HangError: An earlier wait for a signal took too long.
        """
        self._signals.check()
        for rank, pad in enumerate(self._signals.pads):
            require_current(pad, f"pad {rank} of {argument or self._kind}")

    def _address_reader(self) -> None:
        """Return None, so that each launch checks for hung waits."""
