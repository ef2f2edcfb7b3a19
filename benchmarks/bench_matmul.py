"""ops.matmul against cuBLAS (torch.matmul).

Writes section "matmul" of the results. Inputs are normally distributed: on zeros the chip
would clock higher. Matmuls that take less than 100 microseconds run as CUDA graphs over operands
that together are three times the size of L2: timed one by one, what counts would be the host and
what L2 kept.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from race import (
    captured,
    geometric_mean,
    plain_race,
    race,
    recorded,
    relative_error,
    speed_text,
    tera_per_second,
)

from tmaasync import ops

CUBES = (512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384, 4095, 5000)
ROWS = (1, 8, 16, 64, 128, 512, 2048, 4096, 8192)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (7168, 16384), (24576, 1536), (7168, 2048))
FLOAT16_CUBES = (2048, 4096, 8192)
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 5e-4}

PEAK_FLOP_PER_S = 800e12
BYTES_PER_S = 4e12
SHORT_S = 100e-6
CACHE_BYTES = 180 << 20
LAUNCHES = 20


def is_short(flop: float, traffic_bytes: float) -> bool:
    """Return whether a GEMM is so short that the host and L2 would count."""
    return max(flop / PEAK_FLOP_PER_S, traffic_bytes / BYTES_PER_S) < SHORT_S


def operand_sets(flop: float, traffic_bytes: float) -> int:
    """Return how many sets of operands do not fit into L2, for a GEMM that is short; else 1."""
    return math.ceil(CACHE_BYTES / traffic_bytes) if is_short(flop, traffic_bytes) else 1


class Case(NamedTuple):
    """A[M, K] times the transpose of B[N, K]."""

    m: int
    n: int
    k: int
    dtype: torch.dtype = torch.bfloat16

    @property
    def label(self) -> str:
        return f"{self.type_name} {self.m} x {self.n} x {self.k}"

    @property
    def type_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def flop(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def traffic_bytes(self) -> int:
        return 2 * (self.m * self.k + self.n * self.k + self.m * self.n)

    @property
    def is_short(self) -> bool:
        return is_short(self.flop, self.traffic_bytes)

    @property
    def operand_sets(self) -> int:
        return operand_sets(self.flop, self.traffic_bytes)


class Operands(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor
    ours: torch.Tensor
    theirs: torch.Tensor

    @classmethod
    def random(cls, case: Case) -> Operands:
        a = torch.randn(case.m, case.k, device="cuda").to(case.dtype)
        b = torch.randn(case.n, case.k, device="cuda").to(case.dtype).T
        padded = -(-case.n // 8) * 8
        ours = torch.full((case.m, padded), math.nan, dtype=case.dtype, device="cuda")
        theirs = torch.empty(case.m, case.n, dtype=case.dtype, device="cuda")
        return cls(a, b, ours[:, : case.n], theirs)

    def multiply(self) -> None:
        ops.matmul(self.a, self.b, out=self.ours)

    def multiply_by_torch(self) -> None:
        torch.matmul(self.a, self.b, out=self.theirs)


def measure(case: Case, rounds: int) -> dict[str, Any]:
    copies = case.operand_sets
    sets = [Operands.random(case) for _ in range(copies)]
    sets[0].multiply()
    check(sets[0])
    timed = _graphs(sets) if case.is_short else _calls(sets[0])
    works = max(LAUNCHES, copies) if case.is_short else 1
    row: dict[str, Any] = {"case": case.label, "m": case.m, "n": case.n, "k": case.k}
    row |= {"dtype": case.type_name, "graphs_of": works, "operand_sets": copies}
    row |= race(
        timed, rounds=rounds, reference="torch", seconds_per_slice=0.1, works_per_call=works
    )
    if case.m == case.n == case.k:
        row["burst"] = burst(timed)
    row["tflop_per_s"] = tera_per_second(row, case.flop)
    row["bytes_tb_per_s"] = round(case.traffic_bytes / row["us"]["tmaasync"] / 1e6, 3)
    for operands in sets:
        check(operands)
    return row


def burst(timed: dict[str, Any]) -> dict[str, Any]:
    """Time ten calls after a rest: the device is then at its highest clock."""
    return plain_race(timed, rounds=3, calls=10, rest_s=0.2, reference="torch")


def _calls(operands: Operands) -> dict[str, Any]:
    return {"tmaasync": operands.multiply, "torch": operands.multiply_by_torch}


def _graphs(sets: list[Operands]) -> dict[str, Any]:
    works = max(LAUNCHES, len(sets))
    order = [sets[index % len(sets)] for index in range(works)]
    return {
        "tmaasync": captured([one.multiply for one in order]),
        "torch": captured([one.multiply_by_torch for one in order]),
    }


def check(operands: Operands) -> None:
    """Compare with float64 on the GPU, on random rows."""
    a, b, got = operands.a, operands.b, operands.ours
    rows = torch.randint(a.shape[0], (min(a.shape[0], 64),), device="cuda")
    wanted = a[rows].double() @ b.double()
    error = relative_error(got[rows], wanted)
    if not error < TOLERANCE[a.dtype]:
        raise SystemExit(f"{tuple(a.shape)} @ {tuple(b.shape)}: relative error {error:.2e}")


def cases() -> Iterator[Case]:
    yield from (Case(side, side, side) for side in CUBES)
    yield from (Case(m, n, k) for n, k in WEIGHTS for m in ROWS if not m == n == k)
    yield from (Case(side, side, side, torch.float16) for side in FLOAT16_CUBES)


def mean(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "none"
    least = min(row["speed_over_torch"]["tmaasync"]["median"] for row in rows)
    return f"{geometric_mean(rows, 'torch'):.3f} (least {least:.3f}) of {len(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", help="MxNxK in bfloat16; by default all")
    options = parser.parse_args()
    torch.manual_seed(0)
    wanted = None if options.only is None else [one.replace("x", " x ") for one in options.only]
    with recorded("matmul", is_part=wanted is not None) as rows:
        for case in cases():
            if wanted is not None and case.label.removeprefix("bfloat16 ") not in wanted:
                continue
            rows.append(measure(case, options.rounds))
            print(
                f"{rows[-1]['case']:32s} {rows[-1]['us']['tmaasync']:9.1f} us  "
                f"{rows[-1]['tflop_per_s']['tmaasync']:6.1f} TFLOP/s  "
                f"{rows[-1]['bytes_tb_per_s']:6.3f} TB/s  "
                f"{speed_text(rows[-1], 'torch')}",
                flush=True,
            )
    is_cube = [row["m"] == row["n"] == row["k"] for row in rows]
    is_half = [row["dtype"] == "float16" for row in rows]
    pairs = list(zip(rows, is_cube, is_half, strict=True))
    print("bf16 cubes  ", mean([row for row, cube, half in pairs if cube and not half]))
    print("bf16 weights", mean([row for row, cube, _ in pairs if not cube]))
    print("  M <= 64   ", mean([row for row, cube, _ in pairs if not cube and row["m"] <= 64]))
    print("fp16 cubes  ", mean([row for row, _, half in pairs if half]))


if __name__ == "__main__":
    main()
