"""Runs of a launch, or of launches that run together, that all start from the same memory."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tmaasync._driver import LaunchConfig
from tmaasync.emulate import abi
from tmaasync.emulate.abi import Interleaving
from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.emulate.launch.last_verdict import RunNotes
from tmaasync.emulate.launch.parameters import keep_before, launch_before
from tmaasync.emulate.launch.recording import taken
from tmaasync.emulate.launch.schedule import Policy, scheduled

Run = Callable[[Interleaving | None, abi.UndoLog], RunNotes]
"""Runs launches once, in an interleaving, under the schedule of the context."""


class RepeatedLaunch:
    """A launch, or launches that run together, whose runs start from the memory of the first.

    Attributes:
        launches: The program and the configuration of each, in the order of their threads' numbers.
    """

    def __init__(self, launches: Sequence[tuple[EmulatedProgram, LaunchConfig]], run: Run) -> None:
        """Run nothing yet."""
        self.launches = tuple(launches)
        self._run_once = run
        self._before = launch_before()
        self._number = 0
        self._first: abi.UndoLog | None = None
        self._last: abi.UndoLog | None = None

    @property
    def name(self) -> str:
        """The names of the kernels."""
        names = ", ".join(dict.fromkeys(program.name for program, _ in self.launches))
        count = len(self.launches)
        return names if count == 1 else f"{names} ({count} launches together)"

    def run(
        self,
        interleaving: Interleaving | None = None,
        *,
        policy: Policy = "round_robin",
        seed: int = 0,
    ) -> RunNotes:
        """Run once more, and search all accesses for races.

        Raises:
            TMAError: The run's error.
        """
        self._undo_last()
        keep_before(self._before)
        log = abi.UndoLog(launch=self._number)
        try:
            with scheduled(policy, seed=seed, races=True):
                return self._run_once(interleaving, log)
        finally:
            self._number = log.launch
            self._last = _owned(log)
            if self._first is None:
                self._first = self._last

    def leave_first(self) -> None:
        """Leave the memory as the first run left it. No run follows."""
        if self._first is None:
            return
        if self._last is not self._first:
            self._undo_last()
            self._exchange(self._first)
        self._drop_blocks(self._first)
        self._first = self._last = None

    def _undo_last(self) -> None:
        if self._last is None:
            return
        self._exchange(self._last)
        if self._last is not self._first:
            self._drop_blocks(self._last)

    def _exchange(self, log: abi.UndoLog) -> None:
        """Undo a run, or redo it."""
        self.launches[0][0].runtime.tmaasync_emulate_exchange(ctypes.byref(log))

    def _drop_blocks(self, log: abi.UndoLog) -> None:
        """Give back blocks of the kernels' heap that are free, once no run needs them again."""
        self.launches[0][0].runtime.tmaasync_emulate_drop_blocks(ctypes.byref(log))


def _owned(log: abi.UndoLog) -> abi.UndoLog:
    """Take the arrays of a log over."""
    words, blocks = (
        (kind * count).from_buffer_copy(
            taken(ctypes.cast(first, ctypes.c_void_p).value, count * ctypes.sizeof(kind))
        )
        for kind, first, count in (
            (abi.HeldWord, log.word, log.words),
            (abi.HeldBlock, log.block, log.blocks),
        )
    )
    return abi.UndoLog(
        launch=log.launch, word=words, words=len(words), block=blocks, blocks=len(blocks)
    )


class Explorer(Protocol):
    """Runs each launch of a context as often as it needs."""

    def explore(self, launch: RepeatedLaunch) -> None:
        """Run a launch, and leave the memory as its first run did."""


_EXPLORER: contextvars.ContextVar[Explorer | None] = contextvars.ContextVar(
    "tmaasync explorer", default=None
)
current_explorer = _EXPLORER.get


@contextlib.contextmanager
def exploring(explorer: Explorer) -> Iterator[None]:
    """Hand every launch inside the ``with`` to an explorer."""
    token = _EXPLORER.set(explorer)
    try:
        yield
    finally:
        _EXPLORER.reset(token)
