"""Write the table of Blackwell's instructions in docs/blackwell.md from the emulator's own tables.

It stands between ``<!-- instructions -->`` and ``<!-- end instructions -->``. A form is an opcode
with its modifiers but for cache hints, and the list of its operands. A test compares the document
with this.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tmaasync.emulate.chips.instructions import FAMILIES, TCGEN05, WGMMA, Family
from tmaasync.emulate.frontend.ptx.refused import REFUSED
from tmaasync.emulate.frontend.ptx.row import TYPES, Row
from tmaasync.emulate.frontend.ptx.table import rows_by_family

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "blackwell.md"
_MARKED = re.compile(r"(<!-- instructions -->\n).*?(<!-- end instructions -->)", re.DOTALL)
_HINT = re.compile(r"\{\.(?:\(ca\||L1::|L2::|mmio)[^{}]*\}|\$HINT")
_TOKEN = re.compile(r"\$[A-Z]+|<\w+:|[{}()|>?]|[^${}()|<>?]+")

TESTED_BY = {
    "tcgen05.mma": "tcgen05/test_tcgen05_arithmetic.py, test_memory_forms.py",
    "tcgen05.mma of kind::i8": "tcgen05/test_memory_forms.py",
    "tcgen05.ld": "tcgen05/test_transfers.py",
    "tcgen05.st": "tcgen05/test_transfers.py",
    "tcgen05.ld.red": "tcgen05/test_transfers.py",
    "tcgen05.cp": "tcgen05/test_copies.py",
    "tcgen05.shift": "tcgen05/test_copies.py",
    "tcgen05.alloc": "tcgen05/test_tensor_memory_rules.py, test_sm_columns.py",
    "tcgen05.dealloc": "tcgen05/test_tensor_memory_defects.py",
    "tcgen05.relinquish_alloc_permit": "tcgen05/test_tensor_memory_defects.py, test_sm_columns.py",
    "tcgen05.wait": "tcgen05/test_gemm.py, test_pair_gemm.py",
    "tcgen05.fence": "tcgen05/test_gemm.py, test_pair_gemm.py",
    "tcgen05.commit": "tcgen05/test_gemm.py, test_pair_gemm.py",
    "mma.sync and mma.sp with a kind": "tcgen05/test_warp_kinds.py",
    "clusterlaunchcontrol": "test_cluster_launch_control.py",
    "wide im2col into .shared::cta": "test_blackwell_copies.py",
    "TMA of CTA pairs, scatter4, wide im2col": "test_blackwell_copies.py, test_blackwell_tiles.py",
    "gather4 into .shared::cluster, and its prefetch": "test_blackwell_copies.py",
    "gather4 into .shared::cta": "test_blackwell_copies.py",
    "bulk stores with a byte mask": "test_blackwell_copies.py",
    "st.bulk": "test_blackwell_copies.py",
    "tensormap.replace of the swizzle's atom": "test_blackwell_tiles.py",
    "add, sub, mul and fma of f32x2": "test_blackwell_instructions.py",
    "loads and stores of 256 bits": "test_blackwell_instructions.py",
    "add, sub and fma of a half to f32": "test_blackwell_instructions.py",
    "redux.sync of f32": "test_blackwell_instructions.py",
    "min and max of three floats": "test_blackwell_instructions.py",
    "cvt.rs": "test_small_floats.py",
    "cvt of e2m1, e2m3, e3m2 and ue8m0": "test_small_floats.py",
    "ldmatrix and stmatrix of bytes": "test_byte_matrices.py",
}
"""The tests of each row, in tests/emulate."""


def spellings(pattern: str) -> Iterator[str]:
    """Yield every opcode of a pattern of the table (tmaasync.emulate.frontend.ptx.row).

    >>> sorted(spellings("a{.b}.<kind:c|d>"))
    ['a.b.c', 'a.b.d', 'a.c', 'a.d']
    """
    tokens = _TOKEN.findall(_with_types(pattern))
    choices, rest = _alternatives(tokens)
    if rest:
        raise ValueError(f"{pattern}: {rest[0]!r} closes nothing")
    yield from choices


def _with_types(pattern: str) -> str:
    def text(found: re.Match[str]) -> str:
        return _with_types(TYPES[found[1]])

    return re.sub(r"\$([A-Z]+)", text, pattern)


def _alternatives(tokens: list[str]) -> tuple[list[str], list[str]]:
    """Return the spellings up to the end of a group, and the tokens after it."""
    found: list[str] = []
    parts: list[list[str]] = []
    while tokens:
        token, tokens = tokens[0], tokens[1:]
        if token in "})>":
            return found + _joined(parts), tokens
        if token == "|":
            found, parts = found + _joined(parts), []
        elif token == "?":
            parts[-1] = ["", *parts[-1]]
        elif token in "{(" or token.startswith("<"):
            inner, tokens = _alternatives(tokens)
            parts.append(["", *inner] if token == "{" else inner)
        else:
            parts.append([token])
    return found + _joined(parts), tokens


def _joined(parts: list[list[str]]) -> list[str]:
    return ["".join(choice) for choice in itertools.product(*parts)]


def _rows() -> Iterator[Row]:
    yield from dict.fromkeys(row for rows in rows_by_family().values() for row in rows)


@functools.cache
def _opcodes() -> list[tuple[Family | None, str, int, Row]]:
    """Return every opcode: its family, itself, the number of its operands and its row."""
    found: list[tuple[Family | None, str, int, Row]] = []
    for row in _rows():
        if "[" in row.pattern:
            continue
        needed = sum(not spec.is_optional for spec in row.specs)
        for opcode in spellings(_HINT.sub("", row.pattern)):
            family = next((one for one in FAMILIES if one.has(opcode, needed)), None)
            found.append((family, opcode, needed, row))
    return found


def _name_in_document(family: Family, opcode: str) -> str:
    if family is not TCGEN05:
        return family.name
    instruction = opcode.split(".")[1].partition("::")[0]
    return f"tcgen05.{instruction}"


def forms() -> Counter[tuple[Family, str]]:
    """Return the number of forms of each family, of tcgen05 by instruction."""
    distinct = dict.fromkeys(
        (family, opcode, row.operands) for family, opcode, _, row in _opcodes()
    )
    return Counter(
        (family, _name_in_document(family, opcode))
        for family, opcode, _ in distinct
        if family not in (None, WGMMA)
    )


def example(family: Family) -> tuple[str, int]:
    """Return an opcode of a family, and the number of its operands."""
    for of, opcode, needed, _ in _opcodes():
        if of is family:
            return opcode, needed
    raise ValueError(f"no row of the table has {family.name}")


def table() -> str:
    """Return the table."""
    counts = forms()
    lines = ["| instructions | chips | forms | elsewhere refused: use |", "|---|---|---|---|"]
    for family in FAMILIES:
        own = {name: count for (of, name), count in counts.items() if of is family}
        if own:
            names = (f"`{name}`" if name.startswith("tcgen05") else name for name in own)
            chips = ", ".join(arch.removeprefix("sm_") for arch in family.archs)
            cells = (", ".join(names), chips, f"{sum(own.values()):,}", family.instead)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# Forms that the table has, and that are refused when they run.
_AT_RUN_TIME = (
    (
        "`tcgen05.mma.ws` with a mask of zero columns",
        "is described in contradiction to its examples",
        "zeros in B",
    ),
    ("a sparsity selector other than 0", "is described nowhere", "the metadata's own address"),
    (
        "`tensormap.replace` of swizzle mode 4, 96 bytes",
        "is not in CUDA's encoder",
        "32, 64 or 128",
    ),
)


def refused_table() -> str:
    """Return the table of the forms that every chip refuses."""
    lines = ["| refused on every chip | because it | remedy |", "|---|---|---|"]
    lines += [f"| `{one.example}` | {one.reason} | {one.remedy} |" for one in REFUSED]
    lines += [f"| {what} | {why} | use {use} |" for what, why, use in _AT_RUN_TIME]
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """Return a document with the table in its place."""
    return _MARKED.sub(lambda found: f"{found[1]}{table()}\n{refused_table()}{found[2]}", text)


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
    sys.stdout.write(table())
