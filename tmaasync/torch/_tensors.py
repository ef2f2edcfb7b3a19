"""Checks that arguments are tensors, before any other code uses them."""

from __future__ import annotations

from typing import Any

import torch

from tmaasync._elements import element
from tmaasync.errors import ArrayTypeError, Violation
from tmaasync.ops._layouts import padded_row_bytes


def require_tensors(**given: object) -> None:
    """Reject lists, NumPy and CuPy arrays, numbers and None, in a single error."""
    for value in given.values():
        if not _is_tensor(value):
            raise _not_tensors(given)


def require_tensors_or_none(**given: object) -> None:
    """Reject the same values except None, for optional arguments."""
    require_tensors(**{name: value for name, value in given.items() if value is not None})


def torchs_type(dtype: object) -> Any:
    """Return torch's dtype for a NumPy dtype, or for text such as ``"bfloat16"``."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    return getattr(torch, element(dtype).name)


def padded_columns(columns: int, dtype: Any) -> int:
    """Return the columns of rows that TMA can reach: these, and padding."""
    held = element(dtype)
    return padded_row_bytes(columns, held) // held.itemsize


def _is_tensor(value: object) -> bool:
    """Return True for a tensor or a proxy, as in ``torch.fx.symbolic_trace``."""
    return isinstance(value, (torch.Tensor, torch.fx.Proxy))


def _not_tensors(given: dict[str, object]) -> ArrayTypeError:
    rule = "the functions of tmaasync.torch take torch tensors"
    return ArrayTypeError.of(
        Violation(
            name,
            None if value is None else f"a {type(value).__qualname__}",
            rule,
            "Pass a tensor" if value is None else f"Pass torch.as_tensor({name})",
        )
        for name, value in given.items()
        if not _is_tensor(value)
    )
