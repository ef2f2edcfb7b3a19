"""``torch.autocast``: operand types, and casts of operands."""

from __future__ import annotations

from typing import Any

import torch

_CAST = (torch.float32, torch.bfloat16, torch.float16)


def computed_type(tensor: Any) -> Any:
    """Return the type of an operand after autocast; if autocast is off, its own type."""
    kind = tensor.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind) and tensor.dtype in _CAST:
        return torch.get_autocast_dtype(kind)
    return tensor.dtype


def cast_operands(operands: tuple[Any, ...]) -> list[Any]:
    """Return the operands in the types of autocast; gradients flow through the casts."""
    return [one.to(computed_type(one)) for one in operands]
