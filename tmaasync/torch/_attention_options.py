"""Arguments of the attention operators: mask options, and copies for TMA."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync._arrays import ArrayView
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync.ops._allocation import empty
from tmaasync.ops._flash.operands import reach_violations

AXES, PACKED_AXES = "[batch, positions, heads, head_dim]", "[rows, heads, head_dim]"
PAGE_AXES = "[pages, page_size, heads, head_dim]"

MASK = (
    'bool causal=False, str causal_alignment="bottom_right", float? scale=None, '
    "int? window_left=None, int? window_right=None, float? softcap=None"
)
"""The schema of the mask, keyword-only."""


def mask_options(
    *,
    causal: bool = False,
    causal_alignment: str = "bottom_right",
    scale: float | None = None,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float | None = None,
) -> dict[str, Any]:
    """Return the mask arguments for tmaasync.ops."""
    window = None if window_left is window_right is None else (window_left, window_right)
    aligned = causal and (True if causal_alignment == "bottom_right" else causal_alignment)
    return {"causal": aligned, "scale": scale, "window": window, "softcap": softcap}


def reachable(tensor: Any) -> Any:
    """Return the tensor, or a copy if its address or strides are not multiples of 16 bytes."""
    if not tensor.dim():
        return tensor  # the operation rejects it
    step = TMA_ALIGNMENT // tensor.element_size()
    is_aligned = tensor.data_ptr() % TMA_ALIGNMENT == 0
    if is_aligned and tensor.shape[-1] % step == 0 and tensor.is_contiguous():
        return tensor  # fast path: a third of the cost of checking each stride
    *outer, last = tensor.stride()
    is_reachable = is_aligned and last == 1
    for size, stride in zip(tensor.shape, outer, strict=False):
        is_reachable = is_reachable and (size == 1 or (stride > 0 and stride % step == 0))
    return tensor if is_reachable else tensor.clone(memory_format=torch.contiguous_format)


def reached(view: ArrayView) -> ArrayView:
    """Return a stand-in for the result of `reachable`."""
    is_reached = not view.ndim or not any(reach_violations("", view))
    return view if is_reached else dense_copy(view)


def dense_copy(view: ArrayView) -> ArrayView:
    copied: ArrayView = empty(view, view.shape, view.element)
    return copied._replace(address=copied.address + view.address // TMA_ALIGNMENT * TMA_ALIGNMENT)
