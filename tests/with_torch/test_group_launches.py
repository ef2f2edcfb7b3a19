"""Operators of a process group as they launch on GPUs, on emulated devices.

The ranks are launched one by one. A second call with tensors of the same layouts launches what the
first prepared, at other addresses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import exchange_cases
import numpy as np
import pytest
import ring_cases
from worlds import world_of

from tmaasync import _arrays
from tmaasync.emulate.launch.world import World

torch: Any = pytest.importorskip("torch")
pytest.importorskip("torch.distributed")

from tmaasync.torch import _group, _group_kernels  # noqa: E402

BF16 = torch.bfloat16


class Rank(_group.Group):
    """A rank whose peers make the same calls, one after the other."""

    def __init__(self, world: World, shared: list[list[Any]], rank: int) -> None:
        super().__init__("", _group.Members(rank, len(world)), None)
        self.world, self.all_shared, self.own_shared = world, shared, 0
        self.stream: Any = None  # the default one of each device

    def exchange(self, facts: Any) -> list[Any]:
        return [facts] * self.count

    def enter(self, tensor: Any) -> None:
        """Every device has one stream."""

    def zeros(self, size_bytes: int) -> list[Any]:
        number, self.own_shared = self.own_shared, self.own_shared + 1
        if number == len(self.all_shared):
            zeros = torch.zeros(size_bytes, dtype=torch.uint8)
            self.all_shared.append([on(device, zeros) for device in self.world])
        return self.all_shared[number]


def on(device: Any, tensor: Any) -> Any:
    """Return a copy in the memory of an emulated device."""
    held = torch.from_numpy(device.array(np.zeros(tensor.nbytes, np.uint8)))
    copy = held.view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


class Calls:
    """All ranks of a world, and how many launches were repeated.

    Attributes:
        held: The tensors that all calls have at the same addresses; None: at new ones.
    """

    def __init__(self, world: World) -> None:
        shared: list[list[Any]] = []
        self.world = world
        self.ranks = [Rank(world, shared, rank) for rank in range(len(world))]
        self.device: Any = None
        self.repeated = 0
        self.held: dict[Any, Any] | None = None

    def __call__(self, call: Callable[..., Any], *lists: Sequence[Any]) -> list[Any]:
        """Return the results of ``call(rank, its tensors)`` on all ranks, from copies."""
        found = []
        for rank in reversed(self.ranks):
            self.device = self.world[rank.rank]
            found.append(call(rank, *(self.placed(each[rank.rank]) for each in lists)))
        self.world.synchronize()
        return found[::-1]

    def placed(self, tensor: Any) -> Any:
        """Return a copy on the current device, for a shape in one place if they are held."""
        if self.held is None:
            return on(self.device, tensor)
        key = self.device, tensor.shape
        if key not in self.held:
            self.held[key] = on(self.device, tensor)
        return self.held[key].copy_(tensor)


@pytest.fixture(params=[2, 3])
def calls(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    def fingerprint(tensor: Any) -> Any:
        return tensor.data_ptr(), (tensor.shape, tensor.stride(), tensor.dtype)

    monkeypatch.setattr(_arrays, "fingerprint", fingerprint)  # as of tensors on GPUs
    with world_of(request.param) as world:
        made = Calls(world)

        def run(launched: Any, starts: Any, stream: Any) -> None:
            made.repeated += 1
            original(launched, starts, stream or 0)

        def new_empty(tensor: Any, *shape: Any, dtype: Any = None) -> Any:
            sizes = shape[0] if isinstance(shape[0], tuple) else shape
            return made.placed(torch.full(sizes, 7, dtype=dtype or tensor.dtype))

        chip = SimpleNamespace(name="a chip", multi_processor_count=132)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        original = _group.Launched.run
        monkeypatch.setattr(_group.Launched, "run", run)
        monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
        # Kernels run when the world is synchronised: what was copied before would be old.
        for copy in ("clone", "contiguous"):
            monkeypatch.setattr(torch.Tensor, copy, lambda tensor, **_: tensor)
        yield made


def drawn(*shapes: tuple[int, ...]) -> list[Any]:
    return [torch.randint(-2, 3, shape).to(BF16) for shape in shapes]  # all sums are exact


def check(calls: Calls, call: Callable[..., Any], draw: Callable[[], Any]) -> None:
    """Compare three calls; all but the first, or first two, are repeated on every rank."""
    for _ in range(3):
        lists, wanted = draw()
        found = calls(call, *lists)
        for one, exact in zip(found, wanted, strict=True):
            assert torch.equal(one.double(), exact.double())
    assert calls.repeated == 2 * len(calls.ranks)


@pytest.mark.parametrize("rows", [[150, 129, 180], [20, 9, 16]], ids=["overlapped", "in turn"])
def test_all_gather_matmul(calls: Calls, rows: list[int]) -> None:
    counts = rows[: len(calls.ranks)]

    def draw() -> Any:
        a, b = drawn(*((count, 72) for count in counts)), drawn(*[(72, 24)] * len(counts))
        return (a, b), [torch.cat(a).double() @ one.double() for one in b]

    def call(rank: Rank, a: Any, b: Any) -> Any:
        return _group_kernels.all_gather_matmul(rank, a, b, counts)

    check(calls, call, draw)


@pytest.mark.parametrize("m", [300, 20])
@pytest.mark.parametrize("reduces", [False, True], ids=["scatter", "all-reduce"])
def test_matmul_reduce(calls: Calls, m: int, reduces: bool) -> None:
    count = len(calls.ranks)
    counts = [m // 2, m - m // 2 - 7, 7][:count] if count == 3 else [m // 2, m - m // 2]

    def draw() -> Any:
        a, b = drawn(*[(m, 64)] * count), drawn(*[(64, 24)] * count)
        total = sum(x.double() @ y.double() for x, y in zip(a, b, strict=True))
        return (a, b), [total] * count if reduces else total.split(counts)

    def call(rank: Rank, a: Any, b: Any) -> Any:
        name = "matmul_all_reduce" if reduces else "matmul_reduce_scatter"
        return getattr(_group_kernels, name)(rank, a, b, counts)

    check(calls, call, draw)


@pytest.mark.parametrize("columns", [64, 5])
def test_collectives(calls: Calls, columns: int) -> None:
    counts = [9, 14, 20][: len(calls.ranks)]
    total = sum(counts)

    def gathered() -> Any:
        parts = drawn(*((count, columns) for count in counts))
        return (parts,), [torch.cat(parts)] * len(counts)

    check(calls, lambda rank, own: _group_kernels.all_gather(rank, own, counts), gathered)
    for name in ("reduce_scatter", "all_reduce"):
        calls.repeated = 0

        def added(name: str = name) -> Any:
            terms = drawn(*[(total, columns)] * len(counts))
            exact = sum(one.double() for one in terms)
            scatters = name == "reduce_scatter"
            return (terms,), exact.split(counts) if scatters else [exact] * len(counts)

        operator = getattr(_group_kernels, name)
        check(calls, lambda rank, own, operator=operator: operator(rank, own, counts), added)


def test_all_to_all(calls: Calls) -> None:
    """Ragged maps start before their tensors: a call at other addresses is prepared anew."""
    rng, count = np.random.default_rng(0), len(calls.ranks)
    counts = exchange_cases.drawn_counts(rng, count, 2 * count, 20) + 1
    rows = [int(one.sum()) for one in counts]

    def call(rank: Rank, tokens: Any, of_experts: Any) -> Any:
        operator = _group_kernels.all_to_all
        return operator(rank, "call", tokens, of_experts, rows, 99, combine=False)

    for _ in range(3):
        tokens = drawn(*((one, 8) for one in rows))
        packed = exchange_cases.packed([one.double().numpy() for one in tokens], counts)
        found = calls(call, tokens, [torch.from_numpy(own) for own in counts])
        for (one, ends), exact in zip(found, packed, strict=True):
            assert torch.equal(one[: len(exact)].double(), torch.from_numpy(exact))
            assert int(ends[-1]) == len(exact)


@pytest.mark.parametrize("is_packed", [False, True], ids=["apart", "packed"])
def test_ring_attention(calls: Calls, is_packed: bool) -> None:
    """Parts of one tensor overlap in their addresses: the call repeats at its address alone."""
    rng, count = np.random.default_rng(0), len(calls.ranks)
    checked: list[Any] = []
    calls.held = {} if is_packed else None

    def call(rank: Rank, *own: Any) -> Any:
        q, k, v = own[0].split([4, 2, 2], 2) if is_packed else own
        refuse = functools.partial(checked.append, rank)
        return _group_kernels.ring_attention(rank, "call", refuse, q, k, v, causal=True)

    for _ in range(3):
        drawn = ring_cases.drawn(rng, 1, 16 * count, 4, 2, 64, np.float32)
        whole = [torch.from_numpy(one).to(BF16).float().numpy() for one in drawn]
        shards = (ring_cases.shards(one, count, causal=True) for one in whole)
        lists = [[torch.from_numpy(one).to(BF16) for one in each] for each in shards]
        if is_packed:
            lists = [[torch.cat(own, 2) for own in zip(*lists, strict=True)]]
        outs, sums = zip(*calls(call, *lists), strict=True)
        found = [one.float().numpy() for one in outs]
        ring_cases.check(found, whole, causal=True, lse=[one.numpy() for one in sums])
    assert calls.repeated == 2 * count
    assert len(checked) == count
