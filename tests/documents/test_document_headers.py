from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "document_headers.py"))
HEADERS = sorted((ROOT / "kernels" / "include").rglob("*.cuh"))

SAMPLE = """
#pragma once
#include <other.cuh>

// The header's purpose.
// clang-format off
#define SKIPPED(X) { X; \\
    int never_shown();
// clang-format on

namespace sample {

// --- types ---------------------------------------------------------------------------------------

// Two *kinds* of `it`.
enum class Kind : int { kOne = 1, kTwo };

// Has a_name.
template <typename T, int kCount = (4 > 2 ? 4 : 2)>
struct alignas(8) Thing : Base<T> {
    using Element = T;
    using Base<T>::hidden_name;
    static constexpr char kLetter = '{';  // a brace
    static constexpr long kLimit = long{1} << 40;
    static_assert(kCount > 0, "not shown");

    // Starts it.
    __device__ constexpr Thing(T first) : values{first}, more{} { body(); }

    __device__ __forceinline__ const T& operator[](int index) const { return values[index]; }

private:
    __device__ void secret() const;
};

template <>
struct Thing<void> {};

extern "C" {
__device__ int not_shown;
}

#if defined(DEBUG)
constexpr bool kDebug = true;
__device__ bool is_debug(int level) { return level > 0; }
#else
#if defined(OTHER)
constexpr bool kDebug = false;
#endif
__device__ constexpr bool is_debug(int) { return false; }
#endif

// First line,
// and second.
template <int kN>
__device__ __forceinline__ void run(
    const Thing<int>& thing, int (&sums)[kN], int times = twice(2)
) {
    if (times > 0) { const char* text = "}"; use(text); }
}

}  // namespace sample
"""


def _flat(declared: Any) -> list[tuple[str, str, str]]:
    found = [(declared.kind, declared.text, declared.comment)]
    return found + [entry for member in declared.members for entry in _flat(member)]


def test_a_header_is_read_declaration_by_declaration() -> None:
    opening, namespace = TOOL["declarations"](SAMPLE)
    sums = "const Thing<int>& thing, int (&sums)[kN], int times = twice(2)"

    assert (opening.kind, opening.text) == ("text", "The header's purpose.")
    assert _flat(namespace) == [
        ("namespace", "sample", ""),
        ("section", "types", ""),
        ("enum class", "Kind : int", "Two *kinds* of `it`."),
        ("enumerator", "kOne = 1", ""),
        ("enumerator", "kTwo", ""),
        (
            "struct",
            "template <typename T, int kCount = (4 > 2 ? 4 : 2)> Thing : Base<T>",
            "Has a_name.",
        ),
        ("type", "Element = T", ""),
        ("member", "static constexpr char kLetter = '{'", "a brace"),
        ("member", "static constexpr long kLimit = long{1} << 40", ""),
        ("function", "constexpr Thing(T first)", "Starts it."),
        ("function", "const T& operator[](int index) const", ""),
        ("member", "constexpr bool kDebug = true", ""),
        ("function", "bool is_debug(int level)", ""),
        ("function", f"template <int kN> void run({sums})", "First line,\nand second."),
    ]


def test_a_class_that_is_only_announced_is_not_shown() -> None:
    text = "template <typename Ring> class Producer;\nclass Producer { public: int ready(); };"

    (declared,) = TOOL["declarations"](text)

    assert [member.text for member in declared.members] == ["int ready()"]


def test_a_deduction_guide_is_not_shown() -> None:
    (declared,) = TOOL["declarations"](
        "template <typename T> struct Box { T value; };\ntemplate <typename T> Box(T) -> Box<T>;\n"
    )

    assert declared.kind == "struct"


def test_comments_become_text_without_markup() -> None:
    text = TOOL["header_text"](TOOL["INCLUDE"] / "tmaasync" / "barrier.cuh")

    assert text.startswith("``<tmaasync/barrier.cuh>``\n--------------------------\n")
    assert "   .. cpp:function:: void init(u32 count = 1)\n" in text
    assert r"by one thread; then fence\_barrier\_init() and a block (or cluster) barrier" in text
    assert "      Arrive ``count`` times.\n" in text


def test_a_name_of_many_overloads_is_shown_once() -> None:
    text = TOOL["header_text"](TOOL["INCLUDE"] / "tmaasync" / "ptx" / "wgmma_mma.cuh")

    assert text.count("wgmma_mma_async_ss(") == 1
    assert "overloads of this name." in text


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in HEADERS])
def test_every_public_function_and_struct_of_a_header_is_shown(path: Path) -> None:
    source = re.sub(r"//.*|\balignas\b(?:\(\w+\))?", "", path.read_text())
    # Private members up to the end of their struct, and specialisations, which need a comment.
    hidden = r"^private:\n.*?^\};|^template <>\nstruct .*?^\};"
    public = re.sub(hidden, "", source, flags=re.DOTALL | re.MULTILINE)
    functions = set(re.findall(r"__device__ [^;{}=#]*?\b(\w+)\(", public))
    structs = set(re.findall(r"^(?:template <[^{;]*>\n)?struct +(\w+)", public, re.MULTILINE))

    shown = set(re.findall(r"\w+", TOOL["header_text"](path).replace("\\", "")))

    assert (functions | structs) - shown == set()


def test_every_header_is_in_the_reference_once() -> None:
    pages = (ROOT / "docs" / "reference").rglob("*.rst")
    asked_for = [
        path
        for page in pages
        for name in re.findall(r"^\.\. headers (.*)$", page.read_text(), re.MULTILINE)
        for path in TOOL["headers"](name)
    ]

    assert sorted(asked_for) == HEADERS
