"""ops.conv2d against cuDNN (torch's conv2d on channels_last tensors, cudnn.benchmark on).

Writes section "conv2d" of the results. Inputs are normally distributed: on zeros the chip
would clock higher. With --sweep it writes nothing, and prints what other tile configs, boxes and
folds reach.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import torch
from race import (
    captured,
    geometric_mean,
    race,
    recorded,
    relative_error,
    speed_text,
    tera_per_second,
)

from tmaasync import _arrays, ops
from tmaasync._tile.window import Window, window_of
from tmaasync.kernel import backend_of
from tmaasync.ops import _conv2d
from tmaasync.ops._call_cache import forget
from tmaasync.ops._gemm.config import Occupancy
from tmaasync.ops._gemm.conv2d_forms import Conv2dForm, FoldedConvolution, ranked_conv2d_forms
from tmaasync.ops._gemm.conv2d_tiles import conv2d_kernel, conv2d_tiles
from tmaasync.ops._gemm.epilogue import Epilogue

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

BEST = 12  # forms of a layer that are raced, and the best of each box and fold


def sweep(cases: Iterable[Case], rounds: int) -> None:
    """Race the forms that the cost model has for the best, with each other and with cuDNN."""
    forms = {case: candidates(case) for case in cases}
    with ThreadPoolExecutor() as pool:
        for case, found in forms.items():
            list(pool.map(compiled, itertools.repeat(case), found))
    for case, found in forms.items():
        arrays = Arrays(case)
        runs = {name_of(form): captured_as(arrays, form) for form in found}
        row = race({**runs, "torch": arrays.theirs}, rounds=rounds, reference="torch")
        print(f"{case.label}: cuDNN {row['us']['torch']:.1f} us; the choice is {next(iter(runs))}")
        speeds = {name: row["speed_over_torch"][name]["median"] for name in runs}
        for name in sorted(speeds, key=lambda name: -speeds[name]):
            print(f"  {speeds[name]:.3f} x cuDNN, {row['us'][name]:.1f} us: {name}", flush=True)
        torch.cuda.empty_cache()


def candidates(case: Case) -> list[Conv2dForm]:
    """Return the best forms, and the best of each box and fold; the choice first."""
    ranked = ranked_conv2d_forms(
        (case.n, case.side, case.side, case.c), case.k, window_over(case), device_occupancy()
    )
    best_of = {(form.fold, form.channels_per_box): form for form in reversed(ranked)}
    return list(dict.fromkeys((*ranked[:BEST], *best_of.values())))


def window_over(case: Case) -> Window:
    taps = (case.taps, case.taps)
    return window_of(2, taps, case.stride, case.dilation, case.padding)


def device_occupancy() -> Occupancy:
    return Occupancy.of(backend_of(cupy.cuda.Device().id))


def name_of(form: Conv2dForm) -> str:
    config = form.config
    kind = "ping-pong" if config.ping_pong else "cooperative"
    tile = f"{config.consumers} x {config.rows} rows, {config.block_n} columns, {kind}"
    return f"{tile}, boxes of {form.channels_per_box} channels, {form.fold} pixels as one"


def captured_as(arrays: Arrays, form: Conv2dForm) -> Callable[[], None]:
    """Capture the convolution in a form, checked, in a CUDA graph."""
    ranked = _conv2d.ranked_conv2d_forms
    _conv2d.ranked_conv2d_forms = lambda *_, **__: [form]
    forget()
    try:
        arrays.check()
        return captured([arrays.ours])
    finally:
        _conv2d.ranked_conv2d_forms = ranked
        forget()


def compiled(case: Case, form: Conv2dForm) -> object:
    """Put a form's kernel, without an epilogue, into the cache of compiled kernels."""
    images, filters, out = (
        _arrays.view(np.zeros(shape, ml_dtypes.bfloat16))
        for shape in (
            (1, case.side, case.side, case.c),
            (case.k, case.taps, case.taps, case.c),
            (case.outputs**2, case.k),
        )
    )
    window, offset = window_over(case), None
    if form.fold > 1:
        images, filters, window, offset = FoldedConvolution.of(images, filters, window, form.fold)
    tiles = conv2d_tiles(images, filters, out, window, form.config, form.channels_per_box)
    types = [tile.cuda_type for tile in tiles]
    return conv2d_kernel(types, "bf16", Epilogue(), form.config, offset).compile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="layers whose label has this text")
    parser.add_argument("--sweep", action="store_true", help="race tile configs, boxes and folds")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    cases = [case for case in (*TARGETS, *OTHERS) if options.only in case.label]
    if options.sweep:
        sweep(cases, min(options.rounds, 3))
        return
    with recorded("conv2d", is_part=bool(options.only)) as rows:
        for case in cases:
            rows.append(measure(Arrays(case), options.rounds))
            print(f"{case.label:56s} {report(rows[-1])}", flush=True)
    print(f"geometric mean {geometric_mean(rows, 'torch'):.3f} x torch")
    if not options.only:
        print(f"of the target shapes {geometric_mean(rows[: len(TARGETS)], 'torch'):.3f} x torch")


if __name__ == "__main__":
    main()
