"""ops.ragged_store and ops.ragged_load against ops.copy of as many bytes. Writes section "ragged".

With ``--sweep`` nothing is written: the pipelines that a block may have are raced, best first.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import numpy as np
from race import geometric_mean, race, recorded, speed_text, tera_per_second

from tmaasync import ops
from tmaasync.ops._copy import CopyPipeline
from tmaasync.ops._operation import tile_configs

LENGTHS: dict[str, Callable[[int, int], Any]] = {
    "all equal": lambda batch, longest: np.full(batch, longest),
    "uniform": lambda batch, longest: np.random.default_rng(0).integers(1, longest + 1, batch),
    "one in eight long": lambda batch, longest: np.where(
        np.arange(batch) % 8 == 0, longest, np.arange(batch) % (longest // 8) + 1
    ),
}
# Rows as (heads, head dim) of 16-bit elements, sequences, the longest.
CASES = (
    ((16, 128), 64, 4096),
    ((16, 128), 1024, 512),
    ((1, 128), 512, 8192),
    ((8, 64), 4096, 256),
    ((32, 128), 16, 16384),
)


class Batch:
    """A padded batch, its sequences packed, and what a copy of as many bytes takes."""

    def __init__(self, row: tuple[int, int], batch: int, longest: int, kind: str) -> None:
        lengths = LENGTHS[kind](batch, longest)
        rows = int(lengths.sum())
        self.label = f"{kind}, {batch} x {longest} rows of {2 * math.prod(row)} bytes"
        self.padded = random_bits((batch, longest, *row))
        self.inside = cupy.asarray(np.arange(longest) < lengths[:, None])
        self.packed = cupy.zeros((rows, *row), cupy.uint16)
        self.spread = cupy.full_like(self.padded, 0xA5)
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
        self.cu_seqlens = cupy.asarray(cu_seqlens.astype(np.int32))

    def store(self) -> None:
        ops.ragged_store(self.padded, cu_seqlens=self.cu_seqlens, out=self.packed)

    def load(self) -> None:
        ops.ragged_load(self.packed, cu_seqlens=self.cu_seqlens, out=self.spread)

    def check(self) -> None:
        self.store()
        self.load()
        filled = cupy.nonzero(self.inside)
        if not bool((self.packed == self.padded[filled]).all()):
            raise SystemExit(f"{self.label}: rows are packed wrong")
        if not bool((self.spread[filled] == self.packed).all()):
            raise SystemExit(f"{self.label}: rows are spread out wrong")
        if bool(self.spread[cupy.nonzero(~self.inside)].any()):
            raise SystemExit(f"{self.label}: there are no zeros after the rows")

    def directions(self) -> Iterator[tuple[str, Callable[[], None], int]]:
        """Yield name, call, and bytes read and written; padding is only written."""
        yield "ragged_store", self.store, 2 * self.packed.nbytes
        yield "ragged_load", self.load, self.packed.nbytes + self.spread.nbytes


def random_bits(shape: tuple[int, ...]) -> Any:
    values = cupy.random.default_rng(0).standard_normal(math.prod(shape) // 2, dtype=cupy.float32)
    return values.view(cupy.uint16).reshape(shape)


def copy_of(size_bytes: int) -> Callable[[], Any]:
    """Return a contiguous copy that reads and writes ``size_bytes`` together."""
    source = random_bits((size_bytes // 64, 16))
    target = cupy.zeros_like(source)
    return lambda: ops.copy(source, target)


def measure(batch: Batch, rounds: int) -> Iterator[dict[str, Any]]:
    batch.check()
    for name, run, size_bytes in batch.directions():
        row: dict[str, Any] = {"case": f"{name}: {batch.label}", "bytes": size_bytes}
        candidates = {"tmaasync": run, "ops.copy": copy_of(size_bytes)}
        row |= race(candidates, rounds=rounds, reference="ops.copy")
        row["tb_per_s"] = tera_per_second(row, size_bytes, 3)
        yield row


def sweep(rounds: int) -> None:
    """Print the geometric mean over the cases for each pipeline."""
    pipelines = [
        CopyPipeline(tile_bytes, stages, ahead, tiles)
        for tile_bytes, stages, tiles in itertools.product(
            (8192, 16384, 32768), (1, 2, 3, 4), (1, 2, 4, 8)
        )
        for ahead in {1, max(1, stages // 2), stages}
        if stages <= tiles + 1
    ]
    batches = [Batch(*case, "uniform") for case in CASES[:3]]
    results = []
    for pipeline in pipelines:
        with tile_configs(lambda _, one=pipeline: one):
            ratios = [
                row["speed_over_ops.copy"]["tmaasync"]["median"]
                for batch in batches
                for row in measure(batch, rounds)
            ]
        results.append((statistics.geometric_mean(ratios), pipeline, ratios))
        print(f"{results[-1][0]:.3f}  {pipeline}  {ratios}", flush=True)
    for mean, pipeline, _ in sorted(results, key=lambda result: -result[0])[:10]:
        print(f"{mean:.3f} x ops.copy  {pipeline}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    if options.sweep:
        sweep(min(options.rounds, 3))
        return
    with recorded("ragged") as rows:
        for case, kind in itertools.product(CASES, LENGTHS):
            for row in measure(Batch(*case, kind), options.rounds):
                rows.append(row)
                print(
                    f"{row['case']:64s} {row['tb_per_s']['tmaasync']:6.3f} TB/s  "
                    f"{speed_text(row, 'ops.copy')}",
                    flush=True,
                )
    print(f"geometric mean {geometric_mean(rows, 'ops.copy'):.3f} x ops.copy")


if __name__ == "__main__":
    main()
