"""The call cache of operations: maps a caller's arrays to the launch of an earlier call."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from tmaasync._arrays import Guard, fingerprint, guard
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._streams import current_stream_of, stream_of
from tmaasync.kernel import BoundCall, Launch, backend_of
from tmaasync.ops._allocation import address_of

__all__ = ["Binding", "CallCache", "clear_on_forget", "forget"]

_MAX_ENTRIES = 4096
_MAX_OPERATIONS = 1024

Binding = tuple[Launch, Sequence[int]]
"""A launch, and the addresses to make it at."""


class _Bindable(Protocol):
    """The interface of an operation for repeated calls."""

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """Return the launch on arrays at these addresses; None if a bound launch is impossible."""


_Operation = TypeVar("_Operation")


@dataclass(slots=True, eq=False)
class _Entry:
    """A cached operation, the rest of the call's key, and a function that makes new arrays."""

    operation: _Bindable
    new_arrays: Callable[[], tuple[Any, ...]] | None
    has_workspace: bool
    option: object
    misaligned: int
    device: int | None
    current_stream: Callable[[Any], int]
    guard: Guard | None

    def stream(self, given: object) -> int:
        """Return the caller's stream, or the current stream of the arrays' framework."""
        if given is None:
            return self.current_stream(self.device)
        return stream_of((), self.device, given)


class _Guess(NamedTuple):
    """An entry, preceded by the fields that every call needs: unpacking is the fastest access."""

    option: object
    check: Callable[..., bool]
    address_of: Callable[[Any], int]
    forward_mode: Any
    current_stream: Callable[[Any], int]
    device: int | None
    entry: _Entry


_NO_GUESS: Any = (object(), None, None, None, None, None, None)  # matches no option


class _Clearable(Protocol):
    def clear(self) -> None:
        """Remove all entries."""


_CACHES: weakref.WeakSet[_Clearable] = weakref.WeakSet()


def clear_on_forget(cache: _Clearable) -> None:
    """Have `forget` clear this cache too."""
    _CACHES.add(cache)


def forget() -> None:
    """Clear all call caches, so that operations and launches are prepared again."""
    for cache in _CACHES:
        cache.clear()


class CallCache:
    """A cache from arrays and options to the bound launch of an earlier call like this.

    A call uses three tables, and each of them pays off (benchmarks/bench_host.py on an H200's host,
    2026-11-21: a matmul with scales takes 11 us, and 21 us if it inspects its arrays again):

    * guesses: the entry of the last call with the same second array (usually weights), confirmed by
      torch's guard at a quarter of the cost of the arrays' fingerprints;
    * entries: by the arrays' fingerprints, for CuPy, and for torch if no guess holds;
    * bound calls: by the arrays' addresses, from their second call on, without packing.

    Other calls, for example with staging copies, still reuse the `operation` for their arrays'
    layouts. The cache holds no arrays, clears a table that is full, and is thread-safe.
    """

    def __init__(self) -> None:
        self._guesses: dict[int, _Guess] = {}
        self._entries: dict[object, _Entry] = {}
        self._bound: dict[tuple[Any, ...], BoundCall | None] = {}
        self._operations: dict[tuple[Hashable, ...], Any] = {}
        clear_on_forget(self)

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

        This is all the host work of a repeated call, so it is one function that calls little but C.
        It is safe because it checks everything that a launch depends on. The guard checks all
        properties of the arrays except their addresses: a resized array, or another object with the
        same identity, fails. The current addresses and stream are the key of a bound call. Their
        consequences were checked when the key was new: the output overlaps no input, and TMA can
        access all arrays. A bound call is immutable, so it writes no arguments and takes no lock.

        Args:
            arrays: Two or more arrays; equal options always have equally many.
            option: The rest of the key.
            stream: The caller's stream; None for the current stream of the arrays' framework.
            numbers: Further launch arguments, which may differ from call to call.

        Returns:
            The arrays, followed by the new arrays; None if the cache cannot serve the call.
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
            if count == 4:  # attention; unrolled code costs a third less than map
                a, b, c, d = arrays
                key = (entry, handle, numbers, where(a), where(b), where(c), where(d))
            elif count == 3:  # matmul
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
        """Return the cached operation for these layouts, or ``make`` it."""
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
        """Cache the operation for later calls of `run` with arrays like these.

        By default the launch goes to the current stream of these frameworks. ``new_arrays`` makes
        the arrays that the caller does not pass. A workspace among them returns to the current
        stream's memory pool at the end of the call. A call on an explicit stream must not use it.
        """
        seen = _key(arrays, option)
        if seen is None or backend_of(device).waits:
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
        if not fitting.check(*arrays):  # for example a parameter, or inference mode
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
        """Return the call for a key; it is bound and stored when the key comes a second time."""
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
    """Return a bit mask of the addresses that are not multiples of 16; None if one is null."""
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
    # The 16-byte alignment of each array decides how it is read, so it is part of the key.
    off = misaligned(addresses)
    if off is None:  # a freed array, which its view reports
        return None
    key = (option, off, *layouts)
    try:
        hash(key)
    except TypeError:  # for example an option that is a list
        return None
    return key, addresses
