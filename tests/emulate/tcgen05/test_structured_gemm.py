"""The GEMM of the tutorial's step 11: rings of operands and of accumulators, races searched."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, emulate

REPORTS = (EmulatedDeadlock, EmulatedFault, EmulatedRace)
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("11_tensor_memory_gemm")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_types_tiles_and_orders(
    example: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers(1, 500, 3))
    n, k = -(-n // 8) * 8, -(-k // 8) * 8
    dtype = np.float16 if seed % 2 else ml_dtypes.bfloat16
    a, b = (rng.standard_normal((rows, k)).astype(dtype) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32 if seed % 3 == 0 else dtype)
    monkeypatch.setattr(example, "CTAS", int(rng.integers(2, 5)))

    with emulate.scheduled("random", seed=seed, races=True):
        example.bind(a, b, c, columns=(64, 128, 256)[seed % 3], pair=seed % 4 > 0)()

    expected = a.astype(np.float64) @ b.astype(np.float64).T
    rounding = {2: 2.0**-8 if dtype is ml_dtypes.bfloat16 else 2.0**-10, 4: 2.0**-20}
    bound = rounding[c.itemsize] * (np.abs(expected) + np.sqrt(k))
    assert (np.abs(c.astype(np.float64) - expected) <= bound).all()


DEFECTS = {  # a text, what stands there instead, and what the report names
    "accumulators never committed": ("accumulators.commit();", "", "accumulators.full"),
    "adds to unwritten accumulators": (
        "stage.iteration() > 0", "true", "unwritten-tensor-memory"
    ),
    "both CTAs multiply": ("!leads_pair<CTAS>() || ", "", "ring.full[0]"),
    "accumulators without barriers": ("        accumulators.init();\n", "", "init"),
    "B is not loaded": ("OperandRing::load(stage, b, stage->b, {k, n});", "", "ring.full"),
    "stores read early": ("output.drain();", "", "output"),
    "one CTA allocates for itself": (", CTAS> tmem", "> tmem", "cta_group::2"),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_reported(
    example: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    before, after, said = DEFECTS[name]
    text = Path(example.__file__).with_suffix(".cu").read_text()
    assert before in text
    (tmp_path / "11_tensor_memory_gemm.cu").write_text(text.replace(before, after))
    monkeypatch.setattr(example, "__file__", str(tmp_path / "11_tensor_memory_gemm.py"))
    a, b = (np.ones((rows, 128), np.float16) for rows in (512, 256))

    with emulate.scheduled(seed=1, races=True), pytest.raises(REPORTS) as caught:
        example.bind(a, b, np.zeros((512, 256), np.float16), pair=True)()

    assert said in str(caught.value)
