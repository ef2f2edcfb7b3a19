"""Tokens of CUDA C++, and the declarations that they tell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync._source.declarations import declared, named_types, variables
from tmaasync._source.entries import declarations, expression_of
from tmaasync._source.paths import kernels_dir
from tmaasync._source.tokens import closing, joined, parts, spelled, tokens, without_comments, words

HEADERS = sorted(kernels_dir().rglob("*.cuh"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<b<2>>c", ["a", "<", "b", "<", "2", ">", ">", "c"]),
        ("x::y->z[0]", ["x", "::", "y", "->", "z", "[", "0", "]"]),
        ("f(1'000.5e-3f, 0x1p-2)", ["f", "(", "1'000.5e-3f", ",", "0x1p-2", ")"]),
        (r"""'"' "a\"//b" 'c'""", ["'\"'", r'"a\"//b"', "'c'"]),
        ('R"x(a)" /* b )x" c', ['R"x(a)" /* b )x"', "c"]),
        ("a /* b\n */ c // d\n e", ["a", "c", "e"]),
        ("[[nodiscard]] int f(); x[y[0]]", ["int", "f", "(", ")", ";", *"x[y[0]]"]),
        ("#include <a.h>\n# define B \\\n c", ["#", "define", "B", "c"]),
        ("", []),
    ],
)
def test_a_text_is_cut_into_tokens(text: str, expected: list[str]) -> None:
    assert words(tokens(text)) == expected


@given(st.text(st.sampled_from("ab0\"'/*<>()[]{}.,:;#\\ \n"), max_size=40))
def test_every_text_has_tokens_that_lie_in_it_in_order(text: str) -> None:
    code, end = tokens(text), 0
    for token in code:
        assert text[token.start : token.end] == token.text != ""
        assert token.start >= end
        end = token.end
    for at, token in enumerate(code):
        if token.text in ("(", "[", "{", "<"):
            assert at < closing(code, at) <= len(code)
            assert len(parts(code, at)) <= 1 + words(code).count(",")


@pytest.mark.sampled(40)
@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header.stem)
def test_comments_are_no_tokens_of_a_shipped_header(header: Any) -> None:
    text = header.read_text(encoding="utf-8")
    bare = without_comments(text)

    assert words(tokens(text)) == words(tokens(bare))
    assert text.count("\n") == bare.count("\n")
    code = tokens(text)
    for at, token in enumerate(code):
        if token.text == "{":
            assert closing(code, at) < len(code)


def test_a_type_has_one_spelling() -> None:
    for text in ("unsigned  long\nlong*", "unsigned long long *"):
        assert joined(words(tokens(text))) == "unsigned long long*"


@pytest.mark.parametrize(
    ("text", "kind", "name", "is_array"),
    [
        ("const float* __restrict__ x", "const float*", "x", False),
        ("float x[]", "float", "x", True),
        ("std::byte", "std::byte", "", False),
        ("unsigned", "unsigned", "", False),
        ("int n = f(3)", "int", "n", False),
        ("PARAMETER(Tile, t)", "", "", False),
    ],
)
def test_a_declaration_has_a_type_and_a_name(
    text: str, kind: str, name: str, is_array: bool
) -> None:
    found = declared(words(tokens(text)))
    assert (joined(found.kind), found.name, found.is_array) == (kind, name, is_array)


def test_types_and_variables_of_a_source() -> None:
    code = tokens(
        "typedef unsigned int Word; using Row = float[4]; template <class T> using Of = T;\n"
        "__device__ alignas(16) double w[2][8] = {}; __device__ int f(int a) { return a; }"
    )

    assert [(name, spelled(kind)) for name, kind in named_types(code)] == [
        ("Word", "unsigned int"),
        ("Row", "float[4]"),
        ("Of", ""),
    ]
    found = [(one.name, one.kind) for one, _ in variables(code, ("__device__",)) if one.name]
    assert found == [("w", ["double"])]


def test_kernels_with_their_attributes_templates_and_linkage() -> None:
    text = """
    extern "C" { __global__ void __launch_bounds__(2 * f(3, 4), 1) a(int x, Box<8, 32> box); }
    template <class T, int N = (2 > 1)> static __global__ __cluster_dims__(2) void b(T* x) {}
    __global__ auto c(int) -> void;
    """
    a, b, c = declarations(text)

    assert [(one.name, one.is_c) for one in (a, b, c)] == [("a", True), ("b", False), ("c", False)]
    assert [spelled(one) for one in a.parameters] == ["int x", "Box<8, 32> box"]
    assert {name: list(map(spelled, given)) for name, given in a.attributes.items()} == {
        "__launch_bounds__": ["2 * f(3, 4)", "1"]
    }
    assert [spelled(one) for one in b.template or ()] == ["class T", "int N = (2 > 1)"]
    assert (a.template, c.template) == (None, None)
    assert expression_of(text, "c") == "c"
