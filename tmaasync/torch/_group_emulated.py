"""The operations of a process group on tensors in host memory, for tests without a GPU.

The emulator runs all ranks of a world in one process. So every process gets the tensors of all
ranks through the group's store, runs the kernels of all ranks on emulated devices, and keeps its
own result. Unlike on GPUs each call waits for all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tmaasync import emulate, enable_peer_access
from tmaasync._elements import element
from tmaasync.emulate.launch.world import EmulatedDevice
from tmaasync.torch._group import Facts, Group
from tmaasync.torch._tensors import padded_columns, torchs_type

Lists = list[list[Any]]


def run(
    group: Group,
    call: str,
    tensors: Sequence[Any],
    operation: Callable[..., Any],
    out_shapes: Sequence[tuple[int, int]] | None = None,
    out_dtype: Any = None,
) -> Any:
    """Run an operation of `tmaasync.ops` on the tensors of all ranks; return this rank's results.

    Args:
        group: The group; all its ranks call this.
        call: The call, as far as all ranks have it in common, for messages.
        tensors: This rank's, one of each list.
        operation: Takes lists of arrays, one per rank, and returns one or several lists of arrays.
        out_shapes: The results' shapes, where the operation has ``out``.
        out_dtype: Its type; by default the first tensor's.
    """
    ranks = group.exchange(Facts(call, [_array(one.detach()) for one in tensors]))
    options: dict[str, Any] = {}
    with emulate.devices(group.count) as world:
        enable_peer_access(range(group.count))
        lists = [
            [_placed(device, one.own[position]) for device, one in zip(world, ranks, strict=True)]
            for position in range(len(tensors))
        ]
        if out_shapes is not None:
            kind = element(out_dtype or tensors[0].dtype).dtype
            options["out"] = [
                _new(device, shape, kind) for device, shape in zip(world, out_shapes, strict=True)
            ]
        found = operation(*lists, **options)
        world.synchronize()
        if isinstance(found, tuple):
            return tuple(_tensor(arrays[group.rank]) for arrays in found)
        return _tensor(found[group.rank])


def as_matrix(tensor: Any, columns: int) -> Any:
    """Return a copy of the rows, as a matrix with columns of padding, so that TMA can move them."""
    rows = tensor.shape[0]
    matrix = tensor.new_zeros((rows, padded_columns(max(columns, 1), tensor.dtype)))
    matrix[:, :columns] = tensor.detach().reshape(rows, columns)
    return matrix


def without_padding(matrix: Any, shape: Sequence[int]) -> Any:
    """Return a contiguous copy of the rows of a matrix of `as_matrix`, in their own shape."""
    rows = matrix[:, : math.prod(shape[1:])].reshape(shape)
    return rows.clone(memory_format=torch.contiguous_format)


def _array(tensor: Any) -> Any:
    """Return a copy for the store, which takes no FP8 tensors; of a matrix, laid out as it is."""
    if tensor.ndim == 2 and tensor.shape[0] > 1 and tensor.stride(0) == 1:
        return _array(tensor.mT).T
    copy = tensor.clone(memory_format=torch.contiguous_format)  # empty ones may have strides of 0
    return copy.view(torch.uint8).numpy().view(element(tensor.dtype).dtype)


def _placed(device: EmulatedDevice, array: Any) -> Any:
    """Return a copy in the memory of a device; of a matrix, laid out as it is."""
    if array.ndim == 2 and array.shape[0] > 1 and array.strides[0] == array.itemsize:
        return _placed(device, array.T).T
    whole = _new(device, array.shape, array.dtype)
    whole[...] = array
    return whole


def _new(device: EmulatedDevice, shape: Sequence[int], kind: np.dtype[Any]) -> Any:
    """Return an array; the rows of a matrix are a multiple of 16 bytes apart."""
    if len(shape) != 2:
        return device.array(np.zeros(shape, kind))
    rows, columns = shape
    return device.array(np.zeros((rows, padded_columns(columns, kind)), kind))[:, :columns]


def _tensor(array: Any) -> Any:
    copy = np.array(array)
    return torch.from_numpy(copy.view(np.uint8)).view(torchs_type(copy.dtype))
