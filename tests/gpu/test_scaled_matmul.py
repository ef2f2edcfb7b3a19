"""Block-scaled matmul on the chip: real sizes, random shapes, torch's own tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import ops

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-20}
SUBNORMAL = {torch.bfloat16: 0.0, torch.float16: 2**-25, torch.float32: 0.0}
"""Half the distance of the smallest numbers."""
LOST_IN_A_BLOCK = 2e-3
"""Relative to the sum of magnitudes: tensor cores drop low bits of fp8 partial products."""


def ceil_128(size: int) -> int:
    return -(-size // 128)


def draw(rows: int, columns: int, kind: str, seed: int) -> Any:
    """Inside a larger array of NaN, with rows that TMA can read or not."""
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(rows, columns, device="cuda", generator=generator)
    whole = torch.full((rows + 2, columns + 16 + seed % 3 * 8), torch.nan, device="cuda")
    whole[1:-1, :columns] = values
    return whole.to(FP8[kind])[1:-1, :columns]


def scales_of(rows: int, columns: int, seed: int, *, transposed: bool) -> Any:
    """Over four orders of magnitude."""
    generator = torch.Generator("cuda").manual_seed(seed)
    powers = (
        torch.rand(rows, columns, device="cuda", generator=generator) * 4 - 3.5
    )  # sums of them fit float16
    scales = 10**powers
    return scales.T.contiguous().T if transposed else scales


def spread(matrix: Any, scales: Any, *, rows: int) -> Any:
    whole = scales.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)
    return matrix.double() * whole[: matrix.shape[0], : matrix.shape[1]]


def assert_close(got: Any, a: Any, b: Any) -> None:
    """Every element, by the size of what was summed for it."""
    wanted = a @ b.T
    sizes = a.abs() @ b.abs().T
    rounding = ROUNDING[got.dtype] * wanted.abs() + SUBNORMAL[got.dtype]
    allowed = LOST_IN_A_BLOCK * sizes + rounding
    assert bool(((got.double() - wanted).abs() <= allowed).all())


@pytest.mark.parametrize("seed", range(100))
def test_random_shapes(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    most = (400, 700, 900) if seed % 4 else (2500, 3000, 700)
    m, n, k = (int(drawn.integers(1, size)) for size in most)
    kinds = list(FP8)
    a, b = draw(m, k, kinds[seed % 2], seed), draw(n, k, kinds[seed // 2 % 2], seed + 1)
    by_column = seed % 3 == 0
    scale_a = scales_of(m, ceil_128(k), seed + 2, transposed=seed % 5 > 0)
    wide = n if by_column else ceil_128(n)
    scale_b = scales_of(wide, ceil_128(k), seed + 3, transposed=seed % 7 > 2)
    kind = list(ROUNDING)[seed % 3]
    whole = torch.full((m, n + 24), torch.nan, dtype=kind, device="cuda")
    out = whole[:, :n]

    for _ in range(2):  # the second time by the plan of the first
        ops.scaled_matmul(a, b.T, scale_a, scale_b.T, out=out)

    rows = 1 if by_column else 128
    assert_close(out, spread(a, scale_a, rows=1), spread(b, scale_b, rows=rows))
    assert bool(whole[:, n:].isnan().all())


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(4096, 7168, 2048), (128, 7168, 16384), (1000, 24576, 1536), (4096, 4096, 7168)],
)
def test_layers_of_models(m: int, n: int, k: int) -> None:
    a, b = draw(m, k, "e4m3", 0), draw(n, k, "e4m3", 3)
    scale_a = scales_of(m, k // 128, 1, transposed=True)
    scale_b = scales_of(n // 128, k // 128, 2, transposed=False)

    got = ops.scaled_matmul(a, b.T, scale_a, scale_b.T)

    assert_close(got, spread(a, scale_a, rows=1), spread(b, scale_b, rows=128))


def test_the_tensors_of_torchs_scaled_mm_give_the_same() -> None:
    functional = torch.nn.functional
    if not hasattr(functional, "scaled_mm"):
        pytest.skip("this torch has no scaled_mm")
    m, n, k = 512, 768, 1152
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (
        torch.randn(side, k, device="cuda", generator=generator).to(torch.float8_e4m3fn)
        for side in (m, n)
    )
    scale_a = scales_of(m, k // 128, 1, transposed=True)
    scale_b = torch.nn.functional.pad(scales_of(n // 128, k // 128, 2, transposed=False), (0, 3))
    assert scale_b.shape == (6, 12)

    theirs = functional.scaled_mm(
        a,
        b.T,
        scale_a,
        functional.ScalingType.BlockWise1x128,
        scale_b.T,
        functional.ScalingType.BlockWise128x128,
        output_dtype=torch.bfloat16,
    )
    ours = ops.scaled_matmul(a, b.T, scale_a, scale_b.T)

    assert ours.dtype == theirs.dtype
    assert ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item() < 5e-3
