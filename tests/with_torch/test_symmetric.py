"""Tiles of a symmetric tensor over the ranks of a group; memory and handle are stand-ins."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, Kernel, Signals, TMATensorTileArray

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")
symmetric_memory: Any = pytest.importorskip("torch.distributed._symmetric_memory")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
symmetric: Any = importlib.import_module("tmaasync.torch._symmetric")

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"
ROWS, COLUMNS, RANKS = 40, 32, 3


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Handle:
    """What `rendezvous` returns on rank 1 of three, over ordinary memory."""

    rank, world_size = 1, RANKS

    def __init__(self, buffers: list[Any]) -> None:
        self.buffers = buffers

    def get_buffer(self, rank: int, sizes: Any, dtype: Any, storage_offset: int = 0) -> Any:
        flat = self.buffers[rank].view(-1).view(dtype)
        count = int(np.prod(sizes))
        return flat[storage_offset : storage_offset + count].view(sizes)


Group = Callable[..., list[Any]]


@pytest.fixture
def group(one_process: None, monkeypatch: pytest.MonkeyPatch) -> Group:
    """Makes buffers, and what the other ranks say of theirs."""

    def make(buffers: list[Any], *others: Any) -> list[Any]:
        def gather(into: list[Any], mine: Any, group: Any) -> None:
            assert group is dist.group.WORLD
            into[:] = [others[0] if others else mine, mine, *(others[1:] or [mine])]

        handle = None if not buffers else Handle(buffers)
        monkeypatch.setattr(symmetric, "_DEVICES", ("cpu",))
        monkeypatch.setattr(symmetric_memory, "is_symm_mem_tensor", lambda _: True, raising=False)
        monkeypatch.setattr(symmetric_memory, "rendezvous", lambda tensor, group: handle)
        monkeypatch.setattr(dist, "get_world_size", lambda group: RANKS)
        monkeypatch.setattr(dist, "all_gather_object", gather)
        return buffers

    return make


def buffers_of_ranks(*shape: int, dtype: Any = torch.float32) -> list[Any]:
    return [torch.full(shape, 1 + rank, dtype=dtype) for rank in range(RANKS)]


def test_tiles_are_indexed_by_rank(group: Group) -> None:
    buffers = group(buffers_of_ranks(ROWS, COLUMNS))

    tiles = symmetric.symmetric_tiles(buffers[1], (16, COLUMNS), l2_promotion="NONE")
    target = np.zeros((ROWS, COLUMNS), np.float32)
    assert isinstance(tiles, TMATensorTileArray)
    pull = Kernel(SOURCE, "pull", types={"Tile": tiles[0]})
    for rank in range(RANKS):
        target_tile = symmetric.create_tma_tile(target, (16, COLUMNS))
        pull(3, 1, (tiles, target_tile, rank))
        assert (target == 1 + rank).all()

    assert tiles[1].array is buffers[1]  # the tensor keeps the mappings alive
    assert tiles[0].spec.l2_promotion.name == "NONE"


def test_a_slice_lies_at_the_same_offset_on_every_rank(group: Group) -> None:
    buffers = group(buffers_of_ranks(8, 4))
    mine = buffers[1][2:5]

    found = symmetric.symmetric_buffers(mine)

    for rank, one in enumerate(found):
        assert one.data_ptr() == buffers[rank][2:5].data_ptr()
        assert one.shape == (3, 4)
    assert found[1] is mine


def test_signals_lie_in_a_symmetric_tensor(group: Group) -> None:
    pads = group([torch.zeros(8, dtype=torch.int32) for _ in range(RANKS)])

    signals = Signals(symmetric.symmetric_buffers(pads[1]))

    assert [pad.address for pad in signals.pads] == [pad.data_ptr() for pad in pads]
    assert (len(signals), signals.count) == (RANKS, 8)


def facts(shape: tuple[int, ...] = (ROWS, COLUMNS), *violations: Any) -> Any:
    return symmetric._Facts(shape, "torch.float32", violations)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (
            (facts(), facts((ROWS, 64))),
            r"tensor of rank 2 is torch.float32 of shape \(40, 64\); rank 0 has torch.float32",
        ),
        (
            (facts((), symmetric._ordinary()), facts()),
            "tensor of rank 0 is in ordinary memory; other processes cannot reach",
        ),
    ],
)
def test_all_ranks_refuse_what_one_rank_has(group: Group, others: Any, words: str) -> None:
    buffers = group(buffers_of_ranks(ROWS, COLUMNS), *others)
    with pytest.raises(ArgumentError, match=words):
        symmetric.symmetric_buffers(buffers[1])


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (np.zeros(4), "it must be a torch.Tensor"),
        (torch.zeros(4, 4).T[:, :2], "tensor is on cpu; kernels reach other processes' memory on"),
        (
            torch.zeros(4, 4)[:, :2],
            r"tensor is of strides \(4, 1\) elements; a symmetric tensor is",
        ),
    ],
)
def test_unfit_tensors_are_refused(one_process: None, tensor: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        symmetric.symmetric_tiles(tensor, (16, COLUMNS))


def test_ordinary_memory_is_refused(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(ROWS, COLUMNS)
    refused = functools.partial(symmetric.symmetric_tiles, tensor, (16, COLUMNS))
    group([])
    with pytest.raises(ArgumentError, match="tensor is in ordinary memory; other processes cannot"):
        refused()  # rendezvous returns None
    monkeypatch.setattr(symmetric_memory, "is_symm_mem_tensor", lambda _: False, raising=False)
    with pytest.raises(ArgumentError, match=r"_symmetric_memory\.empty"):
        refused()


def test_there_is_a_process_group(one_process: None) -> None:
    tensor = torch.zeros(ROWS, COLUMNS)
    with pytest.raises(
        ArgumentError, match="group is 'ranks'; it must be a process group of which"
    ):
        symmetric.symmetric_tiles(tensor, (16, COLUMNS), group="ranks")
    dist.destroy_process_group()
    try:
        with pytest.raises(ArgumentError, match=r"torch\.distributed is not initialised"):
            symmetric.symmetric_tiles(tensor, (16, COLUMNS))
    finally:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
