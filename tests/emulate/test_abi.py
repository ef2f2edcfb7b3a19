"""The declarations that Python shares with the runtime: a compiler says what each is in C++."""

from __future__ import annotations

import ctypes
import enum
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tmaasync.emulate import abi
from tmaasync.emulate.chips import CHIPS
from tmaasync.emulate.include_path import DEVICE_DIR, EMULATOR_DIR, OWN_FOLDERS, toolkit_folders
from tmaasync.emulate.report.sentences import SENTENCES
from tmaasync.emulate.rules import RULES
from tmaasync.tensormap.encoding import TENSOR_MAP_BYTES
from tmaasync.trace import events
from tmaasync.trace.roles import ROLE_DTYPE

RUNTIME = EMULATOR_DIR / "runtime"
HEADERS = ("abi.hpp", "tma/tensor_map.hpp", "tmaasync_emulate/calls.hpp")
COMPARED = (RUNTIME / "abi.hpp", DEVICE_DIR / "tmaasync_emulate" / "fault.hpp")
# Python has the sentences of the faults alone, in the runtime's order.
FaultKind = enum.IntEnum("FaultKind", [*SENTENCES], start=0)  # type: ignore[misc]
_RULES = [name.replace("-", "_").upper() for name in abi.RULE_NAMES]
Rule = enum.IntEnum("Rule", _RULES, start=0)  # type: ignore[misc]
SHARED = vars(abi)
IN_TRACES: dict[str, np.dtype[Any]] = {"Event": events.EVENT_DTYPE, "RoleRecord": ROLE_DTYPE}
STRUCTS = {
    **IN_TRACES,
    **{
        name: one
        for name, one in SHARED.items()
        if isinstance(one, type) and issubclass(one, ctypes.Structure)
    },
}
ENUMS: dict[str, type[enum.IntEnum]] = {
    "EventKind": events.EventKind,
    "FaultKind": FaultKind,
    "Rule": Rule,
    **{
        name: one
        for name, one in SHARED.items()
        if isinstance(one, type) and issubclass(one, enum.IntEnum)
    },
}
CONSTANTS = {
    "kStaticAlignment": abi.STATIC_ALIGNMENT,
    "kAddressBits": abi.ADDRESS_BITS,
    "kRoleBytes": abi._ROLE_BYTES,
    "kRules": len(abi.RULE_NAMES),
    "kNothing": events.NOTHING,
    "kNobody": events.NOBODY,
    "kNamed": abi.NAMED,
    "kMostPairs": abi.MOST_PAIRS,
    "kMaxDynamicBytes": max(chip.device.shared_bytes for chip in CHIPS.values()),
    "kMaxStaticBytes": max(chip.static_shared_bytes for chip in CHIPS.values()),
    "kMapBytes": TENSOR_MAP_BYTES,
}


class Field(NamedTuple):
    """A struct's field, or the struct itself: where it lies, and whether it is a float."""

    name: str
    offset: int
    size: int
    is_float: bool


def fields_of(struct: Any) -> list[Field]:
    """The fields of a ctypes struct or of a dtype, and last the whole."""
    if isinstance(struct, np.dtype):
        named = [
            Field(name, offset, field.itemsize, field.kind == "f")
            for name, (field, offset, *_) in (struct.fields or {}).items()
        ]
        return [*named, Field("", 0, struct.itemsize, False)]
    named = [
        Field(name, place.offset, place.size, kind in (ctypes.c_float, ctypes.c_double))
        for name, kind in struct._fields_
        for place in [getattr(struct, name)]
    ]
    return [*named, Field("", 0, ctypes.sizeof(struct), False)]


def enumerator(member: enum.IntEnum) -> str:
    """The name in C++: kTmaLoad."""
    if isinstance(member, FaultKind):
        return f"k{member.name}"
    return "k" + "".join(word.capitalize() for word in member.name.split("_"))


