"""Tiles of all ranks of a process group in `torch.distributed`'s symmetric memory."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tmaasync._kinds import shown
from tmaasync.errors import ArgumentError, Violation
from tmaasync.tile import TMATensorTileArray, create_tma_tile

_DEVICES = ("cuda",)
"""Where symmetric memory can be reached by TMA."""
_EMPTY = "torch.distributed._symmetric_memory.empty(*shape, dtype=..., device='cuda')"


def symmetric_tiles(
    tensor: Any, tile_shape: Sequence[int], *, group: Any = None, **options: Any
) -> TMATensorTileArray:
    """Create the tiles of a symmetric tensor on all ranks, which kernels index by rank.

    This is a collective operation and takes milliseconds: every process of the group calls it with
    a tensor of the same shape and type. The tiles live as long as the result.

    Args:
        tensor: This rank's tensor, from ``torch.distributed._symmetric_memory.empty``.
        tile_shape: As in `create_tma_tile`.
        group: The process group; by default all processes.
        options: As in `create_tma_tile`: ``swizzle=``, ``box_shape=`` and so on.

    Returns:
        A `TMATensorTileArray`; the tile with index r is over the tensor of rank r of the group.

    Raises:
        ArgumentError: On every rank, if any rank's tensor is invalid or differs from the others;
            or torch.distributed is not initialised.
        TileError: The tile cannot be described by a tensor map.
    """
    buffers = symmetric_buffers(tensor, group=group)
    return TMATensorTileArray([create_tma_tile(one, tile_shape, **options) for one in buffers])


def symmetric_buffers(tensor: Any, *, group: Any = None) -> list[Any]:
    """Return the tensors of all ranks of a group, as mapped into this process.

    This is a collective operation like `symmetric_tiles`. `Signals` accepts the result for
    ``torch.int32`` tensors of zeros. Each rank launches with ``signals[rank]`` of its own rank.

    Args:
        tensor: This rank's tensor, from ``torch.distributed._symmetric_memory.empty``, or a
            contiguous slice at the same offset on all ranks.
        group: The process group; by default all processes.

    Raises:
        ArgumentError: As `symmetric_tiles`.
    """
    group = process_group(group)
    _agree(tensor, group)
    return buffers_of(tensor, group)


def buffers_of(tensor: Any, group: Any) -> list[Any]:
    """Return the tensors of all ranks of a group, or of its name, without comparing them."""
    # A private module that torch imports on demand.
    from torch.distributed import _symmetric_memory  # noqa: PLC0415

    handle = _symmetric_memory.rendezvous(tensor, group)
    if handle is None:
        raise ArgumentError.of([_ordinary()])
    shape, dtype = tuple(tensor.shape), tensor.dtype

    def buffer(rank: int, offset: int) -> Any:
        return handle.get_buffer(rank, shape, dtype, offset)

    # The start of a buffer is the allocation or the tensor, depending on torch's version.
    own = buffer(handle.rank, 0)
    offset = (tensor.data_ptr() - own.data_ptr()) // tensor.element_size()
    buffers = [buffer(rank, offset) for rank in range(handle.world_size)]
    buffers[handle.rank] = tensor  # it keeps all mappings alive
    return buffers


class _Facts(NamedTuple):
    """The properties of a rank's tensor that all ranks compare."""

    shape: tuple[int, ...]
    dtype: str
    violations: tuple[Violation, ...]


def process_group(group: Any) -> Any:
    """Return the group that a caller names; by default all processes."""
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError.broken(
            "group",
            shown(group),
            "torch.distributed is not initialised",
            "Call torch.distributed.init_process_group('nccl'), under torchrun",
        )
    if group is None:
        return dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        remedy = "Pass what torch.distributed.new_group returned there, or leave it out"
        if isinstance(group, dist.DeviceMesh):
            remedy = (
                "Pass mesh.get_group(dimension); a sum over nodes is reduce_scatter, all_gather"
            )
        raise ArgumentError.broken(
            "group",
            shown(group),
            "it must be a process group of which this process is a member",
            remedy,
        )
    return group


def _agree(tensor: Any, group: Any) -> None:
    """Compare the tensors of all ranks, so that either all ranks raise or none does."""
    is_tensor = isinstance(tensor, torch.Tensor)
    mine = _Facts(
        tuple(tensor.shape) if is_tensor else (),
        str(tensor.dtype) if is_tensor else "",
        tuple(_unfit(tensor)),
    )
    ranks: list[_Facts] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(ranks, mine, group=group)
    ArgumentError.raise_for(mine.violations)
    ArgumentError.raise_for(itertools.chain.from_iterable(map(_of_rank, itertools.count(), ranks)))
    ArgumentError.raise_for(_unequal(ranks))


def _of_rank(rank: int, facts: _Facts) -> Iterator[Violation]:
    """Yield the violations of another rank."""
    for one in facts.violations:
        yield dataclasses.replace(one, argument=f"{one.argument} of rank {rank}")


def _unequal(ranks: Sequence[_Facts]) -> Iterator[Violation]:
    for rank, one in enumerate(ranks):
        if (one.shape, one.dtype) != (ranks[0].shape, ranks[0].dtype):
            yield Violation(
                f"tensor of rank {rank}",
                f"{one.dtype} of shape {one.shape}",
                f"rank 0 has {ranks[0].dtype} of shape {ranks[0].shape}, and all ranks have the "
                "same",
                "Pass tensors of one shape and type on all ranks",
            )


def _unfit(tensor: Any) -> Iterator[Violation]:
    if not isinstance(tensor, torch.Tensor):
        yield Violation("tensor", shown(tensor), "it must be a torch.Tensor", f"Pass {_EMPTY}")
        return
    if tensor.device.type not in _DEVICES:
        rule = "kernels reach other processes' memory on GPUs alone"
        yield Violation("tensor", f"on {tensor.device}", rule, f"Make it with {_EMPTY}")
    elif not _is_symmetric(tensor):
        yield _ordinary()
    if not tensor.is_contiguous():
        rule = "a symmetric tensor is contiguous"
        given = f"of strides {tensor.stride()} elements"
        yield Violation("tensor", given, rule, "Pass the tensor whole")


def _ordinary() -> Violation:
    rule = "other processes cannot reach its memory"
    return Violation("tensor", "in ordinary memory", rule, f"Make it with {_EMPTY}")


def _is_symmetric(tensor: Any) -> bool:
    """Return whether the memory is symmetric; True if this torch version cannot tell."""
    from torch.distributed import _symmetric_memory  # noqa: PLC0415

    known = getattr(_symmetric_memory, "is_symm_mem_tensor", None)
    return known is None or bool(known(tensor))
