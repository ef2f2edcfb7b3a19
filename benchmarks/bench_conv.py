"""ops.conv2d against cuDNN (torch's conv2d on channels_last tensors, cudnn.benchmark on).

Writes section "conv2d" of the results. Inputs are normally distributed: on zeros the chip
would clock higher. With --sweep it writes nothing and prints what every tile config reaches.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import torch
from race import geometric_mean, race, record, relative_error, speed_text, tera_per_second

from tmaasync import _arrays, ops
from tmaasync._tile.window import window_of
from tmaasync.kernel import backend_of
from tmaasync.ops._call_cache import forget
from tmaasync.ops._gemm import tiles as gemm_tiles
from tmaasync.ops._gemm.coefficients import coefficients
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.cost_model import choose_conv2d_config
from tmaasync.ops._gemm.epilogue import Epilogue
from tmaasync.ops._gemm.tiles import conv2d_kernel, conv2d_tiles
from tmaasync.ops._operation import tile_configs

TOLERANCE = 4e-3  # of one rounding to bfloat16, relative to the Frobenius norm, with room


@dataclass(frozen=True)
class Case:
    """N square images of C channels, K square filters."""

    n: int
    c: int
    k: int
    side: int
    taps: int = 3
    stride: int = 1
    dilation: int = 1
    epilogue: bool = False

    @property
    def padding(self) -> int:
        return self.taps // 2 * self.dilation

    @property
    def outputs(self) -> int:
        """Return the output pixels along one side."""
        reach = (self.taps - 1) * self.dilation
        return (self.side + 2 * self.padding - reach - 1) // self.stride + 1

    @property
    def flop(self) -> int:
        return 2 * self.n * self.outputs**2 * self.k * self.taps**2 * self.c

    @property
    def label(self) -> str:
        parts = [
            f"bfloat16 {self.n} x {self.side}^2, {self.c} -> {self.k}, {self.taps}x{self.taps}"
        ]
        parts += [f"stride {self.stride}"] * (self.stride > 1)
        parts += [f"dilation {self.dilation}"] * (self.dilation > 1)
        parts += ["bias and ReLU"] * self.epilogue
        return ", ".join(parts)

    @property
    def window(self) -> dict[str, int]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}


# The target shapes; then others that networks have.
TARGETS = (
    Case(128, 128, 128, 28),
    Case(128, 256, 256, 14),
    Case(32, 320, 320, 64),
    Case(32, 640, 640, 32),
    Case(32, 1280, 1280, 16),
    Case(32, 256, 512, 56, stride=2),
)
OTHERS = (
    Case(128, 64, 64, 56),
    Case(128, 512, 512, 7),
    Case(128, 256, 64, 56, taps=1),
    Case(128, 64, 256, 56, taps=1),
    Case(16, 256, 256, 64, dilation=2),
    Case(32, 640, 640, 32, epilogue=True),
    Case(128, 8, 64, 224, taps=7, stride=2),
    Case(128, 32, 64, 112, stride=2),
    Case(64, 96, 96, 56),
)


@dataclass
class Arrays:
    """The operands and outputs of a case, checked; ours and torch's are the same memory."""

    case: Case

    def __post_init__(self) -> None:
        case = self.case
        self.images = torch.randn(case.n, case.side, case.side, case.c, device="cuda").bfloat16()
        self.filters = torch.randn(case.k, case.taps, case.taps, case.c, device="cuda").bfloat16()
        self.bias = torch.randn(case.k, device="cuda").bfloat16() if case.epilogue else None
        shape = (case.n, case.outputs, case.outputs, case.k)
        self.out = torch.full(shape, math.nan, dtype=torch.bfloat16, device="cuda")

    def ours(self) -> Any:
        activation = "relu" if self.case.epilogue else None
        options = {"bias": self.bias, "activation": activation, "out": self.out}
        return ops.conv2d(self.images, self.filters, **options, **self.case.window)

    def theirs(self) -> Any:
        images, filters = (array.permute(0, 3, 1, 2) for array in (self.images, self.filters))
        out = torch.nn.functional.conv2d(images, filters, self.bias, **self.case.window)
        return out.relu_() if self.case.epilogue else out

    def check(self) -> None:
        """Compare with float64 on the GPU, on the last image."""
        self.out.fill_(math.nan)
        got = self.ours()[-1:]
        images, filters = (
            array.double().permute(0, 3, 1, 2) for array in (self.images[-1:], self.filters)
        )
        bias = None if self.bias is None else self.bias.double()
        wanted = torch.nn.functional.conv2d(images, filters, bias, **self.case.window)
        wanted = (wanted.relu() if self.case.epilogue else wanted).permute(0, 2, 3, 1)
        error = relative_error(got, wanted)
        if not error < TOLERANCE or bool(self.out.isnan().any()):
            raise SystemExit(f"{self.case.label}: relative error {error:.2e}")