def printing(struct: str, fields: list[Field]) -> Iterator[str]:
    for name, *_ in fields:
        place = f"std::size_t{{0}}, sizeof({struct}), false"
        if name:
            type_ = f"decltype({struct}::{name})"
            place = (
                f"offsetof({struct}, {name}), sizeof({type_}), std::is_floating_point_v<{type_}>"
            )
        yield f'    show("{struct}.{name}", {place});'


def probe() -> str:
    """A program that prints everything of `STRUCTS`, `ENUMS` and `CONSTANTS`.

    It compiles only if no struct has another field, and no enum another enumerator.
    """
    shown: list[str] = []
    checks: list[str] = []
    for name, struct in STRUCTS.items():
        fields = fields_of(struct)
        shown += printing(name, fields)
        bound = ", ".join(f"field_{index}" for index in range(len(fields) - 1))
        checks.append(f"void all_fields({name}& of) {{ [[maybe_unused]] auto& [{bound}] = of; }}")
    for name, kinds in ENUMS.items():
        cases = [f"{name}::{enumerator(member)}" for member in kinds]
        shown += [
            f'    show("{case}", std::size_t(int({case})), sizeof({name}), false);'
            for case in cases
        ]
        of_all = " ".join(f"case {case}: return;" for case in cases)
        checks.append(f"void all_kinds({name} of) {{ switch (of) {{ {of_all} }} }}")
    shown += [f'    show("{name}", std::size_t({name}), 0, false);' for name in CONSTANTS]
    includes = "".join(f"#include <{header}>\n" for header in HEADERS)
    return "\n".join(
        [
            "#include <cstdio>",
            "#include <type_traits>",
            f"{includes}using namespace tmaasync_emulate;",
            *checks,
            "void show(const char* name, std::size_t at, std::size_t size, bool is_float) {",
            '    std::printf("%s %zu %zu %d\\n", name, at, size, is_float);',
            "}",
            "int main() {",
            *shown,
            "}",
        ]
    )


Printed = dict[str, tuple[int, int, bool]]


def built(compiler: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = folder / "probe.cpp"
    source.write_text(text, encoding="utf-8")
    folders = (f"-I{one}" for one in (RUNTIME, *OWN_FOLDERS, *toolkit_folders()))
    options = ("-std=c++20", "-Werror=switch", *folders)
    command = [compiler, *options, str(source), "-o", str(folder / "probe")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def printed(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Printed:
    folder = tmp_path_factory.mktemp("abi")
    compiled = built(compiler, probe(), folder)
    assert compiled.returncode == 0, compiled.stderr
    run = subprocess.run([folder / "probe"], capture_output=True, text=True, check=True)
    rows = map(str.split, run.stdout.splitlines())
    return {name: (int(at), int(size), kind == "1") for name, at, size, kind in rows}


def differences(printed: Printed, name: str, struct: Any) -> list[str]:
    return [
        f"{name}.{field.name}"
        for field in fields_of(struct)
        if printed.get(f"{name}.{field.name}") != field[1:]
    ]


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_lies_where_the_runtime_has_it(printed: Printed, name: str) -> None:
    assert differences(printed, name, STRUCTS[name]) == []


@pytest.mark.parametrize("name", ENUMS)
def test_every_enumerator_has_its_value(printed: Printed, name: str) -> None:
    known = {member: printed[f"{name}::{enumerator(member)}"][0] for member in ENUMS[name]}

    assert known == {member: member.value for member in ENUMS[name]}


def test_every_rule_has_a_text() -> None:
    assert {*abi.RULE_NAMES} == {"none", *RULES}


def test_every_constant_has_its_value(printed: Printed) -> None:
    assert {name: printed[name][0] for name in CONSTANTS} == CONSTANTS


@pytest.mark.parametrize("path", COMPARED, ids=lambda path: path.name)
def test_every_declaration_of_the_header_is_compared(path: Path) -> None:
    header = path.read_text(encoding="utf-8")
    declared = re.findall(
        r"^(?:struct|enum class|constexpr \S+) (\w+)(?! ?;)\b", header, re.MULTILINE
    )

    assert {*declared} <= {*STRUCTS, *ENUMS, *CONSTANTS}
