"""Operations: work done once for the layouts of arrays, and work done in each call."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from tmaasync._arrays import ArrayView
from tmaasync.kernel import BoundCall, Kernel, Launch, backend_of, wait_for_producers
from tmaasync.ops._allocation import Allocator, Output, allocator_of_all
from tmaasync.ops._call_cache import Binding, CallCache, forget

__all__ = ["LaunchSequence", "Operation", "overridden", "shipped_kernel", "tile_configs"]


class Operation:
    """Work on arrays of given layouts: all but their addresses and the stream.

    A subclass is made from `Layout`s (through `CallCache.operation`). Its ``run`` takes views of
    arrays, makes staging copies where TMA cannot reach one, and launches; the first time it chooses
    a tile config, encodes tiles and prepares the kernel. Its `bind` serves later calls on arrays
    with the same layouts, which look at nothing but addresses.

    Attributes:
        needs_wgmma: The public name of an operation whose kernels issue wgmma; None for others.
    """

    needs_wgmma: ClassVar[str | None] = None

    def __init__(self, device: int | None) -> None:
        """Refuse a device that lacks the instructions of the kernels."""
        self.backend = backend_of(device)
        if self.needs_wgmma is not None:
            self.backend.require_wgmma(self.needs_wgmma)
        self._lock = threading.Lock()
        self._launch: Launch | None = None
        self._needs_staging = False

    @property
    def is_bindable(self) -> bool:
        """Whether a call is launches on the arrays as they are, and was made before."""
        return self._launch is not None and not self._needs_staging

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """Return the launch and its addresses, for arrays like the last ``run`` had.

        Args:
            addresses: Of the arrays in the order of the call's cache key, new ones last.
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

    def ordered(self, views: Iterable[ArrayView], stream: object) -> int:
        """Return the stream's handle, after the work that makes the arrays is ordered before it."""
        each = tuple(views)
        handle = self.backend.stream([view.framework for view in each], stream)
        wait_for_producers(each, handle, self.backend.device)
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
                new_arrays=allocator_of_all(allocators),
                has_workspace=workspace is not None,
            )


# --- several launches -------------------------------------------------------------------------


class LaunchSequence:
    """Launches made one after the other in a stream; to the caller they are one launch.

    Each step is a launch and a function that picks its addresses from the call's.
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
    """Return the one `Kernel` of a shipped source, or of its function, for these macros."""
    return _kernel(source, name, tuple(types.items()), tuple(constants.items()))


@functools.cache
def _kernel(
    source: str,
    name: str | None,
    types: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, bool | int], ...],
) -> Kernel:
    return Kernel(source, name, types=dict(types), constants=dict(constants))


# --- tile configs that are not the cost model's -----------------------------------------------

_Config = TypeVar("_Config")
_OVERRIDE: contextvars.ContextVar[Callable[[Any], Any] | None] = contextvars.ContextVar(
    "tmaasync tile config", default=None
)


@contextlib.contextmanager
def tile_configs(choose: Callable[[Any], Any]) -> Iterator[None]:
    """Have operations inside the ``with`` use ``choose(tile config of the cost model)``.

    For tests and sweeps. Calls made before are forgotten, and so are those made inside, at its end.
    """
    forget()
    token = _OVERRIDE.set(choose)
    try:
        yield
    finally:
        _OVERRIDE.reset(token)
        forget()


def overridden(config: _Config) -> _Config:
    """Return the tile config to use in place of the cost model's choice, as a rule that itself."""
    choose = _OVERRIDE.get()
    if choose is None:
        return config
    chosen: _Config = choose(config)
    return chosen
