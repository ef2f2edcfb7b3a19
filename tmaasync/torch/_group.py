"""The rank of this process in a process group: what ranks agree on, and the memory they share.

Kernels of all ranks reach each other's memory through `torch.distributed`'s symmetric memory. Ranks
talk to each other on the host in the first call of a kind alone, through the group's store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import pickle
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._torch_internals import current_stream
from tmaasync.errors import ArgumentError, BackendError, Violation
from tmaasync.kernel import backend_of
from tmaasync.kernel.watch import budget_of
from tmaasync.ops._call_cache import clear_on_forget
from tmaasync.ops._ranks import MAX_CALLS, Ranks
from tmaasync.torch._group_calls import Call
from tmaasync.torch._symmetric import buffers_of, process_group
from tmaasync.torch._tensors import padded_columns

_LEAST_BYTES = 1 << 16
_ALIGNMENT = 128  # of addresses that a kernel may depend on
_BUDGET_SECONDS = 10.0  # as of a wait for `Signals`


class Members(NamedTuple):
    """This process's rank in a group, and the number of ranks."""

    rank: int
    size: int

    @classmethod
    def of(cls, name: str) -> Members:
        group = resolved(name)
        return cls(group.rank(), group.size())


def name_of(group: Any) -> str:
    """Return the name by which operators take a group; by default of all processes."""
    name: str = process_group(group).group_name
    return name


def resolved(name: str) -> Any:
    """Return the process group of a name."""
    from torch.distributed import distributed_c10d  # noqa: PLC0415 - private

    return distributed_c10d._resolve_process_group(name)


class Facts(NamedTuple):
    """What a rank says of its call.

    Attributes:
        call: What all ranks have to have in common, for messages.
        own: What may differ.
        violations: The rules that its arguments break.
    """

    call: str
    own: Any = None
    violations: tuple[Violation, ...] = ()


