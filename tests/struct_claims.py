"""What a compiler can be asked about a struct of which the host has the dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def claims(struct: str, dtype: np.dtype[Any], size: int) -> Iterator[str]:
    """What the compiler is asked: the size of a struct, and where each of its fields lies."""
    yield f"sizeof({struct}) == {size}"
    for name, (field, offset, *_) in (dtype.fields or {}).items():
        if name != "padding":
            yield f"__builtin_offsetof({struct}, {name}) == {offset}"
            yield f"sizeof({struct}::{name}) == {field.itemsize}"
