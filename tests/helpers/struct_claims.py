"""Claims about a C++ struct, from the host's dtype, for a compiler to check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def claims(struct: str, dtype: np.dtype[Any], size: int) -> Iterator[str]:
    """Yield the size of a struct, and the offset and the size of each field."""
    yield f"sizeof({struct}) == {size}"
    for name, (field, offset, *_) in (dtype.fields or {}).items():
        if name != "padding":
            yield f"__builtin_offsetof({struct}, {name}) == {offset}"
            yield f"sizeof({struct}::{name}) == {field.itemsize}"
