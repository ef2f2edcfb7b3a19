"""Kinds of arguments, which are checked before anything is computed from them.

torch.compile traces these functions. Torch 2.7's takes ``isinstance`` with a tuple of types, and
not with a union.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Container, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, TypeGuard

import numpy as np

from tmaasync.errors import ArgumentError, Violation

_SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """Return a value as messages print it: its text, or its type where the text is long."""
    try:
        text = repr(value)
    except Exception:  # an int of more than 4300 digits, or a class of the caller's
        return f"a {type(value).__name__}"
    is_short = len(text) <= _SHOWN_CHARACTERS and "\n" not in text
    return text if is_short and not isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def is_integer(value: object) -> TypeGuard[int]:
    """True for an integer of any library; False for a bool, a mode and an array."""
    if type(value) is int:
        return True
    # None is named since torch.compile of torch 2.11 does not catch the TypeError below.
    if value is None or isinstance(value, (bool, np.bool_, np.ndarray, Enum)):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def as_int(value: Any) -> Any:
    """Return an integer of any library as an int, and any other value as it is, for a check.

    NumPy's integers overflow at their own width.
    """
    return operator.index(value) if is_integer(value) else value


def is_number(value: object) -> TypeGuard[float]:
    """True for an integer or a floating-point number of any library; False for a bool."""
    if isinstance(value, np.generic):
        kind = value.dtype.kind
        return kind == "f" or (kind != "b" and np.can_cast(value.dtype, np.float64))
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_number_in(value: object, least: float, most: float) -> TypeGuard[float]:
    """True for a number in a range; False for NaN."""
    if isinstance(value, np.generic):  # NumPy rounds the limits to the value's type
        return is_number(value) and least <= float(value) <= most
    return is_number(value) and least <= value <= most


def is_one_of(value: object, names: Container[str]) -> bool:
    """True for one of these names; a value without a hash is none."""
    return isinstance(value, str) and value in names


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """True for a tuple, list or range; False for text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def is_flag(value: object) -> bool:
    """True for a bool, NumPy's included."""
    return isinstance(value, (bool, np.bool_))


def not_integers(**arguments: object) -> list[Violation]:
    """Return a violation for each argument that is no integer."""
    return [
        Violation(name, shown(value), "it must be an integer", "Pass an int")
        for name, value in arguments.items()
        if not is_integer(value)
    ]


def not_flags(**arguments: object) -> list[Violation]:
    """Return a violation for each argument that is no bool."""
    return [
        Violation(name, shown(value), "it must be a bool", "Pass True or False")
        for name, value in arguments.items()
        if not is_flag(value)
    ]


def not_sequences_of_integers(**arguments: object) -> Iterator[Violation]:
    """Yield a violation for each argument that is no tuple or list of integers."""
    for name, values in arguments.items():
        if isinstance(values, (str, bytes, dict, set)) or not _is_sized(values):
            rule = "it must be integers, one for each dimension"
            yield Violation(name, shown(values), rule, "Pass a tuple, outermost first")
            continue
        for position, value in enumerate(values):
            yield from not_integers(**{f"{name}[{position}]": value})


def _is_sized(values: Any) -> TypeGuard[Iterable[object]]:
    return hasattr(values, "__len__") and hasattr(values, "__getitem__")


def check_integers(**arguments: object) -> None:
    """Refuse arguments that are no integers.

    Raises:
        ArgumentError: Each is named, with its value.
    """
    ArgumentError.raise_for(not_integers(**arguments))


def check_flags(**arguments: object) -> None:
    """Refuse arguments that are no bools.

    Raises:
        ArgumentError: Each is named, with its value.
    """
    ArgumentError.raise_for(not_flags(**arguments))
