"""ex2, lg2, rcp, rsqrt and tanh with .approx have the bits of the chip, and so has attention.

The digests are of an H200's results. benchmarks/probe_special_functions.py wrote the digests of
instructions, and compared all 2^32 floats there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from probe_special_functions import INSTRUCTIONS, digest, results
from result_files import RESULTS, read_section

from tmaasync import ops

SECTION = read_section(RESULTS / "nvidia_h200" / "special_functions.jsonl")
DIGESTS = {row["case"]: row["results_sha256"] for row in SECTION.rows if "results_sha256" in row}
# The digest of each output, by head dimension and causality. Operands are drawn in this order.
ATTENTION = {
    (64, False): "047f1e7b20f803e9",
    (128, False): "04446b66cd7b1a30",
    (128, True): "1e309d76e445302b",
    (64, True): "32f1db02cd972a65",
    (256, False): "3826a14f844d9214",
}


def test_no_instruction_differs() -> None:
    assert [row["case"] for row in SECTION.rows] == list(INSTRUCTIONS)
    assert [row["differ"] for row in SECTION.rows] == [0] * len(INSTRUCTIONS)


@pytest.mark.parametrize("instruction", DIGESTS)
def test_results_have_the_bits_of_the_chip(backend: Any, instruction: str) -> None:
    assert digest(results(backend.module, instruction)) == DIGESTS[instruction]


def operands(wanted: tuple[int, bool]) -> list[Any]:
    rng = np.random.default_rng(5)
    for case in ATTENTION:
        drawn = [rng.standard_normal((1, 200, 2, case[0])).astype(np.float16) for _ in range(4)]
        if case == wanted:
            return drawn[:3]
    raise AssertionError(wanted)


@pytest.mark.chips("sm_90a")
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_has_the_bits_of_the_chip(backend: Any, case: tuple[int, bool]) -> None:
    q, k, v = map(backend.array, operands(case))

    out = ops.attention(q, k, v, causal=case[1])

    assert digest(out)[:16] == ATTENTION[case]
