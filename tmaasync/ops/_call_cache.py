"""The call cache of operations: maps a caller's arrays to the launch of an earlier call."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import call
from typing import Any, NamedTuple, Protocol, TypeVar

from tmaasync._arrays import Guard, current_stream_of, fingerprint, guard, stream_of
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync.kernel import BoundCall, Launch, backend_of
from tmaasync.ops._allocation import Allocator, address_of

_MAX_ENTRIES = 4096
_MAX_OPERATIONS = 1024
_MAX_LIKELY = 8  # the layouts of a model's layers with one option

Binding = tuple[Launch, Sequence[int]]
"""A launch, and the addresses to make it at."""


class _Bindable(Protocol):
    """The interface of an operation for repeated calls."""

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """Return the launch on arrays at these addresses; None if a bound launch is impossible."""


_Operation = TypeVar("_Operation")


@dataclass(slots=True, eq=False)
class _Entry:
    """A cached operation, the rest of the call's key, and the allocators of new arrays."""

    operation: _Bindable
    allocators: Sequence[Allocator]
    has_workspace: bool
    misaligned: int
    device: int | None
    current_stream: Callable[[Any], int]
    guard: Guard | None


class _Likely(NamedTuple):
    """An entry, after the fields of a guard for its arrays: unpacking is the fastest access."""

    check: Callable[..., bool]
    address_of: Callable[[Any], int]
    forward_mode: Any
    entry: _Entry


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

    * likely entries: the last few with the same option, of which torch's guard of all tensors finds
      one at a quarter of the cost of their fingerprints. One that does not fit costs 0.3 us;
    * entries: by the arrays' fingerprints, for CuPy, and for torch if no guard fits;
    * bound calls: by the arrays' addresses, from their second call on, without packing.

    Other calls, for example with staging copies, still reuse the `operation` for their arrays'
    layouts. The cache holds no arrays, clears a table that is full, and is thread-safe.
    """

    def __init__(self) -> None:
        self._likely: dict[object, list[_Likely]] = {}
        self._entries: dict[object, _Entry] = {}
        self._bound: dict[tuple[Any, ...], BoundCall | None] = {}
        self._operations: dict[tuple[Hashable, ...], Any] = {}
        clear_on_forget(self)

    def clear(self) -> None:
        self._likely.clear()
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

        This is all the host work of a repeated call, so it calls little but C. It is safe because
        it checks everything that a launch depends on. The guard checks all properties of the arrays
        except their addresses: a resized array fails. The current addresses and stream are the key
        of a bound call. Their consequences were checked when the key was new: the output overlaps
        no input, and TMA can access all arrays. A bound call is immutable, so it writes no
        arguments and takes no lock.

        Args:
            arrays: The arrays; equal options always have equally many.
            option: The rest of the key.
            stream: The caller's stream; None for the current stream of the arrays' framework.
            numbers: Further launch arguments, which may differ from call to call.

        Returns:
            The arrays, followed by the new arrays; None if the cache cannot serve the call.
        """
        try:
            likely = self._likely.get(option, ())
        except TypeError:  # for example an option that is a list
            return None
        for check, where, forward, entry in likely:
            if check(*arrays) and forward._current_level < 0:
                if stream is None:
                    handle = entry.current_stream(entry.device)
                elif entry.has_workspace:
                    return None
                else:
                    handle = stream_of((), entry.device, stream)
                everything = arrays
                if entry.allocators:
                    everything += tuple(map(call, entry.allocators))
                key = (entry, handle, numbers, *map(where, everything))
                launch = self._bound.get(key) or self._new_call(key)
                if launch is not None:
                    launch()
                    return everything
        return self._run_by_fingerprint(arrays, option, stream, numbers)

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
        allocators: Iterable[Allocator] = (),
        has_workspace: bool = False,
    ) -> None:
        """Cache the operation for later calls of `run` with arrays like these.

        By default the launch goes to the current stream of these frameworks. ``allocators`` make
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
            tuple(allocators),
            has_workspace,
            misaligned(addresses) or 0,
            device,
            current_stream_of(frameworks),
            guard(arrays),
        )
        self._entries[key] = entry
        self._expect(arrays, option, entry)

    def _run_by_fingerprint(
        self, arrays: tuple[Any, ...], option: object, stream: object, numbers: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        seen = _key(arrays, option)
        entry = None if seen is None else self._entries.get(seen[0])
        if seen is None or entry is None:
            return None
        self._expect(arrays, option, entry)
        if entry.has_workspace and stream is not None:
            return None
        new, device = tuple(map(call, entry.allocators)), entry.device
        handle = entry.current_stream(device) if stream is None else stream_of((), device, stream)
        key = (entry, handle, numbers, *seen[1], *map(address_of, new))
        launch = self._bound.get(key) or self._new_call(key)
        if launch is None:
            return None
        launch()
        return arrays + new

    def _expect(self, arrays: Sequence[object], option: object, entry: _Entry) -> None:
        """Make the entry the most likely one for its option."""
        fitting = entry.guard
        if fitting is None:
            return
        if not fitting.check(*arrays):  # for example a parameter, or inference mode
            fitting = guard(arrays)
            if fitting is None:
                return
            entry.guard = fitting
        if len(self._likely) >= _MAX_ENTRIES:
            self._likely.clear()
        others = [one for one in self._likely.get(option, ()) if one.check is not fitting.check]
        self._likely[option] = [_Likely(*fitting, entry), *others[: _MAX_LIKELY - 1]]

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
