"""ops.matmul against cuBLAS (torch.matmul, and CuPy's @ where it has the type).

Writes section "matmul" of the results file. Inputs are normally distributed: on zeros the chip
would clock higher.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import cupy
import numpy as np
import torch
from race import race, record

from tmaasync import ops

CUBES = (1024, 2048, 3072, 4096, 6144, 8192, 4095, 5000)
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (7168, 16384))
ROWS = (16, 128, 512, 2048, 4096)
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 5e-4}


def measure(m: int, n: int, k: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    a = torch.randn(m, k, device="cuda").to(dtype)
    b = torch.randn(n, k, device="cuda").to(dtype).T
    padded = -(-n // 8) * 8
    ours = torch.full((m, padded), math.nan, dtype=dtype, device="cuda")[:, :n]
    theirs = torch.empty(m, n, dtype=dtype, device="cuda")
    check(ops.matmul(a, b, out=ours), a, b)
    contestants = {
        "tmaasync": lambda: ops.matmul(a, b, out=ours),
        "torch": lambda: torch.matmul(a, b, out=theirs),
    }
    if dtype == torch.float16:
        cupy_a, cupy_b, cupy_out = map(cupy.from_dlpack, (a, b.T, theirs))
        contestants["cupy"] = lambda: cupy.matmul(cupy_a, cupy_b.T, out=cupy_out)
    label = f"{str(dtype).removeprefix('torch.')} {m} x {n} x {k}"
    row = {"case": label, "m": m, "n": n, "k": k, "dtype": str(dtype).removeprefix("torch.")}
    row |= race(contestants, rounds=rounds, reference="torch", seconds_per_turn=0.1)
    row["tflop_per_s"] = {
        name: round(2 * m * n * k / us / 1e6, 1) for name, us in row["us"].items()
    }
    return row


def check(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Against float64 on the GPU, on rows drawn at random."""
    rows = torch.randint(a.shape[0], (min(a.shape[0], 256),), device="cuda")
    wanted = a[rows].double() @ b.double()
    error = ((got[rows].double() - wanted).norm() / wanted.norm()).item()
    if not error < TOLERANCE[a.dtype]:
        raise SystemExit(f"{a.shape} @ {b.shape}: relative error {error:.2e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="cubes in bfloat16 only")
    options = parser.parse_args()
    torch.manual_seed(0)
    cases = [(side, side, side, torch.bfloat16) for side in CUBES]
    if not options.short:
        cases += [(m, n, k, torch.bfloat16) for n, k in SHAPES for m in ROWS if not m == n == k]
        cases += [(side, side, side, torch.float16) for side in (2048, 4096, 8192)]
    rows = []
    for case in cases:
        rows.append(measure(*case, options.rounds))
        ratio = rows[-1]["speed_over_torch"]["tmaasync"]
        print(
            f"{rows[-1]['case']:32s} {rows[-1]['tflop_per_s']['tmaasync']:6.1f} TFLOP/s  "
            f"{ratio['median']:.3f} x torch ({ratio['min']:.3f} to {ratio['max']:.3f})",
            flush=True,
        )
    medians = [row["speed_over_torch"]["tmaasync"]["median"] for row in rows]
    print(f"geometric mean {np.exp(np.mean(np.log(medians))):.3f} x torch")
    print(record("matmul", rows))


if __name__ == "__main__":
    main()
