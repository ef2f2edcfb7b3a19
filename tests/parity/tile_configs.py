"""The tile configs that operations choose, as they are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tmaasync.ops._operation import tile_configs


@contextmanager
def noted() -> Iterator[list[Any]]:
    """Give the tile configs of operations that are made inside, which use them as they are."""
    found: list[Any] = []

    def note(config: Any) -> Any:
        found.append(config)
        return config

    with tile_configs(note):
        yield found
