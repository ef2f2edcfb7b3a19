"""Approximations (.approx), attention and its gradients have the bits of the chip.

The digests are of an H200's results. benchmarks/probe_special_functions.py wrote the digests of
instructions, and compared all 2^32 floats there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from probe_special_functions import INSTRUCTIONS, OF_FLOATS, digest, results
from result_files import RESULTS, read_section

from tmaasync import Kernel, ops

SECTION = read_section(RESULTS / "nvidia_h200" / "special_functions.jsonl")
DIGESTS = {row["case"]: row["results_sha256"] for row in SECTION.rows}
# By head dimension and causality, in the order in which the operands are drawn: the digests of the
# output, of the log-sum-exp, and of dq, dk and dv where another test builds the backward too.
ATTENTION = {
    (64, False): ("047f1e7b20f803e9", "edb27d34ec837c8a", ""),
    (128, False): ("04446b66cd7b1a30", "89d26ed9e98df03b", "6239c138ce5c728f"),
    (128, True): ("1e309d76e445302b", "de01293001b93449", ""),
    (64, True): ("32f1db02cd972a65", "002a3c2709ffca77", "f540884db990e8d7"),
    (256, False): ("3826a14f844d9214", "f01e784323e3a380", ""),
}


def test_no_float_differs() -> None:
    assert list(DIGESTS) == list(INSTRUCTIONS)
    differ = {row["case"]: row["differ"] for row in SECTION.rows if row.get("inputs") == 2**32}
    assert differ == dict.fromkeys(OF_FLOATS, 0)


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_results_have_the_bits_of_the_chip(backend: Any, instruction: str) -> None:
    assert digest(results(backend.module, instruction)) == DIGESTS[instruction]


EXP2F = """
extern "C" __global__ void each(float* x) {
    float& own = x[blockIdx.x * blockDim.x + threadIdx.x];
    own = exp2f(own);
}
"""


def test_exp2f_is_the_instruction(backend: Any) -> None:
    x = backend.module.arange(1 << 16, dtype=np.uint32) * np.uint32((1 << 16) + 1)

    Kernel(EXP2F, name="each")(256, 256, (x.view(np.float32),))

    assert digest(x) == DIGESTS["ex2.approx.f32"]


def operands(wanted: tuple[int, bool]) -> list[Any]:
    rng = np.random.default_rng(5)
    for case in ATTENTION:
        drawn = [rng.standard_normal((1, 200, 2, case[0])).astype(np.float16) for _ in range(4)]
        if case == wanted:
            return drawn
    raise AssertionError(wanted)


@pytest.mark.sampled(2)
@pytest.mark.chips("sm_90a")
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_has_the_bits_of_the_chip(backend: Any, case: tuple[int, bool]) -> None:
    q, k, v, dout = map(backend.array, operands(case))
    of_out, of_lse, of_gradients = ATTENTION[case]

    out, lse = ops.attention(q, k, v, causal=case[1], return_lse=True)

    assert (digest(out)[:16], digest(lse)[:16]) == (of_out, of_lse)
    if of_gradients:
        found = ops.attention_backward(dout, q, k, v, out, lse, causal=case[1])
        assert digest(backend.module.stack(found))[:16] == of_gradients
