"""Atomic calls whose result is unused, by the text of a source."""

from __future__ import annotations

import pytest

from tmaasync._source.atomics import unused_atomics


@pytest.mark.parametrize(
    "line",
    [
        "atomicAdd(p, 1);",
        "{ atomicAdd_block(p + f(2), g(1)); }",
        "if (a(b)) atomicAdd(p, 1);",
        "for (int i = 0; i < 4; ++i) atomicAdd(p, i); atomicAdd(q, 1);",
        "if (x) { } else atomicAdd(p, 1);  // twice",
    ],
)
def test_a_statement_uses_no_result(line: str) -> None:
    assert unused_atomics(line) == {1: "atomicAdd"}


@pytest.mark.parametrize(
    "line",
    [
        "int t = atomicAdd(p, 1);",
        "return atomicAdd(p, 1);",
        "f(atomicAdd(p, 1));",
        "(int)atomicAdd(p, 1);",
        "atomicAdd(p, 1) == 3 ? f() : g();",
        "atomicAdd(p, 1); int t = atomicAdd(q, 1);",
        "atomicAdd(p, 1); atomicMax(q, 1);",
        "atomicExch(p, 1);",
        "if (atomicCAS(p, 0, 1) == 0) atomicSub(p, 1);",
        "// atomicAdd(p, 1);",
        "t =\n atomicAdd(p, 1);",
    ],
)
def test_other_calls_may_use_it(line: str) -> None:
    assert unused_atomics(line) == {}
