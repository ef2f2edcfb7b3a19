"""Calls of a process group on GPUs: prepared once for tensors of given layouts, then launched."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from tmaasync import _arrays
from tmaasync.kernel import Launch
from tmaasync.ops._layouts import Layout
from tmaasync.ops._ranks import RankedCall, Workspace


class _Rank(Protocol):
    rank: int
    stream: Any

    def enter(self, tensor: Any) -> None: ...

    def ready(self) -> None: ...


class Launched(NamedTuple):
    """The launches of a call, for later calls with tensors of the same layouts.

    Attributes:
        parts: In their order: the memory that ranks share, this rank's launch, and the addresses of
            that call, for `Launch.launch_at`.
        spans: The first and last address of each tensor of that call.
    """

    parts: Sequence[tuple[Workspace, Launch, Any]]
    spans: Sequence[tuple[int, int]]

    def run(self, starts: Sequence[int], stream: int) -> None:
        """Launch with tensors at these addresses."""
        for workspace, _, _ in self.parts:
            workspace.signals.check()
        moves = [
            (first, last, start - first)
            for (first, last), start in zip(self.spans, starts, strict=True)
            if start != first
        ]
        for workspace, launch, addresses in self.parts:
            with workspace.lock:
                launch.launch_at(_moved(addresses, moves) if moves else addresses, stream)


class Call:
    """What a rank does in calls with arguments of the same layouts.

    The first call launches by ``first``, and later ones what it has prepared: with tensors at any
    addresses, or, unless its own addresses say of which tensor they are, at the same ones. It holds
    no tensors.

    Args:
        group: The rank.
        tensors: Returns all that the kernels reach, but for memory that ranks share, from the
            arguments of a call: operands, or copies of them, and new outputs.
        first: Launches with these tensors, and returns the launches, or a list of them in their
            order, unless later calls need more.
        result: Returns the result of a call from its tensors.
    """

    def __init__(
        self,
        group: _Rank,
        tensors: Callable[..., Sequence[Any]],
        first: Callable[..., RankedCall | list[RankedCall] | None],
        result: Callable[..., Any],
    ) -> None:
        self._group, self._tensors, self._first, self._result = group, tensors, first, result
        self._launched: dict[Hashable, Launched] = {}

    def __call__(self, *given: Any) -> Any:
        group = self._group
        group.enter(given[0])
        tensors = self._tensors(*given)
        starts = [one.data_ptr() for one in tensors]
        found = self._launched.get(None) or self._launched.get(tuple(starts))
        if found is None:
            self._keep(self._first(*tensors), tensors, starts)
        else:
            group.ready()
            found.run(starts, group.stream)
        return self._result(*tensors)

    def _keep(
        self,
        done: RankedCall | list[RankedCall] | None,
        tensors: Sequence[Any],
        starts: Sequence[int],
    ) -> None:
        if done is None:
            return
        rank = self._group.rank
        parts = [
            (workspace, launches.launches[rank], addresses[rank])
            for workspace, launches, addresses in (done if isinstance(done, list) else [done])
        ]
        spans = [
            (start, start + Layout.of(_arrays.view(one)).span_bytes - 1)
            for start, one in zip(starts, tensors, strict=True)
        ]
        if len(self._launched) >= _MAX_PLACES:
            self._launched.clear()
        place = None if can_move([own for _, _, own in parts], spans) else tuple(starts)
        self._launched[place] = Launched(parts, spans)


_MAX_PLACES = 64  # of calls whose tensors cannot move


def can_move(addresses: Any, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether each address says of which tensor it is: none overlap, and all are there.

    Ragged maps start before their tensor, at an address that is not one of it.
    """
    ordered = sorted(span for span in spans if span[1] >= span[0] > 0)
    overlap = any(end >= start for (_, end), (start, _) in itertools.pairwise(ordered))
    return not overlap and {start for start, _ in ordered} <= set(_flat(addresses))


def _flat(addresses: Any) -> Iterator[int]:
    if isinstance(addresses, int):
        yield addresses
    else:
        for one in addresses:
            yield from _flat(one)


def _moved(addresses: Any, moves: Sequence[tuple[int, int, int]]) -> Any:
    """Return addresses, or named tuples or tuples of them, with those in a span shifted."""
    if isinstance(addresses, int):
        shift: int = sum(step for first, last, step in moves if first <= addresses <= last)
        return addresses + shift
    parts = [_moved(one, moves) for one in addresses]
    return type(addresses)(*parts) if hasattr(addresses, "_fields") else parts
