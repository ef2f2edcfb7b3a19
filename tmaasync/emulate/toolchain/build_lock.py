"""Cache files that are made once, even if several processes and threads request them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tmaasync._cache_folder import load_facts, locked, store_with_facts

__all__ = ["made_once"]


def made_once(path: Path, make: Callable[[], bytes], facts: Mapping[str, Any]) -> Path:
    """Return the path of a complete cache file; one caller makes it while the others wait.

    ``make`` may add to the facts.
    """
    if load_facts(path) is None:
        with locked(path.with_suffix(".lock")):
            if load_facts(path) is None:
                data = make()
                store_with_facts(path, data, facts)
    return path
