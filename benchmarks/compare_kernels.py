"""The kernels of two checkouts in one process, interleaved: does a change cost speed?

    python benchmarks/compare_kernels.py OTHER [--only attention ...] [--case causal] [--rounds 6]

Python code, tile configs and arrays are this checkout's for both; calls run as CUDA graphs, so that
the host does not count. Both have to write the same bits. Writes section "compared_kernels" of the
results: the speed over the other checkout's kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import statistics
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import attention_cases
import bench_attention
import bench_conv
import bench_grouped
import bench_matmul
import bench_matmul_epilogue
import bench_scaled_matmul
import torch
from race import captured, race, record

from tmaasync import ops
from tmaasync._source import paths
from tmaasync.ops import _call_cache, _operation

OURS = Path(__file__).resolve().parents[1]
LAUNCHES = 4
CUBES = (1024, 2048, 4096, 8192, 16384, 4095)
ROWS = (1, 16, 64, 128, 512, 4096)


class Work(NamedTuple):
    """One call of an operation, and the array that it writes."""

    label: str
    run: Callable[[], Any]
    out: torch.Tensor


# --- cases ----------------------------------------------------------------------------------------


def matmul() -> Iterator[Work]:
    shapes = [(side, side, side) for side in CUBES]
    shapes += [(m, n, k) for n, k in ((4096, 14336), (7168, 16384)) for m in ROWS]
    cases = [bench_matmul.Case(*shape) for shape in shapes]
    cases += [bench_matmul.Case(4096, 4096, 4096, torch.float16)]
    for case in cases:
        operands = bench_matmul.Operands.random(case)
        yield Work(case.label, operands.multiply, operands.ours)


def matmul_epilogue() -> Iterator[Work]:
    shape = (8192, 8192, 4096)
    for label, runs, _ in bench_matmul_epilogue.epilogues(*shape):
        run = runs["tmaasync"]
        yield Work(label, run, run())
    for make in (bench_matmul_epilogue.int8, bench_matmul_epilogue.tf32):
        run = make(*shape)[0]["tmaasync"]
        yield Work(make.__name__, run, run())


def grouped_matmul() -> Iterator[Work]:
    for grouped in bench_grouped.grouped_problems():
        yield Work(str(grouped.row["case"]), grouped.ours, grouped.out)
    for shape in bench_grouped.BATCHED:
        batched = bench_grouped.Batched(*shape)
        yield Work(str(batched.row["case"]), batched.ours, batched.out)


def fp8_matmul() -> Iterator[Work]:
    for make in (bench_scaled_matmul.tensor_case, bench_scaled_matmul.block_case):
        for shape in ((4096, 7168, 2048), (4096, 4096, 7168), (128, 24576, 1536)):
            runs, out = make(*shape)
            yield Work(f"{make.__name__} {shape}", runs["tmaasync"], out)


def conv2d() -> Iterator[Work]:
    for case in (*bench_conv.TARGETS, *bench_conv.OTHERS):
        arrays = bench_conv.Arrays(case)
        yield Work(case.label, arrays.ours, arrays.out)


def attention() -> Iterator[Work]:
    for case in attention_cases.cases(short=False):
        arrays = case.arrays()
        out = torch.full_like(arrays[0], torch.nan)
        run = functools.partial(ops.attention, *arrays, causal=case.causal, out=out)
        yield Work(case.label, run, out)


def attention_float8() -> Iterator[Work]:
    for case in attention_cases.float8_cases(short=True):
        made = [bench_attention.in_float8(array) for array in case.arrays()]
        operands, scales = zip(*made, strict=True)
        out = torch.full(operands[0].shape, torch.nan, dtype=torch.bfloat16, device="cuda")
        run = functools.partial(
            ops.attention, *operands, causal=case.causal, scales=scales, out=out
        )
        yield Work(f"float8, {case.label}", run, out)


def varlen_attention() -> Iterator[Work]:
    for batch in attention_cases.batches():
        shape = (sum(batch.lengths), batch.heads, batch.head_dim)
        q, k, v = (torch.randn(*shape, device="cuda").bfloat16() for _ in range(3))
        lengths = torch.tensor([0, *batch.lengths], device="cuda").cumsum(0).int()
        longest, out = max(batch.lengths), torch.full_like(q, torch.nan)
        packed = (lengths, lengths, longest, longest)
        options = {"causal": batch.causal, "out": out}
        label = f"{batch.name}, {'causal' if batch.causal else 'full'}"
        yield Work(label, functools.partial(ops.varlen_attention, q, k, v, *packed, **options), out)
        (k, v), table = bench_attention.paged_from([k, v], batch.lengths, 128)
        run = functools.partial(ops.varlen_attention, q, k, v, *packed, page_table=table, **options)
        yield Work(f"{label}, paged", run, out)


def copies() -> Iterator[Work]:
    source = torch.randn(1 << 28, device="cuda")
    target = torch.full_like(source, torch.nan)
    yield Work("copy of 1 GiB", functools.partial(ops.copy, source, target), target)
    views = [whole.view(16384, 16384)[:, :8192] for whole in (source, target)]
    yield Work("copy of a window", functools.partial(ops.copy, *views), target)
    padded = source.bfloat16().view(64, 1024, 32, 128)
    lengths = torch.randint(1024, (65,), device="cuda").cumsum(0).int()
    lengths -= lengths[0].clone()
    packed = torch.zeros(int(lengths[-1]), 32, 128, dtype=torch.bfloat16, device="cuda")
    store = functools.partial(ops.ragged_store, padded, cu_seqlens=lengths, out=packed)
    yield Work("ragged_store", store, packed)
    spread = torch.full_like(padded, torch.nan)
    load = functools.partial(ops.ragged_load, packed, cu_seqlens=lengths, out=spread)
    yield Work("ragged_load", load, spread)


GROUPS: tuple[Callable[[], Iterator[Work]], ...] = (
    attention,
    varlen_attention,
    attention_float8,
    matmul,
    matmul_epilogue,
    grouped_matmul,
    fp8_matmul,
    conv2d,
    copies,
)


# --- two checkouts --------------------------------------------------------------------------------


@contextlib.contextmanager
def kernels_of(checkout: Path) -> Iterator[list[object]]:
    """Have operations inside the ``with`` compile and launch the kernels of this checkout.

    At the end the list has what captured launches use: modules and workspaces.
    """
    alive: list[object] = []
    before = paths.kernels_dir, _operation._kernel
    paths.kernels_dir = lambda: checkout / "kernels"
    _operation._kernel = functools.cache(before[1].__wrapped__)
    _call_cache.forget()
    try:
        yield alive
    finally:
        alive += [
            _operation._kernel,
            *(
                dict(each._operations)
                for each in _call_cache._CACHES
                if isinstance(each, _call_cache.CallCache)
            ),
        ]
        paths.kernels_dir, _operation._kernel = before
        _call_cache.forget()


def compare(work: Work, other: Path, rounds: int) -> dict[str, Any]:
    graphs, written, alive = {}, [], []
    for name, checkout in (("tmaasync", OURS), ("other", other)):
        with kernels_of(checkout) as used:
            graphs[name] = captured([work.run] * LAUNCHES)
        alive.append(used)
        work.out.view(torch.uint8).fill_(0xA5)
        graphs[name]()
        written.append(work.out.view(torch.uint8).clone())
    row: dict[str, Any] = {"case": work.label, "same_bits": torch.equal(*written)}
    if rounds:
        row |= race(graphs, rounds=rounds, reference="other", works_per_call=LAUNCHES)
    return row


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout; "unknown" for a folder that is none."""
    git = ("git", "-C", str(checkout))
    commands = ((*git, "rev-parse", "--show-toplevel"), (*git, "describe", "--always", "--dirty"))
    try:
        root, commit = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit if Path(root) == checkout else "unknown"


