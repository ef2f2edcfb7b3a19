"""How new plans of attention split keys, as it is decided."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tmaasync.ops.attention import plan, varlen_plan
from tmaasync.ops.attention.pieces import Pieces


def watch_pieces(monkeypatch: pytest.MonkeyPatch) -> list[Pieces]:
    """What clusters work on, of padded arrays."""
    return _watch(monkeypatch, plan, "pieces_of")


def watch_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In how many parts the keys of a tile are worked on, of packed sequences."""
    return _watch(monkeypatch, varlen_plan, "parts_of_packed")


def _watch(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    decide, found = getattr(module, name), []

    def note(*given: Any) -> Any:
        found.append(decide(*given))
        return found[-1]

    monkeypatch.setattr(module, name, note)
    return found
