"""Stand-in views of tensors without memory, for argument checks in fake kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmaasync._arrays import STAND_IN, ArrayView
from tmaasync._elements import element
from tmaasync._torch_internals import known_size
from tmaasync.ops._flash.sequences import Lengths

_STORAGE_BYTES = 1 << 40
"""More than any storage has, so that stand-ins of two storages do not overlap."""


def stand_ins(**tensors: Any) -> dict[str, Any] | None:
    """Return views of the tensors by name; None for an argument that is None.

    A symbolic size is replaced by the size that torch traces with, without a guard: the operation
    checks other sizes in later calls of the compiled code. Meta tensors count as host memory.
    Addresses are made up, and equal for all views of a storage.

    Returns:
        None if a size depends on data: only the operation can check it.

    Raises:
        ArrayTypeError: TMA cannot move the elements; the message has the argument's name.
    """
    views: dict[str, Any] = {}
    storages: dict[int, int] = {}
    for name, tensor in tensors.items():
        if tensor is None:
            views[name] = None
            continue
        kind = element(tensor.dtype, argument=f"{name}.dtype")
        rank = tensor.ndim
        numbers = [
            known
            for size in (*tensor.shape, *tensor.stride(), tensor.storage_offset())
            if (known := known_size(size)) is not None
        ]
        if len(numbers) <= 2 * rank:
            return None
        storage = storages.setdefault(tensor.untyped_storage()._cdata, len(storages) + 1)
        views[name] = ArrayView(
            storage * _STORAGE_BYTES + numbers[-1] * kind.itemsize,
            tuple(numbers[:rank]),
            tuple(step * kind.itemsize for step in numbers[rank:-1]),
            kind,
            tensor.device.index if tensor.device.type == "cuda" else None,
            False,
            "torch",
            STAND_IN,
        )
    return views


def stand_in_lengths(cu_seqlens_q: Any, cu_seqlens_k: Any, longest: Sequence[Any]) -> Lengths:
    """Return the sequences of packed attention; a data-dependent maximum length becomes 0."""
    max_q, max_k = (None if size is None else known_size(size) or 0 for size in longest)
    return Lengths(cu_seqlens_q, cu_seqlens_k, max_q, max_k, check=False)
