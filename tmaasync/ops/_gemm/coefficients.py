"""The numbers of the cost models of GEMMs, chip by chip: unit, script and date of each.

h200.toml has all; another chip's file has those that were measured there, and h200.toml the rest.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

__all__ = ["CHIPS", "FITTED", "Coefficients", "coefficients", "file_of", "nearest_chip"]


@dataclass(frozen=True)
class GemmCoefficients:
    loads_to_time: tuple[float, float]
    exposed_depth: int
    store_depth: Mapping[int, int]
    large_consumers: float
    busiest_exponent: float
    multiply_add_energy: float
    loads_to_energy: float
    exposed_store_depth: int
    waves_to_share: int


@dataclass(frozen=True)
class SplitKCoefficients:
    multiply_adds: float
    memory_bytes: float
    l2_bytes: float
    l2_bytes_split: float
    pipeline_fill: float
    cluster_syncs: float
    cluster_syncs_per_cta: float
    received_bytes: float
    uneven_cluster: float
    min_gain: float


@dataclass(frozen=True)
class GridCoefficients:
    k_block: Mapping[tuple[int, int], float]
    fill: float
    l2_bytes: float
    memory_bytes: float
    combine: float
    combined_bytes: float
    min_gain: float


@dataclass(frozen=True)
class EpilogueCoefficients:
    bias_depth: int
    addend_depth: int
    activation_depth: Mapping[str, int]
    min_ping_pong_columns: int
    widest: Mapping[tuple[int, int], int]
    widest_dividing: Mapping[tuple[int, int], int]
    widest_gelu_tanh: Mapping[tuple[int, int], int]
    widest_gelu_row_bias: Mapping[tuple[int, int], int]
    spilling_dividing: Mapping[tuple[int, int], bool]
    spilling_gelu_addend: Mapping[tuple[int, int], bool]


@dataclass(frozen=True)
class ScaledCoefficients:
    throughput: Mapping[tuple[int, int], float]
    max_skinny_rows: int
    skinny_time: Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Conv2dCoefficients:
    multiply_adds: float
    exposed_store_depth: int
    tiles: Sequence[tuple[int, int, int, bool]]
    spilling: Mapping[tuple[str, int, int, int], bool]
    box_time: float
    row_time: Mapping[int, float]


@dataclass(frozen=True)
class MulticastCoefficients:
    waves_to_share: int


@dataclass(frozen=True)
class Coefficients:
    """The numbers of a chip, section by section; the file has the units."""

    gemm: GemmCoefficients
    split_k: SplitKCoefficients
    grid: GridCoefficients
    epilogue: EpilogueCoefficients
    scaled: ScaledCoefficients
    conv2d: Conv2dCoefficients
    multicast: MulticastCoefficients

    @classmethod
    def read(cls, path: Path, over: Path | None = None) -> Coefficients:
        """Read a file; the entries of a second one replace its own.

        Each section has the entries of its class and no others.
        """
        sections = tomllib.loads(path.read_text())
        for name, entries in {} if over is None else tomllib.loads(over.read_text()).items():
            sections[name] |= entries
        return cls(
            **{
                name: section(**{key: _value(entry) for key, entry in sections[name].items()})
                for name, section in get_type_hints(cls).items()
            }
        )


def _value(entry: Mapping[str, Any]) -> Any:
    """Return a number, or a table by the columns before its last."""
    value = entry["value"]
    if "columns" in entry:
        return {row[0] if len(row) == 2 else tuple(row[:-1]): row[-1] for row in value}
    return tuple(value) if isinstance(value, list) else value


FITTED = "h200"
"""The chip that every number was measured on."""

CHIPS = {"h200": 4.9e12, "h100": 3.35e12}
"""Bytes a second of each chip's memory, by which a device is recognised."""


def nearest_chip(memory_bytes_per_s: float) -> str:
    """Return the chip whose memory is closest in bandwidth.

    A driver that reports no memory clock gets `FITTED`.

    >>> [nearest_chip(bandwidth) for bandwidth in (4.92e12, 3.35e12, 2.04e12)]
    ['h200', 'h100', 'h100']
    """
    if memory_bytes_per_s <= 0:
        return FITTED
    return min(CHIPS, key=lambda chip: abs(math.log(CHIPS[chip] / memory_bytes_per_s)))


def file_of(chip: str) -> Path:
    return Path(__file__).with_name(f"{chip}.toml")


@functools.cache
def coefficients(chip: str = FITTED) -> Coefficients:
    return Coefficients.read(file_of(FITTED), None if chip == FITTED else file_of(chip))
