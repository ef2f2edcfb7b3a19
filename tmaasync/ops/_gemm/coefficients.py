"""Coefficients of the GEMM cost models; h200.toml has the unit, script and date of each."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints


@dataclass(frozen=True)
class GemmCoefficients:
    multiply_adds: float
    loads_to_time: tuple[float, float]
    exposed_depth: int
    store_depth: Mapping[int, int]
    large_consumers: float
    busiest_exponent: float
    multiply_add_energy: float
    loads_to_energy: float
    exposed_store_depth: int
    late_start: float
    most_late: float
    waves_to_share: int


@dataclass(frozen=True)
class SplitKCoefficients:
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
    """The coefficients of the file, section by section."""

    gemm: GemmCoefficients
    split_k: SplitKCoefficients
    grid: GridCoefficients
    epilogue: EpilogueCoefficients
    scaled: ScaledCoefficients
    conv2d: Conv2dCoefficients
    multicast: MulticastCoefficients

    @classmethod
    def read(cls, path: Path) -> Coefficients:
        """Read a file; each section must have exactly the entries of its class."""
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(
            **{
                name: section(**{key: _value(entry) for key, entry in sections[name].items()})
                for name, section in get_type_hints(cls).items()
            }
        )


def _value(entry: Mapping[str, Any]) -> Any:
    """Return a number, or a table keyed by all columns but the last."""
    value = entry["value"]
    if "columns" in entry:
        return {row[0] if len(row) == 2 else tuple(row[:-1]): row[-1] for row in value}
    return tuple(value) if isinstance(value, list) else value


COEFFICIENTS = Path(__file__).with_name("h200.toml")
"""Numbers of an H200. They choose as well on an H100: docs/decisions/gemm.md, "H100"."""


@functools.cache
def coefficients() -> Coefficients:
    return Coefficients.read(COEFFICIENTS)
