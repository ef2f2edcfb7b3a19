"""Asks the compiler which tile configs of gemm_epilogue.cu spill registers.

Compiles every build that the numbers in tmaasync/ops/_gemm/h200.toml allow, and prints those that
spill. ``--write`` finds the widest tiles anew and replaces them in the file. Either takes hours on
few cores, and needs NVRTC, but no GPU.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import ml_dtypes
import numpy as np
from fit_cost_model import with_entry

from tmaasync import _arrays
from tmaasync.ops._gemm.coefficients import COEFFICIENTS, coefficients
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.epilogue import Activation, BiasSide, Epilogue
from tmaasync.ops._gemm.legal_tiles import CONSUMER_LAYOUTS
from tmaasync.ops._gemm.tiles import gemm_kernel, gemm_tiles

STEP = 16  # columns
OUTPUTS = ("bfloat16", "float32")
SIDES = (BiasSide.COLUMNS, BiasSide.ROWS)
CLASSES = {
    "widest": [
        (Activation.NONE, SIDES),
        (Activation.RELU, SIDES),
        (Activation.GELU, SIDES[:1]),
    ],
    "widest_dividing": [(Activation.SILU, SIDES[:1])],
    "widest_gelu_tanh": [(Activation.GELU_TANH, SIDES)],
    "widest_gelu_row_bias": [(Activation.GELU, SIDES[1:])],
}
"""Entries of the file, and the epilogues that they stand for."""


class Build(NamedTuple):
    """A build of the kernel."""

    config: TileConfig
    epilogue: Epilogue
    output: str

    def spill_bytes(self) -> int:
        operand = _arrays.view(np.zeros((64, 64), np.float16))
        dtype = getattr(ml_dtypes, self.output, self.output)
        out = _arrays.view(np.zeros((64, 64), np.dtype(dtype)))
        tiles = gemm_tiles(operand, operand, out, self.config, False, True)
        types = [tile.cuda_type for tile in tiles]
        kernel = gemm_kernel(types, False, True, self.config, self.epilogue)
        return kernel.compile().entries[kernel.name].spill_bytes


def epilogues(activation: Activation) -> Iterator[Epilogue]:
    """Yield the epilogues with an activation, with and without all that takes registers."""
    for bias, has_addend in itertools.product(SIDES, (False, True)):
        yield Epilogue(bias, activation, is_scaled=True, has_addend=has_addend)


def tile_configs(columns: int) -> Iterator[TileConfig]:
    """Yield the tile configs of this width, alone and in pairs."""
    for form in CONSUMER_LAYOUTS:
        if columns > form.widest:
            continue
        alone = TileConfig(
            form.consumers, columns, group_m=16, rows=form.rows, ping_pong=form.ping_pong
        )
        yield alone
        if not form.ping_pong:
            yield replace(alone, cluster=2, group_m=8)


def builds() -> Iterator[Build]:
    """Yield every build that the numbers allow."""
    for columns, activation in itertools.product(range(STEP, 256 + STEP, STEP), Activation):
        for config, epilogue, output in itertools.product(
            tile_configs(columns), epilogues(activation), OUTPUTS
        ):
            if epilogue.fits(config, 4 if output == "float32" else 2):
                yield Build(config, epilogue, output)


def widest(name: str) -> Iterator[list[int]]:
    """Yield consumers, rows, and the most columns at which no epilogue of a class spills."""
    numbers = getattr(coefficients().epilogue, name)
    for consumers, rows in numbers:
        form = next(
            one for one in CONSUMER_LAYOUTS if (one.consumers, one.rows) == (consumers, rows)
        )
        for columns in range(form.widest, 0, -STEP):
            config = TileConfig(consumers, columns, group_m=16, rows=rows)
            tried = (
                Build(config, Epilogue(bias, activation, is_scaled=True), output)
                for activation, sides in CLASSES[name]
                for bias, output in itertools.product(sides, OUTPUTS)
            )
            if not any(build.spill_bytes() for build in tried):
                yield [consumers, rows, columns]
                break
        else:
            yield [consumers, rows, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="find the widest tiles anew")
    if parser.parse_args().write:
        for name in CLASSES:
            found = list(widest(name))
            print(f"{name}: {found}", flush=True)
            text = with_entry(COEFFICIENTS.read_text(), f"epilogue.{name}", str(found))
            COEFFICIENTS.write_text(text)
        return
    tried = list(builds())
    with ProcessPoolExecutor() as pool:
        spilled = zip(tried, pool.map(Build.spill_bytes, tried, chunksize=8), strict=True)
        wrong = [(build, spill_bytes) for build, spill_bytes in spilled if spill_bytes]
    for build, spill_bytes in wrong:
        print(f"{spill_bytes} bytes: {build}")
    print(f"{len(wrong)} of {len(tried)} builds spill")


if __name__ == "__main__":
    main()