def measure(works: Iterator[Work], operation: str, other: Path, rounds: int) -> Iterator[Any]:
    """Yield the rows of an operation's cases, and print each."""
    for work in works:
        row = {"operation": operation, **compare(work, other, rounds)}
        bits = "" if row["same_bits"] else "  OTHER BITS"
        if rounds:
            ratio = row["speed_over_other"]["tmaasync"]
            extremes = f"{ratio['min']:.4f} to {ratio['max']:.4f}"
            bits = f"{row['us']['tmaasync']:10.1f} us  {ratio['median']:.4f} ({extremes}){bits}"
        print(f"{operation:17s} {work.label:56s} {bits}", flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=6, help="0: compile and compare bits alone")
    parser.add_argument("--only", nargs="*", choices=[group.__name__ for group in GROUPS])
    parser.add_argument("--case", default="", help="a regular expression: these cases alone")
    parser.add_argument("--commit", help="of the other checkout, if it is no git repository")
    options = parser.parse_args()
    torch.manual_seed(0)
    other, rows = options.other.resolve(), []
    commit = options.commit or commit_of(other)
    for group in GROUPS:
        if options.only and group.__name__ not in options.only:
            continue
        works = (work for work in group() if re.search(options.case, work.label))
        own = list(measure(works, group.__name__, other, options.rounds))
        rows += [{**row, "other": commit} for row in own]
        if options.rounds and own:
            speeds = [row["speed_over_other"]["tmaasync"]["median"] for row in own]
            mean = statistics.geometric_mean(speeds)
            print(f"{group.__name__}: {mean:.4f} x other (least {min(speeds):.4f}) of {len(own)}")
    if options.rounds:
        print(record("compared_kernels", rows))


if __name__ == "__main__":
    main()
