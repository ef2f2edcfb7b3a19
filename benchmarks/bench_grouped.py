"""Grouped and K-grouped matmul against torch._grouped_mm, batched ops.matmul against torch.bmm.

Writes sections "grouped_matmul", "k_grouped_matmul" and "batched_matmul" of the results. With
``--sweep`` nothing is written: tile configs are raced, best first.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from race import geometric_mean, race, recorded, relative_error, speed_text, tera_per_second

from tmaasync import ops
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._operation import tile_configs

# Groups, rows of each, N, K.
GROUPED = (
    (4, 8192, 4096, 7168),
    (8, 4096, 4096, 7168),
    (4, 8192, 7168, 2048),
    (8, 4096, 7168, 2048),
    (16, 1024, 4096, 4096),
)
FEW_ROWS = ((64, 16, 4096, 7168), (128, 4, 4096, 2048), (32, 64, 7168, 2048))
# Batch, M, N, K.
BATCHED = (
    (16, 1024, 1024, 1024),
    (32, 512, 512, 1024),
    (64, 256, 256, 256),
    (8, 2048, 2048, 2048),
    (4, 4096, 4096, 4096),
    (32, 2048, 128, 2048),
)
TOLERANCE = 4e-3


def equal(groups: int, rows: int) -> list[int]:
    return [rows] * groups


def zipf(groups: int, rows: int) -> list[int]:
    """Return as many rows in all; the i-th largest group has 1 / i of the largest."""
    shares = 1 / np.arange(1, groups + 1)
    sizes = np.floor(groups * rows * shares / shares.sum()).astype(int)
    sizes[0] += groups * rows - sizes.sum()
    return [int(size) for size in np.random.default_rng(0).permutation(sizes)]


class Grouped:
    """Operands of a grouped GEMM, as torch takes them; the case names all groups' M, N and K."""

    def __init__(self, kind: str, sizes: list[int], n: int, k: int) -> None:
        rows = sum(sizes)
        self.row = {
            "case": f"{kind}, {len(sizes)} groups, {rows} x {n} x {k}",
            "kind": kind,
            "rows": sizes,
            "n": n,
            "k": k,
        }
        self.operations = 2 * rows * n * k
        self.ends = [int(end) for end in np.cumsum(sizes)]
        self.a = torch.randn(rows, k, device="cuda").bfloat16()
        self.b = torch.randn(len(sizes), n, k, device="cuda").bfloat16().transpose(1, 2)
        self.offsets = torch.tensor(self.ends, dtype=torch.int32, device="cuda")
        self.out = torch.full((rows, n), math.nan, dtype=torch.bfloat16, device="cuda")

    def ours(self) -> None:
        ops.grouped_matmul(self.a, self.b, self.offsets, out=self.out)

    def theirs(self) -> torch.Tensor:
        return torch._grouped_mm(self.a, self.b, offs=self.offsets)

    def runs(self) -> dict[str, Callable[[], Any]]:
        """Return the candidates; for equal groups also our batched matmul, without ragged maps."""
        found = {"tmaasync": self.ours, "torch": self.theirs}
        if self.row["kind"] == "equal":
            batch = len(self.ends)
            a, out = (whole.view(batch, -1, whole.shape[1]) for whole in (self.a, self.out))
            found["tmaasync, batched"] = lambda: ops.matmul(a, self.b, out=out)
        return found

    def check(self) -> None:
        """Compare with float64 on the GPU, on random rows and the last row of each group."""
        self.ours()
        last = torch.tensor(self.ends, device="cuda") - 1
        drawn = torch.randint(len(self.a), (256,), device="cuda")
        rows = torch.cat([drawn, last[last >= 0]])
        group_of = torch.searchsorted(self.offsets.long(), rows, right=True)
        for group in group_of.unique():
            some = rows[group_of == group]
            check(self.out[some], self.a[some], self.b[group], self.row["case"])


class KGrouped:
    """The gradient of the matrices of a grouped GEMM: the 2d-2d form of torch._grouped_mm."""

    def __init__(self, kind: str, sizes: list[int], n: int, k: int) -> None:
        rows = sum(sizes)
        self.row = {
            "case": f"{kind}, {len(sizes)} groups, {k} x {n} x {rows}",
            "kind": kind,
            "rows": sizes,
            "m": k,
            "n": n,
        }
        self.operations = 2 * rows * n * k
        self.ends = [int(end) for end in np.cumsum(sizes)]
        self.a = torch.randn(rows, k, device="cuda").bfloat16()
        self.b = torch.randn(rows, n, device="cuda").bfloat16()
        self.offsets = torch.tensor(self.ends, dtype=torch.int32, device="cuda")
        shape = (len(sizes), k, n)
        self.out = torch.full(shape, math.nan, dtype=torch.bfloat16, device="cuda")

    def ours(self) -> None:
        ops.k_grouped_matmul(self.a.T, self.b, self.offsets, out=self.out)

    def theirs(self) -> torch.Tensor:
        return torch._grouped_mm(self.a.T, self.b, offs=self.offsets)

    def runs(self) -> dict[str, Callable[[], Any]]:
        return {"tmaasync": self.ours, "torch": self.theirs}

    def check(self) -> None:
        self.ours()
        columns = torch.randint(self.a.shape[1], (64,), device="cuda")
        for group, (start, end) in enumerate(zip([0, *self.ends], self.ends, strict=False)):
            got, left = self.out[group][columns], self.a[start:end, columns].T
            if start == end:
                if bool((got != 0).any()):
                    raise SystemExit(f"{self.row['case']}: group {group} is not zero")
                continue
            check(got, left, self.b[start:end], self.row["case"])


