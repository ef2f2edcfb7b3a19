"""Fits the cost model of matmuls under the power limit to the recorded times of tile configs.

Reads section "tile_configs" of benchmarks/results, which benchmarks/sweep_tile_configs.py writes,
and prints the constants that tmaasync/ops/gemm/blocking.py has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm.blocking import busiest_work, loads, of_other_form

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from result_files import RESULTS, Row, sections

MULTIPROCESSORS = 132
LEAST_WORK = 4e9  # multiply-adds of a matmul that is under the power limit
STORES = range(0, 300, 10)


class Fit(NamedTuple):
    """Constants of the cost model, and its error."""

    busiest: float
    """The exponent of the busiest SM's work."""
    loads_to_energy: float
    other_forms: float
    stores_alone: int
    error: float
    """Root of the mean square, relative."""


def fitted(rows: list[Row]) -> Fit:
    """Return the least-squares fit of the logarithms; each matmul may have a factor of its own."""
    return min(map(_fitted_with, [rows] * len(STORES), STORES), key=lambda fit: fit.error)


def _fitted_with(rows: list[Row], stores_alone: int) -> Fit:
    powers, times = [], []
    for row in rows:
        if row["m"] * row["n"] * row["k"] < LEAST_WORK:
            continue
        lines = np.array(list(_lines(row, stores_alone)))
        lines -= lines.mean(axis=0)
        powers.append(lines[:, :-1])
        times.append(lines[:, -1])
    matrix, wanted = np.concatenate(powers), np.concatenate(times)
    found = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    error = float(np.sqrt(np.mean((matrix @ found - wanted) ** 2)))
    busiest, energy, other = found.tolist()
    return Fit(busiest, energy, float(np.exp(-other)), stores_alone, error)


def _lines(row: Row, stores_alone: int) -> Iterator[list[float]]:
    """Yield, for each tile config, the logarithms of the cost model's factors and of its time."""
    for entry in row["tile_configs"]:
        blocking = Blocking(**{name: value for name, value in entry.items() if name != "us"})
        clusters = blocking.clusters(row["m"], row["n"])
        rounds = -(-clusters // blocking.clusters_at_once(MULTIPROCESSORS))
        work = busiest_work(blocking, row["k"], rounds, stores_alone)
        is_other = float(of_other_form(blocking))
        yield [float(np.log(work)), loads(blocking), is_other, float(np.log(entry["us"]))]


def recorded(results: Path = RESULTS) -> Iterator[tuple[str, list[Row]]]:
    """Yield every GPU's folder and its rows."""
    for gpu, name, section in sections(results):
        if name == "tile_configs":
            yield gpu, section.rows


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for gpu, rows in recorded():
        print(gpu)
        for name, value in fitted(rows)._asdict().items():
            print(f"  {name:16s} {value:.3f}")


if __name__ == "__main__":
    main()