def measure(arrays: Arrays, rounds: int, seconds_per_slice: float = 0.1) -> dict[str, Any]:
    case = arrays.case
    arrays.check()
    candidates = {"tmaasync": arrays.ours, "torch": arrays.theirs}
    row: dict[str, Any] = {"case": case.label}
    row |= race(candidates, rounds=rounds, reference="torch", seconds_per_slice=seconds_per_slice)
    row["tflop_per_s"] = tera_per_second(row, case.flop)
    return row


def report(row: dict[str, Any]) -> str:
    return f"{row['tflop_per_s']['tmaasync']:6.1f} TFLOP/s  {speed_text(row, 'torch')}"


# --- the sweep --------------------------------------------------------------------------------


def sweep(rounds: int) -> None:
    """Race every tile config of every shape; then the best with other group_m and stages."""
    candidates = [
        TileConfig(consumers, n, cluster, rows=rows)
        for (consumers, rows, n), cluster in itertools.product(
            coefficients().conv2d.throughput, (1, 2, 4)
        )
    ]
    compile_all(candidates)
    for case in TARGETS:
        arrays = Arrays(case)
        found = swept(arrays, candidates, rounds)
        others = [
            changed
            for _, config, _ in found[:2]
            for changed in (
                *(replace(config, group_m=group_m) for group_m in (1, 2, 4, 16, 32)),
                replace(config, max_stages=config.stages - 1),
            )
        ]
        compile_all(others)
        found = sorted(found[:6] + swept(arrays, others, rounds), key=lambda one: -one[0])
        occupancy = Occupancy.of(backend_of(cupy.cuda.Device().id))
        chosen = choose_conv2d_config(case.n * case.outputs**2, case.k, occupancy)
        print(f"{case.label}: ops.conv2d takes {chosen}")
        for _, config, line in found[:12]:
            print(f"  {line}  {config}", flush=True)


def sweep_chunks(rounds: int) -> None:
    """Time every width of chunks, for few channels and for channels with a remainder."""
    for channels in (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 160):
        arrays = Arrays(Case(64, channels, 128, 56))
        for chunk in (16, 32, 64):
            gemm_tiles.choose_channels_per_box = lambda _, chunk=chunk: chunk
            forget()
            print(f"{channels:4d} in {chunk}: {report(measure(arrays, rounds, 0.02))}", flush=True)


def swept(
    arrays: Arrays, configs: Iterable[TileConfig], rounds: int
) -> list[tuple[float, TileConfig, str]]:
    """Return what each tile config reaches, the fastest first."""
    results = []
    for config in configs:
        with tile_configs(lambda _, one=config: one):
            row = measure(arrays, rounds, seconds_per_slice=0.02)
        results.append((row["speed_over_torch"]["tmaasync"]["median"], config, report(row)))
    return sorted(results, key=lambda one: -one[0])


def compile_all(configs: Iterable[TileConfig]) -> None:
    """Compile on every core, into the cache."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, configs))


def compiled(config: TileConfig, channels: int = 64) -> object:
    images, filters = (
        _arrays.view(np.zeros(shape, ml_dtypes.bfloat16))
        for shape in ((1, 4, 4, channels), (8, 3, 3, channels))
    )
    out = _arrays.view(np.zeros((16, 64), ml_dtypes.bfloat16))
    tiles = conv2d_tiles(images, filters, out, window_of(2, (3, 3), 1, 1, 1), config)
    types = [tile.cuda_type for tile in tiles]
    return conv2d_kernel(types, images.element.cuda_type, Epilogue(), config).compile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="the target shapes only")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument(
        "--chunks", action="store_true", help="few channels, in chunks of any width"
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    if options.sweep:
        sweep(min(options.rounds, 3))
        return
    if options.chunks:
        sweep_chunks(min(options.rounds, 3))
        return
    rows = []
    for case in TARGETS if options.short else (*TARGETS, *OTHERS):
        rows.append(measure(Arrays(case), options.rounds))
        print(f"{case.label:56s} {report(rows[-1])}", flush=True)
    print(f"geometric mean {geometric_mean(rows, 'torch'):.3f} x torch")
    print(f"of the target shapes {geometric_mean(rows[: len(TARGETS)], 'torch'):.3f} x torch")
    print(record("conv2d", rows))


if __name__ == "__main__":
    main()
