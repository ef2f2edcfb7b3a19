"""Edits find their places by tokens: comments and layout of a source move none."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
from emulate import (
    guide_defects,
    test_attention_backward_defects,
    test_attention_defects,
    test_paged_attention_defects,
    test_raw_ptx_defects,
    test_scaled_gemm,
)
from emulate.mutations import FILES, MUTATIONS
from emulate.planted import peers
from emulate.planted.defects import DEFECTS, SOUND
from emulate.planted.kernels import text_of
from emulate.shipped import whole_text
from parity import raw_ptx_kernels, test_stream_k
from parity import test_structured_misuses as misuses
from parity.stream_k import SOURCE
from parity.structured_programs import PROGRAMS
from planted import EVERY, Defect, Edit, after, before, edited, exchanged, tokens_of, without

from tmaasync._source.tokens import without_comments

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
#define URL "http://" /* wait(4); */ \\
    // wait(5);
template <typename Consumer> void free(Consumer& consumer) { consumer.init(); }
struct [[nodiscard("wait(6)")]] Consumer { void init(); State state = make(); };
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
        (without("init()", "free"), "init()"),
        (without("#pragma unroll"), "#pragma unroll"),
        (without('#define URL "http://"'), '#define URL "http://" /* wait(4); */ \\'),
        (without("wait(i, ..."), "wait(i, {1, 2}"),
        (without("fence();", "Ring"), "fence();"),
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


def test_edits_of_the_same_code_are_refused() -> None:
    with pytest.raises(ValueError, match="another edit replaces"):
        edited(TEXT, [without("step();", nth=1), Edit("init(); } step", "x")])


def test_edits_are_placed_in_the_text_before_any_of_them() -> None:
    text = "a(); b(); // b();\nc(); b();"

    assert edited(text, [without("b();", nth=2), after("a();", "b();")]) == (
        "a(); b(); b(); // b();\nc(); "
    )
    assert edited(text, [before("c(...);", "x")]) == "a(); b(); // b();\nx c(); b();"
    assert edited(text, [exchanged("c();", "b();")]) == "a(); b(); // b();\nb(); c();"
    assert edited(text, [Edit("b", "d", nth=EVERY)]) == "a(); d(); // b();\nc(); d();"


# --- the homes ----------------------------------------------------------------------------------


def raw_ptx(defect: Defect) -> str:
    return next(
        problem.text for problem in raw_ptx_kernels.KERNELS if problem.name == defect.kernel
    )


def stream_k(defect: Defect) -> str:
    is_in_header = defect in test_stream_k.DEFECTS
    return test_stream_k.with_own_class() if is_in_header else SOURCE


def shipped(defect: Defect) -> str:
    return whole_text(FILES.get(defect.kernel, defect.kernel))


ATTENTION = (
    *test_attention_defects.DEFECTS,
    *test_attention_defects.DEFECTS_OF_PAIRS,
    *test_attention_defects.DEFECTS_OF_FLOAT8,
    *test_attention_defects.DEFECTS_OF_TRANSPOSERS,
)
BACKWARD = (
    *test_attention_backward_defects.DEFECTS,
    *test_attention_backward_defects.DEFECTS_OF_TURNS,
    *test_attention_backward_defects.DEFECTS_OF_ONE_STAGE,
)
PAGED = (*test_paged_attention_defects.DEFECTS, test_paged_attention_defects.NO_LIMIT)
# The defects of each home, the least number of them, and the sources of their kernels.
HOMES: dict[str, tuple[tuple[Defect, ...], int, Callable[[Defect], str]]] = {
    "mutations": (MUTATIONS, 114, shipped),
    "planted": (DEFECTS, 291, lambda defect: text_of(defect.kernel)),
    "guide": (guide_defects.DEFECTS, 44, lambda defect: guide_defects.text_of(defect.kernel)),
    "raw PTX": (test_raw_ptx_defects.DEFECTS, 25, raw_ptx),
    "attention": (ATTENTION, 16, shipped),
    "attention backward": (BACKWARD, 31, shipped),
    "paged attention": (PAGED, 5, shipped),
    "peers": (peers.DEFECTS, 23, lambda defect: peers.SOURCE.read_text()),
    "scaled GEMM": (test_scaled_gemm.DEFECTS, 4, shipped),
    "stream-K misuses": (test_stream_k.MISUSES + test_stream_k.COMPILER, 12, stream_k),
    "stream-K reduction": (test_stream_k.DEFECTS, 7, stream_k),
    "misuses": (misuses.MISUSES, 52, lambda defect: PROGRAMS[defect.kernel][0]),
}
# Edits that keep kernels sound.
SOUND_EDITS = {
    "planted": (SOUND, 10, HOMES["planted"][2]),
    "attention backward": (test_attention_backward_defects.HARMLESS, 4, shipped),
}


@pytest.mark.parametrize("home", HOMES)
def test_a_home_loses_no_defect(home: str) -> None:
    defects, least, source = HOMES[home]
    planted = [(defect.kernel, defect.plant(source(defect))) for defect in defects if defect.edits]

    assert len({(defect.kind, defect.key) for defect in defects}) == len(defects) >= least
    assert all(defect.reported for defect in defects)
    assert len(set(planted)) == len(planted)


@pytest.mark.parametrize("table", [*HOMES.values(), *SOUND_EDITS.values()])
def test_edits_survive_other_comments_and_another_layout(table: Any) -> None:
    defects, least, source = table
    assert len(defects) >= least

    for defect in defects:
        text = source(defect)
        other = laid_out(text)
        for edit in defect.edits:
            assert edit.places(other) == edit.places(text), defect.key


@functools.cache
def laid_out(text: str) -> str:
    """Return a source without comments, a token to a line, with comments of our own."""
    lines = []
    for line in re.sub(r"\\\n", " ", without_comments(text)).splitlines():
        is_directive = line.lstrip().startswith("#")
        lines += [line] if is_directive else tokens_of(line)
    other = "\n".join(f'{line}  // {number}\n/* an "other" */' for number, line in enumerate(lines))
    assert tokens_of(other) == tokens_of(text)
    return other
