"""Races after an index that led out of its array into another array of the launch.

Where a subscript names the parameter itself, that is a fault (test_other_arrays.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import EmulatedRace, Kernel, emulate

# A row scale that is read without `row < m`, next to the array that another block writes.
STRAYS = """
extern "C" __global__ void scaled(const float* scale, float* c, int rows) {
    const int row = blockIdx.x;
    c[row] = 2;
    const float* rows_of_scale = rows ? scale : c;
    if (threadIdx.x == 0 && row < rows) c[row] = POINTER[row + SHIFT];
}
"""


@pytest.mark.parametrize(
    ("shift", "place"),
    [
        (3, r"scale\[4\], right after the end of scale"),
        (6, r"scale\[\d+\], \d+ bytes after the end of scale"),
    ],
)
@pytest.mark.parametrize(
    ("pointer", "said"),
    [
        (
            "(scale + 0)",
            (
                r"\nthe ordinary read at kernel\.cu:6 names scale, and the address is {}, in c\. "
                r"Check the index and its bound\. If the access is meant for c: no flag"
            ),
        ),
        (
            "rows_of_scale",
            r"\nno flag orders .*Or an index is wrong, and the access is meant for {}",
        ),
    ],
)
def test_a_race_where_another_array_ends_names_both_arrays(
    shift: int, place: str, pointer: str, said: str
) -> None:
    memory = np.zeros(64, np.float32)
    scale, c = memory[:4], memory[4:]
    kernel = Kernel(STRAYS.replace("SHIFT", str(shift)).replace("POINTER", pointer), "scaled")
    with (
        emulate.scheduled(races=True),
        pytest.raises(EmulatedRace, match=said.format(place)) as caught,
    ):
        kernel(8, 1, (scale, c, 2))
    assert str(caught.value.name).startswith("c[")


@pytest.mark.parametrize(
    "code",
    ["float* all = c; all[4000] = blockIdx.x;", "c[0] = blockIdx.x;"],
    ids=["far from the ends of others", "its line names the array"],
)
def test_a_race_of_no_stray_index_names_one_array(code: str) -> None:
    memory = np.zeros(8192, np.float32)
    text = f'extern "C" __global__ void f(const float* x, float* c) {{ {code} }}'
    kernel = Kernel(text.replace("{ ", "{\n"), "f")
    with emulate.scheduled(races=True), pytest.raises(EmulatedRace) as caught:
        kernel(2, 1, (memory[:4], memory[4:]))
    assert "an index is wrong" not in str(caught.value)
