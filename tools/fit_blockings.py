"""Fits the model of products under the power limit to the recorded times of blockings.

Reads section "blockings" of benchmarks/results/*.json, which benchmarks/sweep_blockings.py writes,
and prints the constants that tmaasync/ops/gemm/blocking.py has.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm.blocking import busiest_work, loads, of_other_form

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
MULTIPROCESSORS = 132
LEAST_WORK = 4e9  # multiply-adds of a product that is under the power limit
STORES = range(0, 300, 10)


class Fit(NamedTuple):
    """Constants of the model, and how far it is off."""

    busiest: float
    """The exponent of the busiest multiprocessor's work."""
    loads_to_energy: float
    other_forms: float
    stores_alone: int
    error: float
    """Root of the mean square, relative."""


def fitted(rows: list[dict[str, Any]]) -> Fit:
    """The least squares of the logarithms: each product may have a factor of its own."""
    return min(map(_fitted_with, [rows] * len(STORES), STORES), key=lambda fit: fit.error)


def _fitted_with(rows: list[dict[str, Any]], stores_alone: int) -> Fit:
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


def _lines(row: dict[str, Any], stores_alone: int) -> Iterator[list[float]]:
    """Of each blocking the logarithms of what the model multiplies, and of its time."""
    for entry in row["blockings"]:
        blocking = Blocking(**{name: value for name, value in entry.items() if name != "us"})
        clusters = blocking.clusters(row["m"], row["n"])
        rounds = -(-clusters // blocking.clusters_at_once(MULTIPROCESSORS))
        work = busiest_work(blocking, row["k"], rounds, stores_alone)
        is_other = float(of_other_form(blocking))
        yield [float(np.log(work)), loads(blocking), is_other, float(np.log(entry["us"]))]


def sections(results: Path = RESULTS) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The recorded rows of every GPU, by the name of its file."""
    for path in sorted(results.glob("*.json")):
        whole = json.loads(path.read_text())
        if "blockings" in whole:
            yield path.stem, whole["blockings"]["rows"]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for gpu, rows in sections():
        print(gpu)
        for name, value in fitted(rows)._asdict().items():
            print(f"  {name:16s} {value:.3f}")


if __name__ == "__main__":
    main()
