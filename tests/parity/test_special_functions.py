"""Approximations (.approx), attention and its gradients have the bits of the chip.

The digests are of an H200's results. benchmarks/probe_special_functions.py wrote the digests of
instructions, and compared all 2^32 floats there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from probe_special_functions import INSTRUCTIONS, OF_FLOATS, digest, results
from result_files import RESULTS, read_section

from tmaasync import Kernel, Pointer, ops

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


EACH = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void each(TYPE* x) {
    TYPE& own = x[blockIdx.x * blockDim.x + threadIdx.x];
    own = FUNCTION(own);
}
"""


@pytest.mark.parametrize(
    ("function", "of", "instruction"),
    [
        ("exp2f", "float", "ex2.approx.f32"),
        ("exp2", "float", "ex2.approx.f32"),
        ("htanh_approx", "__half", "tanh.approx.f16"),
        ("h2tanh_approx", "__half2", "tanh.approx.f16"),
        ("htanh_approx", "__nv_bfloat16", "tanh.approx.bf16"),
        ("h2tanh_approx", "__nv_bfloat162", "tanh.approx.bf16"),
    ],
)
def test_a_function_is_the_instruction(
    backend: Any, function: str, of: str, instruction: str
) -> None:
    x = backend.module.arange(1 << 16, dtype=np.uint32)
    x = x * np.uint32((1 << 16) + 1) if of == "float" else x.astype(np.uint16)
    blocks = 128 if of.endswith("2") else 256

    Kernel(EACH.replace("TYPE", of).replace("FUNCTION", function), name="each")(
        blocks, 256, (Pointer(x),)
    )

    assert digest(x) == DIGESTS[instruction]


FORMS = [f"{name}{end}" for name in ("div.approx", "div.full") for end in ("", ".ftz")]
SCALES = (1.0, 2.0**24, 0.25)
QUOTIENTS = """
extern "C" __global__ void quotients(const float* a, const float* b, float* out) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    STORES
}
"""


def flushed(x: Any) -> Any:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def test_approximate_divisions_multiply_by_the_reciprocal(backend: Any) -> None:
    """As ptxas 13.0 compiles them for sm_90a: it scales divisors that have no reciprocal."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 2**32, (2, 1 << 14), np.uint64).astype(np.uint32).view(np.float32)
    b[::8] = 2.0 ** rng.choice([-140, -127, -126, 125, 126, 127], len(b[::8]))
    stores = [
        f'asm("{form}.f32 %0, %1, %2;" : "=f"(out[{row}u << 14 | i]) : "f"(a[i]), "f"(b[i]));'
        for row, form in enumerate(FORMS)
    ]
    stores += [
        f'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out[{row}u << 14 | i]) : "f"(b[i] * {scale}f));'
        for row, scale in enumerate(SCALES, len(FORMS))
    ]
    out = backend.array(np.zeros((len(stores), 1 << 14), np.float32))

    Kernel(QUOTIENTS.replace("STORES", " ".join(stores)), name="quotients")(
        64, 256, (backend.array(a), backend.array(b), out)
    )

    *found, plain, of_small, of_large = backend.host(out)
    tiny, large = np.finfo(np.float32).tiny, np.float32(2.0**126)
    with np.errstate(all="ignore"):
        small = np.where(np.abs(b) < tiny, of_small * (a * np.float32(2.0**24)), plain * a)
        wanted = [
            small,
            flushed(plain * flushed(a)),
            np.where(np.abs(b) > large, of_large * (a * np.float32(0.25)), small),
            flushed(
                np.where(
                    np.abs(b) > large,
                    of_large * flushed(flushed(a) * np.float32(0.25)),
                    plain * flushed(a),
                )
            ),
        ]
    for form, got, expected in zip(FORMS, found, wanted, strict=True):
        np.testing.assert_array_equal(got, expected, form)


ROUNDED: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: 10.0**x,
    "cos": np.cos,
    "sin": np.sin,
    "tanh": np.tanh,
}
ROUNDED_KERNEL = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void rounded(const TYPE* in, TYPE* out) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    STORES
}
"""


def to_nearest(x: Any, element: Any) -> Any:
    """Round once: ml_dtypes rounds a double to float first."""
    form: Any = ml_dtypes.finfo(element)  # type: ignore[no-untyped-call]
    exponent = np.maximum(np.frexp(x)[1] - 1, form.minexp) - form.nmant
    return np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent).astype(element)


@pytest.mark.parametrize(
    ("of", "element"), [("__half", np.float16), ("__nv_bfloat16", ml_dtypes.bfloat16)]
)
def test_functions_of_halves_are_rounded_to_nearest(backend: Any, of: str, element: Any) -> None:
    """nvcc compiles them to float instructions, and mends each half that would round wrongly."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = backend.array(np.zeros((len(ROUNDED), 1 << 16), np.uint16))
    stores = (f"out[{row}u << 16 | i] = h{name}(in[i]);" for row, name in enumerate(ROUNDED))
    text = ROUNDED_KERNEL.replace("TYPE", of).replace("STORES", " ".join(stores))

    Kernel(text, name="rounded")(256, 256, (Pointer(backend.array(bits)), Pointer(out)))

    got = backend.host(out).view(element).astype(np.float32)
    with np.errstate(all="ignore"):
        for (name, function), row in zip(ROUNDED.items(), got, strict=True):
            wanted = to_nearest(function(bits.view(element).astype(np.float64)), element)
            np.testing.assert_array_equal(row, wanted.astype(np.float32), name)


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
