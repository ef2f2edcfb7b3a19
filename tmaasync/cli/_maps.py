"""Fields of a tensor map, one by one, and the rules that it breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any

from rich.table import Table

from tmaasync.cli._tables import table
from tmaasync.cli._wording import in_options
from tmaasync.errors import Violation
from tmaasync.tensormap import Im2colSpec, TensorMapSpec


def field_facts(spec: TensorMapSpec | Im2colSpec) -> dict[str, Any]:
    """Return every field, outermost dimension first, legal or not."""
    shown = (item for item in dataclasses.fields(spec) if item.name != "arch" or spec.has_wide_maps)
    fields = {item.name: _plain(getattr(spec, item.name)) for item in shown}
    return {"kind": "im2col" if spec.IS_IM2COL else "tiled", **fields}


def map_facts(spec: TensorMapSpec | Im2colSpec) -> dict[str, Any]:
    """Return every field of a legal map, and the bytes and alignment of its box."""
    return {
        **field_facts(spec),
        "box_bytes": spec.box_bytes,
        "smem_alignment": spec.smem_alignment,
    }


def _plain(value: object) -> object:
    return value.name if isinstance(value, Enum) else value


def shown(name: str, value: object) -> str:
    """Return a value as text for a table."""
    if name == "address":
        return f"{value:#x}"
    return (
        " x ".join(map(str, value)) if name == "shape" and isinstance(value, tuple) else str(value)
    )


def rule_facts(violations: Iterable[Violation]) -> list[dict[str, str]]:
    """Return broken rules for a JSON document."""
    return [
        {name: str(getattr(violation, name)) for name in ("argument", "value", "rule", "remedy")}
        for violation in violations
    ]


def rules_table(
    title: str, violations: Iterable[Violation], parameters: Collection[str] = ()
) -> Table:
    """Return a table of broken rules, each with its remedy in options of the command."""
    made = table(title, ("argument", "is", "rule", "remedy"))
    for facts in rule_facts(violations):
        made.add_row(*(in_options(text, parameters) for text in facts.values()))
    return made
