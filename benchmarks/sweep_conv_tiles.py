"""Tile configs of ops.conv2d for layers of few filters or channels, against cuDNN."""

from __future__ import annotations

import itertools
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from bench_conv import Arrays, Case, compiled
from race import relative_error

from tmaasync import ops
from tmaasync._timing import device_microseconds
from tmaasync.errors import TMAError
from tmaasync.ops._call_cache import forget
from tmaasync.ops._gemm import tiles as gemm_tiles
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._operation import tile_configs

FORMS = (
    (2, 128, False),
    (2, 64, False),
    (3, 64, False),
    (1, 64, False),
    (2, 64, True),
    (2, 128, True),
)


def configs(widths: tuple[int, ...], clusters: tuple[int, ...] = (1, 2)) -> list[TileConfig]:
    return [
        TileConfig(consumers, n, cluster, rows=rows, ping_pong=pp)
        for (consumers, rows, pp), n, cluster in itertools.product(FORMS, widths, clusters)
        if rows * n <= 128 * 192 and (consumers < 3 or n <= 192)
    ]


@dataclass
class Folded(Arrays):
    """Pairs of pixels as one of twice the channels: stride 2 becomes 1 along the rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        n, h, w, c = self.images.shape
        k, r, s, _ = self.filters.shape
        self.pairs = self.images.view(n, h, w // 2, 2 * c)
        wide = torch.zeros(k, r, s + 1, c, device="cuda", dtype=torch.bfloat16)
        wide[:, :, 1:] = self.filters
        self.wide = wide.view(k, r, (s + 1) // 2, 2 * c)

    def ours(self) -> Any:
        before = (self.case.padding + 1) // 2
        after = self.case.outputs - self.pairs.shape[2] - before + self.wide.shape[2] - 1
        sides = (self.case.padding, self.case.padding), (before, after)
        return ops.conv2d(self.pairs, self.wide, out=self.out, stride=(2, 1), padding=sides)


@dataclass
class Matmul(Arrays):
    """A layer of 1x1 filters as ops.matmul."""

    def ours(self) -> Any:
        case = self.case
        a = self.images.view(-1, case.c)
        ops.matmul(a, self.filters.view(case.k, case.c).T, out=self.out.view(-1, case.k))
        return self.out


def compiled_or_none(job: tuple[TileConfig, int]) -> None:
    with suppress(TMAError):
        compiled(*job)


def check(arrays: Arrays, wanted: Any) -> None:
    arrays.out.fill_(math.nan)
    got = arrays.ours()[-1:]
    error = relative_error(got, wanted)
    if not error < 4e-3 or bool(arrays.out.isnan().any()):
        raise ValueError(f"{arrays.case.label}: relative error {error:.2e}")


# Layer, how ops reach it, channels of a box (0: as chosen), tile configs.
JOBS: tuple[tuple[Case, type[Arrays], int, list[TileConfig]], ...] = (
    (Case(128, 8, 64, 224, taps=7, stride=2), Arrays, 0, []),
    (Case(128, 8, 64, 224, taps=7, stride=2), Folded, 16, configs((64,))),
    (Case(128, 32, 64, 112, stride=2), Folded, 64, configs((64,))),
    (Case(64, 96, 96, 56), Arrays, 32, configs((96,))),
    (Case(64, 96, 96, 56), Arrays, 64, configs((96,))),
    (Case(128, 64, 64, 56), Arrays, 64, configs((64,), (1, 2, 4))),
    (Case(128, 32, 64, 112, stride=2), Arrays, 32, configs((64,))),
    (Case(128, 64, 256, 56, taps=1), Matmul, 0, []),
    (Case(128, 64, 256, 56, taps=1), Arrays, 64, configs((256, 128, 64))),
    (Case(128, 256, 64, 56, taps=1), Arrays, 64, configs((64,))),
)
AS_CHOSEN = gemm_tiles.choose_channels_per_box


def set_box(box: int) -> None:
    gemm_tiles.choose_channels_per_box = (lambda _: box) if box else AS_CHOSEN


def compile_all() -> None:
    """Compile on every core, into the cache; what fails is reported when it is timed."""
    for box in (16, 32, 64):
        set_box(box)
        mine = dict.fromkeys((c, box) for _, _, of, found in JOBS if of == box for c in found)
        with ThreadPoolExecutor() as pool:
            list(pool.map(compiled_or_none, mine))


def sweep(arrays: Arrays, found: list[TileConfig]) -> list[tuple[float, float, str]]:
    case = arrays.case
    nchw = (array.double().permute(0, 3, 1, 2) for array in (arrays.images[-1:], arrays.filters))
    wanted = torch.nn.functional.conv2d(*nchw, None, **case.window).permute(0, 2, 3, 1)
    arrays.theirs()
    results = []
    for config in [None, *found]:
        forget()
        chosen = nullcontext() if config is None else tile_configs(lambda _, one=config: one)
        try:
            with chosen:
                check(arrays, wanted)
                results.append((*timed(arrays), name_of(config)))
        except (TMAError, ValueError) as error:
            print("  failed", name_of(config), str(error)[:200], flush=True)
    return sorted(results)


def name_of(config: TileConfig | None) -> str:
    if config is None:
        return "as chosen"
    form = f"{config.consumers}x{config.rows} n{config.block_n} cluster {config.cluster}"
    return f"{form}{' ping-pong' * config.ping_pong}, {config.stages} stages"


def main() -> None:
    until = time.monotonic() + float(sys.argv[1])
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    compile_all()
    for case, kind, box, found in JOBS:
        if time.monotonic() > until:
            print("out of time before", case.label)
            return
        set_box(box)
        results = sweep(kind(case), found)
        torch.cuda.empty_cache()
        print(f"{case.label} {kind.__name__}, box {box or 'as chosen'}")
        for index, (us, theirs, name) in enumerate(results):
            if index < 6 or name == "as chosen":
                print(
                    f"   {us:8.1f} us, cuDNN {theirs:8.1f} us, {theirs / us:.3f}  {name}",
                    flush=True,
                )


def timed(arrays: Arrays) -> tuple[float, float]:
    calls = 190 if arrays.case.c > 8 else 14
    ours, theirs = [], []
    for _ in range(3):
        ours.append(device_microseconds(arrays.ours, calls))
        theirs.append(device_microseconds(arrays.theirs, calls))
    return sorted(ours)[1], sorted(theirs)[1]


if __name__ == "__main__":
    main()
