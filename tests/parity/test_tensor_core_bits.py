"""wgmma and mma.sync have the bits of the model in NumPy, on the CPU and on the chip."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.tensor_core_sums import accumulated
from probe_tensor_core_bits import FORMS, Form, mismatches, operands_of, run

from tmaasync import ops


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_instruction(backend: Any, form: Form) -> None:
    operands = operands_of(form, tiles=4, seed=1)

    assert mismatches(np, form, operands, run(backend.module, form, *operands)) == {}


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