class Batched:
    """Batches of matrices, the right ones stored as [B, N, K]."""

    def __init__(self, batch: int, m: int, n: int, k: int) -> None:
        self.row = {"case": f"bfloat16 {batch} x {m} x {n} x {k}", "batch": batch}
        self.row |= {"m": m, "n": n, "k": k}
        self.operations = 2 * batch * m * n * k
        self.a = torch.randn(batch, m, k, device="cuda").bfloat16()
        self.b = torch.randn(batch, n, k, device="cuda").bfloat16().transpose(1, 2)
        self.out = torch.full((batch, m, n), math.nan, dtype=torch.bfloat16, device="cuda")
        self.other = torch.empty_like(self.out)

    def ours(self) -> None:
        ops.matmul(self.a, self.b, out=self.out)

    def theirs(self) -> None:
        torch.bmm(self.a, self.b, out=self.other)

    def runs(self) -> dict[str, Callable[[], Any]]:
        return {"tmaasync": self.ours, "torch": self.theirs}

    def check(self) -> None:
        self.ours()
        rows = torch.randint(self.a.shape[1], (64,), device="cuda")
        check(self.out[:, rows], self.a[:, rows], self.b, self.row["case"])


def check(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, case: object) -> None:
    wanted = a.double() @ b.double()
    error = relative_error(got, wanted)
    if not error < TOLERANCE:
        raise SystemExit(f"{case}: relative error {error:.2e}")


def measure(problem: Grouped | KGrouped | Batched, rounds: int) -> dict[str, Any]:
    problem.check()
    runs = problem.runs()
    row = dict(problem.row)
    row |= race(runs, rounds=rounds, reference="torch", seconds_per_slice=0.1)
    row["tflop_per_s"] = tera_per_second(row, problem.operations)
    return row


def grouped_problems() -> Iterator[Grouped]:
    for (groups, rows, n, k), rule in itertools.product(GROUPED, (equal, zipf)):
        yield Grouped(rule.__name__, rule(groups, rows), n, k)
    for groups, rows, n, k in FEW_ROWS:
        yield Grouped("few rows", equal(groups, rows), n, k)


def k_grouped_problems() -> Iterator[KGrouped]:
    for (groups, rows, n, k), rule in itertools.product(GROUPED, (equal, zipf)):
        yield KGrouped(rule.__name__, rule(groups, rows), n, k)


SHAPES = ((2, 256), (2, 192), (2, 128), (1, 256), (1, 128))


def candidates(problem: Grouped | KGrouped | Batched) -> Iterator[TileConfig]:
    """Yield the tile configs that may be the fastest."""
    if isinstance(problem, KGrouped):
        for (consumers, n), group_m in itertools.product(SHAPES, (4, 8, 16)):
            yield TileConfig(consumers, n, 1, group_m)
        yield TileConfig(2, 128, rows=128)
        yield TileConfig(2, 192, rows=128)
        return
    if problem.row.get("kind") == "few rows":
        for consumers, width in itertools.product((1, 2), (16, 32, 64)):
            yield TileConfig(consumers, width, m_major=True)
        return
    for (consumers, n), cluster, group_m in itertools.product(SHAPES, (1, 2), (4, 8, 16)):
        if cluster == 1 or n % 128 == 0:
            yield TileConfig(consumers, n, cluster, group_m)


def sweep(problems: Iterator[Grouped | KGrouped | Batched], rounds: int) -> None:
    """Print the speeds of the tile configs that may win, and of the one that is chosen."""
    for problem in problems:
        results = [(speed(problem, rounds), "chosen")]
        for config in candidates(problem):
            with tile_configs(lambda _, one=config: one):
                results.append((speed(problem, rounds), str(config)))
        print(problem.row["case"])
        for ratio, config in sorted(results, reverse=True)[:8]:
            print(f"  {ratio:.3f} x torch  {config}")
        print(f"  {results[0][0]:.3f} x torch  {results[0][1]}", flush=True)


def speed(problem: Grouped | KGrouped | Batched, rounds: int) -> float:
    """Return the speed over torch."""
    row = measure(problem, rounds)
    return float(row["speed_over_torch"]["tmaasync"]["median"])


def run(section: str, problems: Iterator[Any], rounds: int) -> None:
    with recorded(section) as rows:
        for problem in problems:
            rows.append(measure(problem, rounds))
            print(
                f"{rows[-1]['case']:48s} {rows[-1]['tflop_per_s']['tmaasync']:6.1f} TFLOP/s  "
                f"{speed_text(rows[-1], 'torch')}",
                flush=True,
            )
    for kind in dict.fromkeys(row.get("kind", "batched") for row in rows):
        alike = [row for row in rows if row.get("kind", "batched") == kind]
        print(f"geometric mean, {kind}: {geometric_mean(alike, 'torch'):.3f} x torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("grouped", "k_grouped", "batched"))
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    sections: dict[str, Iterator[Any]] = {
        "grouped": grouped_problems(),
        "k_grouped": k_grouped_problems(),
        "batched": (Batched(*case) for case in BATCHED),
    }
    for kind in [options.only] if options.only else sections:
        if options.sweep:
            sweep(sections[kind], min(options.rounds, 3))
        else:
            run(f"{kind}_matmul", sections[kind], options.rounds)


if __name__ == "__main__":
    main()
