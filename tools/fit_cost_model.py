"""Fits the cost model of matmuls under the power limit to the recorded times of tile configs.

Reads section "tile_configs" of benchmarks/results, which benchmarks/sweep_tile_configs.py writes on
an H200, and prints the numbers that tmaasync/ops/_gemm/h200.toml has; --write replaces them there.
``--gpu nvidia_h100_80gb_hbm3`` fits to what another GPU recorded, for comparison.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tmaasync.ops._gemm.coefficients import COEFFICIENTS, coefficients
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.legal_tiles import has_large_consumers
from tmaasync.ops._gemm.tensor_time import busiest_sm_work

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from result_files import RESULTS, Row, Section, read_section

FITTED_GPU = "nvidia_h200"
SMS = 132  # of an H100 and of an H200
LEAST_WORK = 4e9  # multiply-adds of a matmul that is under the power limit
STORES = range(0, 300, 10)


class Fit(NamedTuple):
    """Numbers of the cost model by their names in the file, and the error of the fit."""

    busiest_exponent: float
    loads_to_energy: float
    large_consumers: float
    exposed_store_depth: int
    error: float
    """Root of the mean square, relative."""


def fitted(rows: list[Row]) -> Fit:
    """Return the least-squares fit of the logarithms; each matmul may have a factor of its own."""
    return min(map(_fitted_with, [rows] * len(STORES), STORES), key=lambda fit: fit.error)


def _fitted_with(rows: list[Row], exposed_store_depth: int) -> Fit:
    powers, times = [], []
    for row in rows:
        if row.get("batches", 1) * row["m"] * row["n"] * row["k"] < LEAST_WORK:
            continue
        lines = np.array(list(_lines(row, exposed_store_depth)))
        lines -= lines.mean(axis=0)
        powers.append(lines[:, :-1])
        times.append(lines[:, -1])
    matrix, wanted = np.concatenate(powers), np.concatenate(times)
    found = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    error = float(np.sqrt(np.mean((matrix @ found - wanted) ** 2)))
    busiest, energy, other = found.tolist()
    return Fit(busiest, energy, float(np.exp(-other)), exposed_store_depth, error)


def _lines(row: Row, exposed_store_depth: int) -> Iterator[list[float]]:
    """Yield, for each tile config, the logarithms of the cost model's factors and of its time."""
    numbers = replace(coefficients().gemm, exposed_store_depth=exposed_store_depth)
    for entry in row["tile_configs"]:
        config = TileConfig(**{name: value for name, value in entry.items() if name != "us"})
        clusters = row.get("batches", 1) * config.clusters(row["m"], row["n"])
        waves = -(-clusters // Occupancy.estimated(SMS).max_active_clusters(config.cluster_size))
        work = busiest_sm_work(numbers, config, row["k"], waves)
        is_other = float(has_large_consumers(config))
        yield [
            float(np.log(work)),
            config.loads_per_multiply_add,
            is_other,
            float(np.log(entry["us"])),
        ]


def recorded(gpu: str = FITTED_GPU) -> Section:
    """Return the section of a GPU, by its folder of results."""
    return read_section(RESULTS / gpu / "tile_configs.jsonl")


def write(found: Fit, path: Path, date: str) -> None:
    """Replace the values and dates of a fit in a file."""
    text = path.read_text()
    for name, value in found._asdict().items():
        if name != "error":
            text = with_entry(text, f"gemm.{name}", repr(round(value, 3)), date)
    path.write_text(text)


def with_entry(text: str, name: str, value: str, date: str) -> str:
    """Return the file with another value and date in one entry."""
    entry = re.compile(
        rf"(\[{re.escape(name)}\]\n.*?value = )[^\n]*(.*?\ndate = )[^\n]*", re.DOTALL
    )
    changed, count = entry.subn(rf"\g<1>{value}\g<2>{date}", text, count=1)
    if count != 1:
        raise SystemExit(f"{name}: there is no entry of this name")
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default=FITTED_GPU, help="a folder of benchmarks/results")
    parser.add_argument("--write", action="store_true", help="replace the values of the H200")
    options = parser.parse_args()
    if options.write and options.gpu != FITTED_GPU:
        parser.error("--write takes the times of an H200 alone")
    section = recorded(options.gpu)
    found = fitted(section.rows)
    for name, value in found._asdict().items():
        print(f"{name:20s} {value:.3f}")
    if options.write:
        write(found, COEFFICIENTS, section.measured["date"][:10])


if __name__ == "__main__":
    main()
