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
import scaled_ranks
from worlds import world_of

from tmaasync import _arrays
from tmaasync.emulate.launch.world import World

torch: Any = pytest.importorskip("torch")
pytest.importorskip("torch.distributed")

from tmaasync.torch import _group, _group_calls, _group_kernels  # noqa: E402

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

    def operate(self, operator: Any, tensors: Sequence[Any], *given: Any, **options: Any) -> Any:
        """Call as the operators do."""
        key = self.key((operator, str(given), *options.items()), *tensors)
        if (known := self.calls.get(key)) is not None:
            return known(*tensors)
        return self.first(key, operator(self, *tensors, *given, **options), *tensors)

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
        original = _group_calls.Launched.run
        monkeypatch.setattr(_group_calls.Launched, "run", run)
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
        return rank.operate(_group_kernels.all_gather_matmul, (a, b), counts)

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
        return rank.operate(getattr(_group_kernels, name), (a, b), counts)

    check(calls, call, draw)


@pytest.mark.parametrize("columns", [1, 128])
@pytest.mark.parametrize("gathers", [True, False], ids=["gather", "scatter"])
def test_scaled_matmuls(calls: Calls, gathers: bool, columns: int) -> None:
    """Operands and scales lie in other memory at each call."""
    count, rng = len(calls.ranks), np.random.default_rng(columns)
    counts = [70, 41, 20][:count]

    def draw() -> Any:
        if gathers:
            operands = scaled_ranks.drawn_shards(rng, counts, 288, [40] * count, columns)
            exact = scaled_ranks.multiplied(*operands)
        else:
            operands = scaled_ranks.drawn_parts(rng, sum(counts), [272] * count, 136, columns)
            exact = np.split(sum(scaled_ranks.terms(*operands)), np.cumsum(counts)[:-1])
        a, b, scale_a, scale_b = operands
        kinds = {scaled_ranks.E4M3: torch.float8_e4m3fn, scaled_ranks.E5M2: torch.float8_e5m2}
        lists = [
            [torch.from_numpy(one.view(np.uint8)).view(kinds[one.dtype.type]) for one in each]
            for each in (a, [one.T for one in b])
        ]
        lists += [[torch.from_numpy(one) for one in each] for each in (scale_a, scale_b)]
        lists[2] = [one.T.contiguous() for one in lists[2]]
        return lists, [torch.from_numpy(one) for one in exact]

    def call(rank: Rank, a: Any, w: Any, scale_a: Any, scale_b: Any) -> Any:
        name = "all_gather_scaled_matmul" if gathers else "scaled_matmul_reduce_scatter"
        operator = getattr(_group_kernels, name)
        operands = a, w.T, scale_a.T, scale_b
        return rank.operate(operator, operands, counts, torch.float32)

    check(calls, call, draw)


@pytest.mark.parametrize("columns", [64, 5])
def test_collectives(calls: Calls, columns: int) -> None:
    counts = [9, 14, 20][: len(calls.ranks)]
    total = sum(counts)

    def gathered() -> Any:
        parts = drawn(*((count, columns) for count in counts))
        return (parts,), [torch.cat(parts)] * len(counts)

    def call(rank: Rank, own: Any, operator: Any = _group_kernels.all_gather) -> Any:
        return rank.operate(operator, (own,), counts)

    check(calls, call, gathered)
    for name in ("reduce_scatter", "all_reduce"):
        calls.repeated = 0

        def added(name: str = name) -> Any:
            terms = drawn(*[(total, columns)] * len(counts))
            exact = sum(one.double() for one in terms)
            scatters = name == "reduce_scatter"
            return (terms,), exact.split(counts) if scatters else [exact] * len(counts)

        check(calls, functools.partial(call, operator=getattr(_group_kernels, name)), added)


def test_all_to_all(calls: Calls) -> None:
    """Ragged maps start before their tensors: a call at other addresses is prepared anew."""
    rng, count = np.random.default_rng(0), len(calls.ranks)
    counts = exchange_cases.drawn_counts(rng, count, 2 * count, 20) + 1
    rows = [int(one.sum()) for one in counts]

    def prepare(rank: Rank, tokens: Any, of_experts: Any) -> Any:
        operator = _group_kernels.all_to_all
        return operator(rank, "call", tokens, of_experts, rows, 99, combine=False)

    def call(rank: Rank, *tensors: Any) -> Any:
        return rank.operate(prepare, tensors)

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
    calls.held = {} if is_packed else None

    def prepare(rank: Rank, *tensors: Any) -> Any:
        return _group_kernels.ring_attention(rank, "call", *tensors, causal=True)

    def call(rank: Rank, *own: Any) -> Any:
        return rank.operate(prepare, own[0].split([4, 2, 2], 2) if is_packed else own)

    for _ in range(3):
        whole = ring_cases.drawn(rng, 1, 16 * count, 4, 2, 64, np.float16)
        lists: Any = [ring_cases.shards(one, count, causal=True) for one in whole]
        if is_packed:
            lists = [[np.concatenate(own, 2) for own in zip(*lists, strict=True)]]
        found = calls(call, *([torch.from_numpy(one) for one in each] for each in lists))
        outs, sums = ([one.numpy() for one in each] for each in zip(*found, strict=True))
        ring_cases.check(outs, whole, causal=True, lse=sums)
    assert calls.repeated == 2 * count


@pytest.mark.parametrize("causal", [True, False])
def test_ring_attention_backward(calls: Calls, causal: bool) -> None:
    rng, count = np.random.default_rng(0), len(calls.ranks)

    def prepare(rank: Rank, *tensors: Any) -> Any:
        return _group_kernels.ring_attention_backward(rank, "call", *tensors, causal=causal)

    def call(rank: Rank, *own: Any) -> Any:
        return rank.operate(prepare, own)

    for _ in range(2):
        whole = ring_cases.drawn(rng, 1, 8 * count, 4, 2, 64, np.float16)
        dout = rng.standard_normal(whole[0].shape).astype(np.float16)
        out, sums = ring_cases.reference(*whole, causal=causal)
        given = [(one, 1) for one in (dout, *whole, out.astype(np.float16))]
        lists = [
            ring_cases.shards(one, count, causal=causal, axis=axis)
            for one, axis in (*given, (sums.astype(np.float32), 2))
        ]
        found = calls(call, *([torch.from_numpy(one) for one in each] for each in lists))
        grads = [[one.numpy() for one in each] for each in zip(*found, strict=True)]
        ring_cases.check_gradients(grads, dout, whole, causal=causal)
    assert calls.repeated == count
    empty = calls(call, *([torch.from_numpy(one[:0]) for one in each] for each in lists))
    assert [one.shape for one in empty[0]] == [lists[name][0][:0].shape for name in (1, 2, 3)]
