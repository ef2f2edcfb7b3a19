"""The one cache of operations: from a caller's arrays to the launch that served them before."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from tmaasync._arrays import Guard, fingerprint, guard
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._streams import current_stream_of, stream_of
from tmaasync.kernel import BoundCall, Launch
from tmaasync.ops._allocation import address_of

__all__ = ["Binding", "CallCache", "forget"]

_MAX_ENTRIES = 4096
_MAX_OPERATIONS = 1024

Binding = tuple[Launch, Sequence[int]]
"""A launch, and the addresses to make it at."""


class _Bindable(Protocol):
    """The interface that an operation has for calls like an earlier one."""

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """Return the launch on arrays at these addresses; None if that cannot be done in one."""


_Operation = TypeVar("_Operation")


@dataclass(slots=True, eq=False)
class _Entry:
    """An operation, the rest of the key of a call, and the arrays that the call allocates."""

    operation: _Bindable
    new_arrays: Callable[[], tuple[Any, ...]] | None
    has_workspace: bool
    option: object
    misaligned: int
    device: int
    current_stream: Callable[[int], int]
    guard: Guard | None

    def stream(self, given: object) -> int:
        """Return the caller's choice, or the current one of the arrays' framework."""
        if given is None:
            return self.current_stream(self.device)
        return stream_of((), self.device, given)


class _Guess(NamedTuple):
    """An entry, and before it what every call asks of it: unpacking costs least."""

    option: object
    check: Callable[..., bool]
    address_of: Callable[[Any], int]
    forward_mode: Any
    current_stream: Callable[[int], int]
    device: int
    entry: _Entry


_NO_GUESS: Any = (object(), None, None, None, None, None, None)  # an option like no other

_CACHES: weakref.WeakSet[CallCache] = weakref.WeakSet()


def forget() -> None:
    """Empty every cache of calls, so that operations are made and launches prepared anew."""
    for cache in _CACHES:
        cache.clear()


class CallCache:
    """From arrays and options to the very launch that served calls like this before.

    A call goes through three tables, and each of them pays (benchmarks/bench_host.py on an H200's
    host, 2026-11-21: 11 us for a matmul with scales that looked at its arrays anew took 21):

    * guesses: the entry of the last call with the same second array (weights, as a rule), confirmed
      by torch's guard at a quarter of the cost of the arrays' fingerprints;
    * entries: by the fingerprints of the arrays, for CuPy, and for torch where no guess holds;
    * bound calls: by the addresses of the arrays, from the second call there on: nothing is packed.

    Calls that it cannot serve, such as those that need staging copies, find at least the
    `operation` that was made for the layouts of their arrays. Holds no array, empties a table that
    is full, and may be used from any thread.
    """

    def __init__(self) -> None:
        self._guesses: dict[int, _Guess] = {}
        self._entries: dict[object, _Entry] = {}
        self._bound: dict[tuple[Any, ...], BoundCall | None] = {}
        self._operations: dict[tuple[Hashable, ...], Any] = {}
        _CACHES.add(self)

    def clear(self) -> None:
        self._guesses.clear()
        self._entries.clear()
        self._bound.clear()
        self._operations.clear()

    def run(
        self,
        arrays: tuple[Any, ...],
        option: object,
        stream: object,
        numbers: tuple[Any, ...] = (),
    ) -> tuple[Any, ...] | None:
        """Repeat the launch of an earlier call with arrays like these.

        This is all that the host does in a call like an earlier one, so it is one function that
        calls little but C. It is safe because it looks at all that a launch depends on. The guard
        sees what the arrays are, but for their addresses: one that was resized, or another object
        with the same identity, does not pass. Their present addresses, and the stream of the
        moment, are the key of a bound call. What follows from these was checked when the key was
        new: that the output overlaps no input, and that TMA reaches all. A bound call never
        changes, so it writes no arguments and takes no lock.

        Args:
            arrays: Two or more; with equal options always as many.
            option: The rest of the key.
            stream: The caller's choice; None for the current stream of the arrays' framework.
            numbers: Further launch arguments, which may differ from call to call.

        Returns:
            The arrays, followed by the new ones; None if nothing like it was done before, or it
            cannot be done here.
        """
        key: tuple[Any, ...]
        guess = self._guesses.get(id(arrays[1]), _NO_GUESS)
        known, check, where, forward, current_stream, device, entry = guess
        is_like = known == option and check(*arrays) and forward._current_level < 0
        if is_like and (stream is None or not entry.has_workspace):
            new_arrays = entry.new_arrays
            if new_arrays is not None:
                arrays += new_arrays()
            handle = current_stream(device) if stream is None else entry.stream(stream)
            count = len(arrays)
            if count == 4:  # as of attention; written out it costs a third less than map
                a, b, c, d = arrays
                key = (entry, handle, numbers, where(a), where(b), where(c), where(d))
            elif count == 3:  # as of matmul
                a, b, c = arrays
                key = (entry, handle, numbers, where(a), where(b), where(c))
            else:
                key = (entry, handle, numbers, *map(where, arrays))
        else:
            found = self._by_fingerprint(arrays, option, is_current=stream is None)
            if found is None:
                return None
            entry, arrays, addresses = found
            key = (entry, entry.stream(stream), numbers, *addresses)
        call = self._bound.get(key) or self._new_call(key)
        if call is None:
            return None
        call()
        return arrays

    def operation(
        self, make: Callable[..., _Operation], *layouts: Hashable, **options: Hashable
    ) -> _Operation:
        """Return the operation that was made for these layouts before, or ``make`` it."""
        key = (make, layouts, *options.items())
        found: _Operation | None = self._operations.get(key)
        if found is None:
            found = make(*layouts, **options)
            if len(self._operations) >= _MAX_OPERATIONS:
                self._operations.clear()
            self._operations[key] = found
        return found

    def remember(
        self,
        arrays: Sequence[object],
        option: object,
        operation: _Bindable,
        frameworks: Sequence[str],
        device: int | None,
        *,
        new_arrays: Callable[[], tuple[Any, ...]] | None = None,
        has_workspace: bool = False,
    ) -> None:
        """Have the operation found for arrays like these, which `run` gets.

        The launch goes to the current stream of these frameworks. ``new_arrays`` makes those that
        the caller does not give. A workspace among them is given back when the call returns: to the
        current stream's memory, so that it can serve no launch on another stream, which the caller
        names.
        """
        seen = _key(arrays, option)
        if seen is None or device is None:
            return
        if len(self._entries) >= _MAX_ENTRIES:
            self._entries.clear()
        key, addresses = seen
        entry = _Entry(
            operation,
            new_arrays,
            has_workspace,
            option,
            misaligned(addresses) or 0,
            device,
            current_stream_of(frameworks),
            guard(arrays),
        )
        self._entries[key] = entry
        self._guess_next_time(arrays, entry)

    def _by_fingerprint(
        self, arrays: tuple[Any, ...], option: object, *, is_current: bool
    ) -> tuple[_Entry, tuple[Any, ...], Iterable[int]] | None:
        """Return the entry, all arrays, and their addresses."""
        seen = _key(arrays, option)
        if seen is None:
            return None
        key, addresses = seen
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._guess_next_time(arrays, entry)
        if entry.has_workspace and not is_current:
            return None
        new = () if entry.new_arrays is None else entry.new_arrays()
        return entry, arrays + new, [*addresses, *map(address_of, new)]

    def _guess_next_time(self, arrays: Sequence[object], entry: _Entry) -> None:
        fitting = entry.guard
        if fitting is None:
            return
        if not fitting.check(*arrays):  # a parameter, say, or inference mode
            fitting = guard(arrays)
            if fitting is None:
                return
            entry.guard = fitting
        if len(self._guesses) >= _MAX_ENTRIES:
            self._guesses.clear()
        self._guesses[id(arrays[1])] = _Guess(
            entry.option, *fitting, entry.current_stream, entry.device, entry
        )

    def _new_call(self, key: tuple[Any, ...]) -> BoundCall | None:
        """Return the call of a key, which is bound from the second time on."""
        entry: _Entry
        entry, stream, numbers, *addresses = key
        if misaligned(addresses) != entry.misaligned:
            return None
        binding = entry.operation.bind(addresses, *numbers)
        if binding is None:
            return None
        launch, arguments = binding
        if key in self._bound:
            own = self._bound[key] = launch.bind(arguments, stream)
            return own
        if len(self._bound) >= _MAX_ENTRIES:
            self._bound.clear()
        self._bound[key] = None
        return functools.partial(launch.launch_at, arguments, stream)


def misaligned(addresses: Iterable[int]) -> int | None:
    """Return which addresses are no multiple of 16, a bit each; None if one is null."""
    found, bit = 0, 1
    for address in addresses:
        if address & (TMA_ALIGNMENT - 1):
            found |= bit
        elif not address:
            return None
        bit <<= 1
    return found


def _key(arrays: Sequence[object], option: object) -> tuple[object, list[int]] | None:
    addresses: list[int] = []
    layouts: list[object] = []
    for array in arrays:
        seen = fingerprint(array)
        if seen is None:
            return None
        address, layout = seen
        addresses.append(address)
        layouts.append(layout)
    # Whether each starts at a multiple of 16 bytes decides how it is read, so that is in the key.
    off = misaligned(addresses)
    if off is None:  # freed; a view says so
        return None
    key = (option, off, *layouts)
    try:
        hash(key)
    except TypeError:  # an option that is a list, say
        return None
    return key, addresses