class Group:
    """The rank of this process in a group; one object for each group.

    It is the `RankGroup` of operations on GPUs.

    Attributes:
        name: Of the group, for torch.
        rank: This process's.
        count: Of ranks.
        kept: See `RankGroup`.
        stream: The handle of the stream of the current call.
        calls: On GPUs, by what `key` returns.
    """

    def __init__(self, name: str, members: Members, store: Any) -> None:
        self.name, self.members, self._store = name, members, store
        self.rank, self.count = members
        self._exchanges = 0
        self._agreed: dict[Hashable, list[Any]] = {}
        self._is_new = False
        self.kept: dict[Hashable, Any] = {}
        self.stream: int = 0
        self._last: Any = None  # the stream of the last call
        self._current = current_stream()
        self._device: Any = None
        self._buffers: dict[int, list[Any]] = {}
        self.calls: dict[Hashable, Call] = {}
        clear_on_forget(self)

    def clear(self) -> None:
        """Forget earlier calls."""
        self.calls.clear()

    @classmethod
    def of(cls, name: str) -> Group:
        """Return the object of a group."""
        key = resolved(name)
        found: Group | None = _GROUPS.get(key)
        if found is None:
            from torch.distributed import distributed_c10d  # noqa: PLC0415 - private

            store = distributed_c10d._get_process_group_store(key)
            store = dist.PrefixStore("tmaasync", store)
            found = _GROUPS[key] = cls(name, Members.of(name), store)
        return found

    # --- agreement ----------------------------------------------------------------------------

    def exchange(self, facts: Facts) -> list[Facts]:
        """Return the facts of all ranks; raise what any of them broke, on every rank.

        Raises:
            ArgumentError: A rank's arguments break a rule, or ranks make different calls.
            BackendError: A rank has not made a call within the budget.
        """
        number = self._send(facts)
        ArgumentError.raise_for(facts.violations)  # the others read them
        found = self._receive(number, facts)
        check(found)
        return found

    def collect(self, facts: Facts) -> list[Facts]:
        """Return the facts of all ranks, whatever they are.

        Raises:
            BackendError: As `exchange`.
        """
        return self._receive(self._send(facts), facts)

    def _send(self, facts: Facts) -> int:
        number, self._exchanges = self._exchanges, self._exchanges + 1
        self._store.set(f"{number}/{self.rank}", pickle.dumps(facts))
        return number

    def _receive(self, number: int, facts: Facts) -> list[Facts]:
        budget = budget_of(None, _BUDGET_SECONDS)
        keys = [f"{number}/{rank}" for rank in range(self.count)]
        for rank, key in enumerate(keys):
            try:
                self._store.wait([key], timedelta(seconds=budget))
            except RuntimeError as error:  # torch's DistStoreError, or one of an older release
                self._give_up(number, facts, rank)
                raise BackendError(
                    f"{facts.call}: rank {rank} did not make this call for the first time within "
                    f"{budget:g} s. All ranks of a group make the same calls in the same order. If "
                    "it comes later, set TMAASYNC_BUDGET_SECONDS."
                ) from error
        return [pickle.loads(self._store.get(key)) for key in keys]

    def _give_up(self, number: int, facts: Facts, missing: int) -> None:
        """Let a rank that comes later end too, instead of waiting for this one."""
        rule = f"rank {missing} made it later than TMAASYNC_BUDGET_SECONDS"
        late = Violation(facts.call, "given up", rule, "Start all ranks again")
        with contextlib.suppress(RuntimeError):  # the rank that has died may have had the store
            self._store.set(f"{number}/{self.rank}", pickle.dumps(Facts(facts.call, None, (late,))))

    def refuse(self, call: str, violations: tuple[Violation, ...]) -> None:
        """Raise what this rank's arguments break, if anything, also on ranks that wait for it."""
        if violations:
            self.exchange(Facts(call, None, violations))

    def agree(self, key: Hashable, own: Any, call: Callable[[], str]) -> list[Any]:
        """Return what each rank says of itself in the first call of this kind.

        Args:
            key: Of the kind of call. If it changes on one rank, it changes on all.
            own: See `Facts`.
            call: Returns what `Facts` have.
        """
        found = self._agreed.get(key)
        if found is None:
            if torch.cuda.is_current_stream_capturing():
                raise ArgumentError(
                    f"{call()}: the first call of a kind allocates memory that ranks share. Make "
                    "it once before a CUDA graph is captured."
                )
            found = [one.own for one in self.exchange(Facts(call(), own))]
            self._agreed[key], self._is_new = found, True
        return found

    def ready(self) -> None:
        """See `RankGroup`."""
        if self._is_new:
            self._is_new = False
            self.exchange(Facts("all launches are prepared"))

    # --- calls --------------------------------------------------------------------------------

    def enter(self, tensor: Any) -> None:
        """Order this call on the GPU of its tensor after earlier calls."""
        device = tensor.get_device()
        if self._device not in {None, device}:
            raise ArgumentError(
                f"this call is on cuda:{device}, and earlier ones with this group were on "
                f"cuda:{self._device}. A rank has one GPU."
            )
        self._device = device
        if self._last is not None and self._current(device) == self.stream:
            return
        stream = torch.cuda.current_stream(device)
        if self._last is not None and not torch.cuda.is_current_stream_capturing():
            stream.wait_stream(self._last)
        self._last, self.stream = stream, stream.cuda_stream

    def ranks(self, view: ArrayView) -> Ranks:
        """Return the ranks of a call whose own array this is."""
        return Ranks((backend_of(view.device).memory_of(view),) * self.count, (), self)

    def key(self, name: Hashable, *tensors: Any) -> Hashable:
        """Return the key of calls with tensors of these layouts; None for tensors without one."""
        seen = [_arrays.fingerprint(one) for one in tensors]
        known = [one for one in seen if one is not None]
        if len(known) < len(seen):
            return None
        return name, *((layout, start % _ALIGNMENT) for start, layout in known)

    def first(self, key: Hashable, call: Call, *given: Any) -> Any:
        """Make the first call with a key, and keep it for later ones."""
        if len(self.calls) >= MAX_CALLS:
            self.calls.clear()
        if key is not None:
            self.calls[key] = call
        return call(*given)

    # --- memory -------------------------------------------------------------------------------

    def shared(self, shape: tuple[int, ...], kind: str) -> list[ArrayView]:
        """See `RankGroup`."""
        found = self.zeros(math.prod(shape) * element(kind).itemsize)
        return [_arrays.view(one.view(getattr(torch, kind)).view(shape)) for one in found]

    def zeros(self, size_bytes: int) -> list[Any]:
        """Return new bytes of every rank, as this process reaches them: collective."""
        from torch.distributed import _symmetric_memory  # noqa: PLC0415 - on demand

        device = f"cuda:{self._device}"
        # Buffers made in inference mode could not be written outside of it.
        with torch.cuda.device(self._device), torch.inference_mode(False):
            own = _symmetric_memory.empty(size_bytes, dtype=torch.uint8, device=device).zero_()
            torch.cuda.synchronize()  # a peer that has its buffers finds zeros in all
            return buffers_of(own, self.name)

    def matrices(self, rows: int, columns: int, dtype: Any) -> list[Any]:
        """Return a matrix of each rank in a buffer of the group, rows a multiple of 16 bytes apart.

        A call may use it until its last kernel: the buffer is the next call's. A peer reaches it
        only while a kernel of this rank runs that waits for the peer.
        """
        pitch = padded_columns(columns, dtype)
        size = max(_LEAST_BYTES, 1 << (rows * pitch * dtype.itemsize - 1).bit_length())
        found = self._buffers.get(size)
        if found is None:
            found = self._buffers[size] = self.zeros(size)
        wholes = [one.view(dtype)[: rows * pitch].view(rows, pitch) for one in found]
        return [whole[:, :columns] for whole in wholes]


_GROUPS: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()


def check(ranks: Sequence[Facts]) -> None:
    """Raise what any rank's arguments break, or that ranks make different calls."""
    ArgumentError.raise_for(
        itertools.chain.from_iterable(
            _of_rank(rank, one.violations) for rank, one in enumerate(ranks)
        )
    )
    if any(one.call != ranks[0].call for one in ranks):
        raise ArgumentError(
            "the ranks of a group make different calls:"
            + "".join(f"\n  rank {rank}: {one.call}" for rank, one in enumerate(ranks))
        )


def _of_rank(rank: int, violations: Sequence[Violation]) -> Iterable[Violation]:
    for one in violations:
        yield dataclasses.replace(one, argument=f"{one.argument} of rank {rank}")
