"""``decode``: the fields of the 128 bytes of a tensor map."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tmaasync.cli._maps import map_facts, rule_facts, rules_table, shown
from tmaasync.cli._tables import AsJson, print_json, table
from tmaasync.errors import ArgumentError
from tmaasync.tensormap import TENSOR_MAP_BYTES, TensorMapSpec

_MOST_BYTES_READ = 1 << 16
_NUMBERS = {16: 8, 32: 4, TENSOR_MAP_BYTES: 1}
"""Bytes of a number, by the count of numbers: words of CUtensorMap, halves of them, bytes."""


def decode(
    data: Annotated[
        str,
        typer.Argument(
            metavar="HEX|FILE",
            help="256 hexadecimal digits, or 16, 32 or 128 numbers; or a file of these or of the "
            "128 bytes.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Decode the 128 bytes of a tensor map, tiled or im2col."""
    explanation = TensorMapSpec.decode(_bytes_of(data)).explain()
    facts = map_facts(explanation.spec)
    if as_json:
        rules = {"violations": explanation.violations, "hazards": explanation.hazards}
        print_json({**facts, **{name: rule_facts(found) for name, found in rules.items()}})
        return
    fields = table("A tensor map, outermost first", ("field", "value"))
    for name, value in facts.items():
        fields.add_row(name, shown(name, value))
    console = Console(highlight=False)
    console.print(fields)
    if explanation.violations:
        console.print(rules_table("Rules that it breaks", explanation.violations))
    if explanation.hazards:
        console.print(rules_table("Hazards", explanation.hazards))


def _bytes_of(given: str) -> bytes:
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MOST_BYTES_READ)
    except (OSError, ValueError) as error:
        return _require_hex(given, getattr(error, "strerror", str(error)))
    if len(content) == TENSOR_MAP_BYTES:
        return content
    return _from_hex(content.decode("latin-1")) or content


def _require_hex(given: str, why_no_file: str) -> bytes:
    found = _from_hex(given)
    if found is None:
        shortened = given if len(given) <= 40 else f"{given[:40]}..."
        raise ArgumentError.broken(
            "data",
            f"{shortened!r}",
            f"it must be hexadecimal digits, or a file that can be read ({why_no_file})",
            f"Pass the {TENSOR_MAP_BYTES} bytes of a CUtensorMap",
        )
    return found


def _from_hex(text: str) -> bytes | None:
    """Return the bytes of digits in memory order, or of little-endian numbers; None for neither."""
    numbers = re.findall(r"[^\s,;{}]+", text)
    size = _NUMBERS.get(len(numbers))
    try:
        if size is None:
            return bytes.fromhex("".join(number.removeprefix("0x") for number in numbers))
        return b"".join(int(number, 16).to_bytes(size, "little") for number in numbers)
    except (ValueError, OverflowError):
        return None
