"""Edits find their places by tokens: comments and layout of a source move none."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest
from emulate.mutations import FILES, MUTATIONS
from emulate.shipped import whole_text
from planted import EVERY, Defect, Edit, after, before, edited, exchanged, tokens_of, without

from tmaasync._comments import without_comments

TEXT = """
struct Ring : Base<int, 2> {
    Ring(int n) : full{n}, empty(n) { wait(1); }  // wait(0)
    void init() { for (auto& one : full) one.init(1); fence(); }
    void acquire() const {
        /* wait(2); */
        empty.wait(state.phase,
                   here);
        "wait(3)";
    }
};
class Consumer;
struct [[nodiscard]] Consumer { void init(); State state = make(); };
const auto load = [&](int i) -> bool { return wait(i, {1, 2}); };
#pragma  unroll
void run() { if (acquire()) { init(); } step(); step(); }
"""


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (without("wait(1);"), "wait(1);"),
        (without("empty . wait(\nstate.phase, here)"), "empty.wait(state.phase, here)"),
        (without("wait(...)", "Ring::acquire"), "wait(state.phase, here)"),
        (without("wait(...);", "load"), "wait(i, {1, 2});"),
        (without("wait(...)", "Ring::Ring"), "wait(1)"),
        (without("step();", nth=2), "step();"),
        (without("init()", "run"), "init()"),
        (without("init()", "Consumer"), "init()"),
        (without("#pragma unroll"), "#pragma unroll"),
        (without('"wait(3)"'), '"wait(3)"'),
        (without("for (...)", "init"), "for (auto& one : full)"),
    ],
)
def test_an_edit_is_found_by_its_tokens(edit: Edit, found: str) -> None:
    ((start, stop),) = edit.spans(TEXT)

    assert " ".join(TEXT[start:stop].split()) == found


@pytest.mark.parametrize(
    ("edit", "times"),
    [
        (without("step();"), 2),
        (without("step();", nth=3), 2),
        (without("wait(0)"), 0),
        (without("wait(2)"), 0),
        (without("pha"), 0),
        (without("fence()", "run"), 0),
        (without("nobody", nth=EVERY), 0),
        (without("wait(...) fence", "Ring"), 0),
    ],
)
def test_an_edit_that_is_not_found_as_often_as_it_says_is_refused(edit: Edit, times: int) -> None:
    with pytest.raises(ValueError, match=f"occurs {times} times"):
        edit.spans(TEXT)


def test_an_edit_names_no_comment() -> None:
    with pytest.raises(ValueError, match="has a comment"):
        without("wait(1); }  // wait(0)").spans(TEXT)


def test_edits_are_placed_in_the_text_before_any_of_them() -> None:
    text = "a(); b(); // b();\nc(); b();"

    assert edited(text, [without("b();", nth=2), after("a();", "b();")]) == (
        "a(); b(); b(); // b();\nc(); "
    )
    assert edited(text, [before("c(...);", "x")]) == "a(); b(); // b();\nx c(); b();"
    assert edited(text, [exchanged("c();", "b();")]) == "a(); b(); // b();\nb(); c();"
    assert edited(text, [Edit("b", "d", nth=EVERY)]) == "a(); d(); // b();\nc(); d();"


# --- the homes ----------------------------------------------------------------------------------


def shipped(defect: Defect) -> str:
    return whole_text(FILES[defect.kernel])


# The defects of each home, the least number of them, and the sources of their kernels.
HOMES: dict[str, tuple[tuple[Defect, ...], int, Callable[[Defect], str]]] = {
    "mutations": (MUTATIONS, 114, shipped),
}


@pytest.mark.parametrize("home", HOMES)
def test_a_home_loses_no_defect(home: str) -> None:
    defects, least, _ = HOMES[home]

    assert len({defect.key for defect in defects}) == len(defects) >= least
    assert all(defect.reported or defect.missed for defect in defects)


@pytest.mark.parametrize("home", HOMES)
def test_edits_survive_other_comments_and_another_layout(home: str) -> None:
    defects, _, source = HOMES[home]

    for defect in defects:
        text = source(defect)
        assert tokens_of(defect.plant(laid_out(text))) == tokens_of(defect.plant(text)), defect.key


@functools.cache
def laid_out(text: str) -> str:
    """Return a source without comments, a token to a line, with comments of our own."""
    lines = []
    for line in re.sub(r"\\\n", " ", without_comments(text)).splitlines():
        is_directive = line.lstrip().startswith("#")
        lines += [line] if is_directive else tokens_of(line)
    return "\n".join(f'{line}  // {number}\n/* an "other" */' for number, line in enumerate(lines))
