"""wgmma and mma.sync have the bits of the model in NumPy, on the CPU and on the chip."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.tensor_core_sums import accumulated
from probe_tensor_core_bits import FORMS, Form, mismatches, operands_of, run

from tmaasync import ops


@pytest.mark.chips("sm_90a")
@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_instruction(backend: Any, form: Form) -> None:
    operands = operands_of(form, tiles=4, seed=1)

    assert mismatches(np, form, operands, run(backend.module, form, *operands)) == {}


def test_subnormal_e4m3_keeps_as_many_bits_as_f16(backend: Any) -> None:
    """With the exponent of its code the greatest term would be aligned 2^3 higher."""
    (form,) = (form for form in FORMS if str(form) == "mma.sync k16 f32 e5m2 e4m3")
    a, b = (
        np.zeros((1, 16, 16), ml_dtypes.float8_e5m2),
        np.zeros((1, 8, 16), ml_dtypes.float8_e4m3fn),
    )
    a[:, :, [0, 1, 4]] = 2.0**15, 2.0**-12, 2.0**-12
    b[:, :, [0, 1, 4]] = 2.0**-9, 2.0**-6, 2.0**-6
    exact = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)

    got = run(backend.module, form, a.view(np.uint8), b.view(np.uint8), np.zeros((1, 16, 8)))

    assert np.array_equal(got.view(np.float32), exact)


@pytest.mark.chips("sm_90a")  # how tcgen05 rounds no chip has shown
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_a_gemm(backend: Any, kind: Any) -> None:
    a, b = (
        np.random.default_rng(seed).standard_normal((rows, 512)).astype(kind)
        for seed, rows in enumerate((64, 48))
    )
    names: dict[str, Any] = (
        {} if kind is np.float16 else {"a_dtype": "bfloat16", "b_dtype": "bfloat16"}
    )
    stored = [backend.array(one if kind is np.float16 else one.view(np.uint16)) for one in (a, b)]

    got = ops.matmul(stored[0], stored[1].T, dtype="float32", **names)

    assert np.array_equal(backend.host(got), accumulated(a, b))
