"""One function of ``tmaasync/ptx`` is one instruction; the emulator has the same functions."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from tmaasync import emulate
from tmaasync._source.paths import include_dir

PTX = include_dir() / "tmaasync" / "ptx"
OPERANDS = include_dir() / "tmaasync" / "operands"
EMULATED = Path(emulate.__file__).parent / "device" / "tmaasync"
HEADERS = sorted(path.name for path in PTX.glob("*.cuh"))

# Registers, predicates and defaults around an instruction that has an operand of no C++ type.
SCAFFOLDING = re.compile(
    r"\.reg \.pred p|setp\.ne\.b32 p, .*|selp\.b32 %0, 1, 0, p|mov\.b32 %\d, 0"
    r"|\.reg \.b128 r|mov\.b128 r, .*|\.reg \.b%\d a|cvt\.u%\d\.u64 a, .*"
    r"|\.reg \.b\d+ \w(, \w)*|mov\.b32 e, %\d+|mov\.b16 h, \{d, 0\}|mov\.b16 \{d, x\}, h"
    r"|cvt\.u32\.u16 %0, [dh]|cvt\.u16\.u32 [dh], %1"
)
# Functions that are not one asm statement with one instruction, and why.
EXCEPTIONS = {
    "atom_add_quotient": "and a division: emulate.verify needs no order of calls that return alike",
    "atom_inc_up_to": "and a minimum, as in atom_add_quotient",
    "even_cta_of_pair": "no instruction, but the rank in a shared address",
    "grid_barrier": "the address of the workspace is in two registers",
    "grid_barrier_arrive": "an atomicAdd() that emulate.verify takes for an arrival",
    "grid_barrier_try_wait": "a read that emulate.verify takes for a wait",
    "shared_address": "CUDA has the instruction, cvta.to.shared, as a built-in function",
    "wgmma_fence_operand": "no instruction, but a fence for the compiler, which assembly alone is",
}
# Functions that no emulated kernel can call, and why.
NOT_EMULATED = {
    "special_registers.cuh": "the emulator has no SMs and no clock",
    "exit.cuh": "only the hang watch ends a thread, and the emulator replaces the hang watch",
}

COMMENT = re.compile(r"//[^\n]*")
HEAD = re.compile(r"__device__ __forceinline__ [^;{}]*?\b(\w+)\((?:[^(){}]|\([^()]*\))*\)\s*(?=\{)")
STATEMENT = re.compile(r"\basm\b(?: volatile)?\s*\(((?:\"(?:[^\"\\]|\\.)*\"|\s)+)")
BRACE = re.compile(r"[{}]")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
BRANCH = re.compile(r"if constexpr \([^()]*\)\s*(?=\{)|else\s*(?=\{)")


def bare(text: str) -> str:
    return COMMENT.sub("", text)


def block_at(text: str, start: int) -> str:
    """The text in the braces that open at ``start``."""
    return text[start + 1 : closing_brace(without_literals(text), start)]


def without_literals(text: str) -> str:
    return LITERAL.sub(lambda found: "." * len(found[0]), text)


def closing_brace(text: str, start: int) -> int:
    """The place of the brace that closes the one at ``start``, in text without literals."""
    depth = 0
    for found in BRACE.finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    raise AssertionError("a brace stays open")


@functools.cache
def functions(text: str) -> list[tuple[str, str]]:
    """The names and bodies of the functions that a header defines."""
    plain = without_literals(text)
    return [
        (head[1], text[head.end() + 1 : closing_brace(plain, head.end())])
        for head in HEAD.finditer(text)
    ]


def instructions(statement: str) -> list[str]:
    """The instructions in the text of an asm statement, without the scaffolding around them."""
    text = "".join(LITERAL.findall(statement)).replace(r"\n\t", "\n").strip()
    inner = text[1:-1] if text.startswith("{\n") else text
    lines = (line.strip() for line in inner.split(";"))
    return [line for line in lines if line and not SCAFFOLDING.fullmatch(line)]


def branches(body: str) -> list[str]:
    """The alternatives of a body, of which the compiler takes one; the body itself without any."""
    return [block_at(body, found.end()) for found in BRANCH.finditer(body)] or [body]


def impurities(text: str) -> list[str]:
    """The functions of a header that are not one instruction in every alternative."""
    return [
        name
        for name, body in functions(bare(text))
        for branch in branches(body)
        if name not in EXCEPTIONS
        and [len(instructions(found[1])) for found in STATEMENT.finditer(branch)] != [1]
    ]


@pytest.mark.parametrize("header", HEADERS)
def test_a_function_is_one_instruction(header: str) -> None:
    assert impurities((PTX / header).read_text()) == []


@pytest.mark.parametrize(
    ("body", "is_pure"),
    [
        ('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', True),
        ('if constexpr (k == 1) { asm("a %0, {%1};"); } else { asm("b;"); }', True),
        (r'asm("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %1, 0;\n\t@p st.b32 [%0], 1;\n\t}");', True),
        (r'asm("mov.u64 %0, %%globaltimer;\n\tmov.u64 %1, %%clock64;");', False),
        ('asm("a;"); asm("b;");', False),
        ('if constexpr (k == 1) { asm("a;"); }  else { asm("b;"); asm("c;"); }', False),
        ("return other(1);", False),
    ],
)
def test_the_check_above_can_fail(body: str, is_pure: bool) -> None:
    text = f"__device__ __forceinline__ void f(int k, u32 (&a)[k - 2]) {{ {body} }}"

    assert (impurities(text) == []) is is_pure
    assert functions(text)


@pytest.mark.parametrize("header", HEADERS)
def test_every_function_is_looked_at(header: str) -> None:
    text = bare((PTX / header).read_text())

    assert len(functions(text)) == text.count("__device__") > 0


def test_an_exception_is_still_needed() -> None:
    names = [name for header in HEADERS for name, _ in functions(bare((PTX / header).read_text()))]

    assert EXCEPTIONS.keys() <= set(names)


@pytest.mark.parametrize("header", HEADERS)
def test_nothing_decides_at_run_time_or_by_macro(header: str) -> None:
    text = bare((PTX / header).read_text())
    words = set(re.findall(r"\b(?:if(?! constexpr)|for|while|switch|do|goto)\b", text))
    directives = set(re.findall(r"^[ \t]*#[ \t]*(\w+)", text, re.MULTILINE))

    assert words == set()
    assert directives <= {"pragma", "include"}


@pytest.mark.parametrize("header", HEADERS)
def test_an_instruction_includes_other_instructions_and_operands_alone(header: str) -> None:
    included = re.findall(r"#include <(.*)>", (PTX / header).read_text())

    assert {name.rpartition("/")[0] for name in included} <= {"tmaasync/ptx", "tmaasync/operands"}


@pytest.mark.parametrize("path", sorted(OPERANDS.glob("*.cuh")), ids=lambda path: path.name)
def test_operands_are_plain_types_that_include_operands_alone(path: Path) -> None:
    included = re.findall(r"#include <(.*)>", path.read_text())

    assert {name.rpartition("/")[0] for name in included} <= {"tmaasync/operands"}
    assert not re.search(r"\basm\b|__forceinline__", path.read_text())


# --- the emulator's -------------------------------------------------------------------------------


def test_the_emulator_has_the_same_headers() -> None:
    assert sorted(path.name for path in (EMULATED / "ptx").glob("*.cuh")) == HEADERS


@pytest.mark.parametrize("header", HEADERS)
def test_the_emulator_has_the_same_functions(header: str) -> None:
    real, emulated = (
        {name for name, _ in functions(bare((folder / header).read_text()))}
        for folder in (PTX, EMULATED / "ptx")
    )

    assert real - emulated == (real if header in NOT_EMULATED else set())


def test_the_emulator_replaces_headers_that_exist() -> None:
    replaced = {path.relative_to(EMULATED) for path in EMULATED.rglob("*.cuh")}
    real = include_dir() / "tmaasync"

    assert replaced <= {path.relative_to(real) for path in real.rglob("*.cuh")}
    assert {path.parts[0] for path in replaced} == {"ptx", "instrument"}
