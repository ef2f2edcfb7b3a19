"""Arguments that must be tensors: others are refused before anything else looks at them."""

from __future__ import annotations

import torch

from tmaasync.errors import ArrayTypeError, Violation

__all__ = ["require_tensors", "require_tensors_or_none"]


def require_tensors(**given: object) -> None:
    """Refuse lists, NumPy and CuPy arrays, numbers and None, all of them in one error."""
    for value in given.values():
        if not isinstance(value, torch.Tensor):
            raise _not_tensors(given)


def require_tensors_or_none(**given: object) -> None:
    """Refuse the same, but None, for arguments that may be left out."""
    require_tensors(**{name: value for name, value in given.items() if value is not None})


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
        if not isinstance(value, torch.Tensor)
    )
