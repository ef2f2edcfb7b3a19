"""Every wgmma: types, N, majors, swizzles, scales, A in registers; exact on either back end.

The chip runs all of them, the emulator a selection: every type, every layout of every width.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from parity import wgmma_matmuls as matmuls
from parity.wgmma_matmuls import Array, Case, Problem

from tmaasync import Kernel, Swizzle
from tmaasync.wgmma import MMA_FORMS, MmaForm

pytestmark = pytest.mark.chips("sm_90a")

ON_CPU = pytest.mark.parametrize("backend", ["emulate"], indirect=True)
ON_CHIP = pytest.mark.parametrize(
    "backend", [pytest.param("cuda", marks=[pytest.mark.gpu])], indirect=True
)


def wrong_cases(backend: Any, kernel: Kernel, cases: Iterable[Case]) -> list[Case]:
    return [
        one
        for which, one in enumerate(cases)
        if not is_exact(backend, kernel, which, matmuls.drawn_problem(one, which))
    ]


def is_exact(backend: Any, kernel: Kernel, which: int, problem: Problem) -> bool:
    return np.array_equal(problem.run(backend, kernel, which), problem.wanted())


@pytest.mark.slow
@ON_CPU
def test_small_integers_are_multiplied_exactly_on_the_cpu(backend: Any) -> None:
    cases = matmuls.some_cases()

    assert wrong_cases(backend, matmuls.kernel_of(cases, is_inline=False), cases) == []


@pytest.mark.sampled(1)
@ON_CHIP
@pytest.mark.parametrize("swizzle", matmuls.SWIZZLES, ids=str)
@pytest.mark.parametrize("form", MMA_FORMS, ids=str)
def test_small_integers_are_multiplied_exactly_on_the_chip(
    backend: Any, form: MmaForm, swizzle: Swizzle
) -> None:
    """Each number of columns has one of the swizzles, in each form; another in the next form."""
    same_width = itertools.groupby(matmuls.every_case(form, swizzle), key=lambda one: one.columns)
    first = (list(matmuls.SWIZZLES).index(swizzle) + MMA_FORMS.index(form)) % len(matmuls.SWIZZLES)
    groups = tuple(tuple(group) for _, group in same_width)[first :: len(matmuls.SWIZZLES)]
    kernels = matmuls.kernels(groups, is_inline=True)

    wrong = itertools.chain.from_iterable(
        wrong_cases(backend, kernel, cases) for kernel, cases in zip(kernels, groups, strict=True)
    )

    assert list(wrong) == []


# --- operands that hold anything ------------------------------------------------------------------


def value_kernel(backend: Any, one: Case) -> tuple[Kernel, int]:
    cases = matmuls.value_cases()
    return matmuls.kernel_of(cases, is_inline=backend.module is not np), cases.index(one)


def value_problem(one: Case, a: Array, b: Array) -> Problem:
    """The part that is multiplied holds these, the rest of the buffers NaN."""
    kind = matmuls.numpy_type(one.form.a)
    whole = [np.full((extent, one.depth), np.nan, kind) for extent in (one.extent_a, one.extent_b)]
    whole[0][one.first_a : one.first_a + 64] = a
    whole[1][one.first_b : one.first_b + one.columns] = b
    addends = np.full((64, one.columns), np.nan, np.float32)
    return Problem(one, whole[0], whole[1], addends, accumulates=False)


def tf32(values: Array) -> Array:
    """What is left of the mantissa: ten bits."""
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def cases_of(*names: str) -> list[Case]:
    return [one for one in matmuls.value_cases() if one.form.a in names]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "one", cases_of("float8_e4m3fn", "float8_e5m2"), ids=lambda one: str(one.form)
)
def test_every_float8_is_multiplied_as_its_value(backend: Any, one: Case) -> None:
    kind = matmuls.numpy_type(one.form.a)
    values = np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)
    values = np.where(np.isfinite(values), values, 0)
    rows = np.arange(64)[:, None] % 8  # not the same in every row
    a = np.take(values, (np.arange(256)[None, :] + 37 * rows) % 256)

    problem = value_problem(one, a.astype(kind), np.eye(256).astype(kind))

    kernel, which = value_kernel(backend, one)
    assert np.array_equal(problem.run(backend, kernel, which), a)


def test_tf32_has_ten_bits_of_mantissa(backend: Any) -> None:
    (one,) = cases_of("tfloat32")
    rng = np.random.default_rng(5)
    a = rng.standard_normal((64, one.depth)).astype(np.float32)

    problem = value_problem(one, a, np.eye(one.columns, dtype=np.float32) * tf32(a[:1, :1]))

    kernel, which = value_kernel(backend, one)
    wanted = tf32(a).astype(np.float64) * tf32(a)[0, 0]
    assert np.array_equal(problem.run(backend, kernel, which), wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "one", cases_of("float16", "bfloat16", "tfloat32"), ids=lambda one: str(one.form)
)
def test_the_error_of_a_matmul_is_in_proportion_to_its_depth(backend: Any, one: Case) -> None:
    rng = np.random.default_rng(6)
    kind = matmuls.numpy_type(one.form.a)
    a, b = (rng.standard_normal((rows, one.depth)).astype(kind) for rows in (64, one.columns))

    kernel, which = value_kernel(backend, one)
    sums = value_problem(one, a, b).run(backend, kernel, which).astype(np.float64)

    if one.form.a == "tfloat32":
        a, b = tf32(a), tf32(b)
    left, right = a.astype(np.float64), b.astype(np.float64)
    # One rounding per multiply-add, or one per instruction where sums are fp16.
    rounding = 2.0**-23 * 2 * one.depth
    if one.form.accumulator == "float16":
        rounding = 2.0**-11 * 2 * (one.depth // one.form.k)
    assert np.all(np.abs(sums - left @ right.T) <= rounding * (np.abs(left) @ np.abs(right).T))
    assert np.linalg.norm(sums - left @ right.T) < rounding * np.linalg.norm(left @ right.T)


def test_fp16_sums_are_not_rounded_after_every_product(backend: Any) -> None:
    (one,) = [one for one in cases_of("float16") if one.form.accumulator == "float16"]
    # Beyond 2048 fp16 has even integers only: ones vanish one by one, and count in pairs.
    a = np.tile(np.array([1, 1, 0, 0], np.float16), (64, one.depth // 4))
    b = np.ones((one.columns, one.depth), np.float16)
    a[:, :4] = [2048, 1, 1, 0]

    kernel, which = value_kernel(backend, one)
    sums = value_problem(one, a, b).run(backend, kernel, which)

    assert np.array_equal(sums, np.full(sums.shape, 2048 + one.depth // 2))
