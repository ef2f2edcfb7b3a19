"""Operations: the base class that separates work per array layout from work per call."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from tmaasync._arrays import ArrayView
from tmaasync._forks import Lock
from tmaasync.kernel import BoundCall, Kernel, Launch, backend_of
from tmaasync.ops._allocation import Allocator, Output
from tmaasync.ops._call_cache import Binding, CallCache, forget


class Fitting(Protocol):
    """A tile config for any chip."""

    def within(self, shared_bytes: int) -> Self:
        """Return the config for a chip with this shared memory of a thread block."""
        ...


_Fitted = TypeVar("_Fitted", bound=Fitting)


class Operation:
    """An operation on arrays of given layouts, for any addresses and stream.

    A subclass is constructed from `Layout`s (through `CallCache.operation`). Its ``run`` takes
    views of arrays, makes staging copies of arrays that TMA cannot access, and launches. The first
    ``run`` also chooses a tile config, encodes tiles and prepares the kernel. Later calls on arrays
    with the same layouts use `bind`, which needs only the addresses.
    """

    def __init__(self, device: int | None) -> None:
        self.backend = backend_of(device)
        self._lock = Lock()
        self._launch: Launch | None = None
        self._needs_staging = False

    @property
    def is_bindable(self) -> bool:
        """Whether a call needs no staging copies and ``run`` has prepared its launch."""
        return self._launch is not None and not self._needs_staging

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """Return the launch and its addresses, for arrays with the layouts of the last ``run``.

        Operations whose arrays differ by call have ``bind_named``, for `NamedBinding`.

        Args:
            addresses: Array addresses in the order of the call's cache key, then new arrays.
            numbers: Further arguments of the launch.

        Returns:
            None if the output overlaps an input.
        """
        raise NotImplementedError

    def prepared(self, prepare: Callable[[], Launch]) -> Launch:
        with self._lock:
            if self._launch is None:
                self._launch = prepare()
            return self._launch

    def fitted(self, config: _Fitted) -> _Fitted:
        """Return the tile config that the device has room for, or its override."""
        return overridden(config.within(self.backend.limits.shared_bytes))

    def ordered(self, views: Iterable[ArrayView], stream: object) -> int:
        """Make the stream wait for the arrays' producers, and return its handle."""
        each = tuple(views)
        handle = self.backend.stream([view.framework for view in each], stream)
        self.backend.wait_for_producers(each, handle)
        return handle

    def remember_in(
        self,
        cache: CallCache,
        arrays: Sequence[object],
        option: object,
        operands: Iterable[ArrayView],
        output: Output,
        *,
        workspace: Allocator | None = None,
    ) -> None:
        """Cache the call, if it needs no staging copies."""
        if self.is_bindable:
            allocators = (*output.allocators, *(() if workspace is None else (workspace,)))
            cache.remember(
                arrays,
                option,
                self,
                [view.framework for view in (*operands, output.view)],
                output.view.device,
                allocators=allocators,
                has_workspace=workspace is not None,
            )


class _ByName(Protocol):
    def bind_named(self, named: dict[str, int]) -> Binding | None:
        """Return the launch on arrays at these addresses; None if a bound launch is impossible."""


class NamedBinding(NamedTuple):
    """An operation for calls whose arrays, the new ones last, have these names."""

    operation: _ByName
    names: tuple[str, ...]

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        del numbers
        return self.operation.bind_named(dict(zip(self.names, addresses, strict=True)))


# --- sequences of launches --------------------------------------------------------------------


class LaunchSequence:
    """A sequence of launches in one stream, with the interface of a single launch.

    Each step is a launch and a function that selects its addresses from the call's.
    """

    def __init__(self, *steps: tuple[Launch, Callable[[Any], Sequence[int]]]) -> None:
        self._steps = steps

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        for launch, own in self._steps:
            launch.launch_at(own(addresses), stream)

    def bind(self, addresses: Sequence[int], stream: int) -> BoundCall:
        calls = tuple(launch.bind(own(addresses), stream) for launch, own in self._steps)

        def call() -> None:
            for each in calls:
                each()

        return calls[0] if len(calls) == 1 else call


# --- kernels ----------------------------------------------------------------------------------


def shipped_kernel(
    source: str,
    types: Mapping[str, str],
    constants: Mapping[str, bool | int],
    name: str | None = None,
) -> Kernel:
    """Return the shared `Kernel` for a shipped source or its function, with these macros."""
    return _kernel(source, name, tuple(types.items()), tuple(constants.items()))


@functools.cache
def _kernel(
    source: str,
    name: str | None,
    types: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, bool | int], ...],
) -> Kernel:
    return Kernel(source, name, types=dict(types), constants=dict(constants))


# --- overrides of the cost model's tile configs -----------------------------------------------

_Config = TypeVar("_Config")
_OVERRIDE: contextvars.ContextVar[Callable[[Any], Any] | None] = contextvars.ContextVar(
    "tmaasync tile config", default=None
)


@contextlib.contextmanager
def tile_configs(choose: Callable[[Any], Any]) -> Iterator[None]:
    """Make operations inside the ``with`` use ``choose(tile config of the cost model)``.

    For tests and sweeps. The call caches are cleared on entry and on exit.
    """
    forget()
    token = _OVERRIDE.set(choose)
    try:
        yield
    finally:
        _OVERRIDE.reset(token)
        forget()


def overridden(config: _Config) -> _Config:
    """Return the override of the cost model's tile config; without an override, the config."""
    choose = _OVERRIDE.get()
    if choose is None:
        return config
    chosen: _Config = choose(config)
    return chosen
