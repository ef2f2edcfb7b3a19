"""Every tile config that a batch-invariant GEMM may choose adds up a row in the same order."""

from __future__ import annotations

from typing import Any

import pytest

from tmaasync import ops

torch = pytest.importorskip("torch")

ROWS = (1, 7, 16, 64, 65, 128, 129, 300, 1000, 2048, 4100)


def drawn(rows: int, columns: int, dtype: Any) -> Any:
    return torch.randn(rows, columns, device="cuda").to(dtype)


@pytest.mark.parametrize("n", [512, 4096, 7000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_a_row_has_the_same_bits_in_every_matmul(dtype: str, n: int) -> None:
    torch.manual_seed(0)
    a, b = (drawn(rows, 7168, getattr(torch, dtype)) for rows in (max(ROWS), n))
    exact = a[:1].double() @ b.double().T

    found = [ops.matmul(a[:m], b.T, dtype="float32", batch_invariant=True)[:1] for m in ROWS]

    tolerance = 1e-2 if dtype.startswith("float8") else 1e-4
    assert (found[0] - exact).abs().max() <= tolerance * exact.abs().max()
    assert [m for m, out in zip(ROWS, found, strict=True) if not torch.equal(out, found[0])] == []


def test_a_row_has_the_same_bits_in_every_grouped_matmul() -> None:
    torch.manual_seed(0)
    a, b = drawn(max(ROWS), 7168, torch.bfloat16), torch.randn(4, 7168, 1024, device="cuda")
    b = b.bfloat16()

    found = [ops.grouped_matmul(a[:m], b, [1, 1, m // 2 + 1, m], dtype="float32")[:1] for m in ROWS]

    assert [m for m, out in zip(ROWS, found, strict=True) if not torch.equal(out, found[0])] == []
