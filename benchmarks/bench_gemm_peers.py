"""ops.matmul and ops.scaled_matmul against DeepGEMM or QuACK, where it is installed.

Writes sections "matmul_PEER" (bf16; cuBLAS is in the same race) and, with DeepGEMM,
"fp8_blockwise_matmul_deep_gemm" of the results. Every candidate runs in a CUDA graph, so that the
host's cost does not count; short GEMMs run over operands that together do not fit into L2. QuACK
(quack-kernels on PyPI) tunes itself for each shape before it is timed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from bench_matmul import Case, Operands, check
from bench_scaled_matmul import (
    TOLERANCE,
    by_blocks,
    by_rows,
    drawn,
    fp8_operand_sets,
    some_rows,
    spread,
)
from bench_scaled_matmul import check as check_fp8
from peer_module import peer_module, peer_version
from race import captured, race, recorded, speed_text, tera_per_second

from tmaasync import ops

CUBES = (4096, 8192, 12288)
SHAPES = (
    (8192, 7168, 2048),
    (4096, 24576, 1536),
    (512, 4096, 14336),
    (128, 7168, 2048),
)
FP8_SHAPES = (
    (4096, 7168, 16384),
    (4096, 24576, 1536),
    (4096, 7168, 2048),
    (4096, 4096, 7168),
    (128, 7168, 16384),
    (1024, 7168, 2048),
    (16384, 7168, 2048),
)
GRAPH_FLOP = 2e11  # of a CUDA graph: about 0.2 ms

Shape = tuple[int, int, int]


def bf16_operand_sets(m: int, n: int, k: int) -> int:
    return Case(m, n, k).operand_sets


def deep_gemm_of(deep_gemm: ModuleType, operands: Operands) -> Callable[[], Any]:
    weights = operands.b.T
    return lambda: deep_gemm.bf16_gemm_nt(operands.a, weights, operands.theirs)


def quack_of(quack: ModuleType, operands: Operands) -> Callable[[], Any]:
    return lambda: quack.gemm(operands.a, operands.b, out=operands.theirs, tuned=True)


def bf16_runs(
    peer: str, theirs_of: Callable[[Operands], Callable[[], Any]], shape: Shape
) -> dict[str, Callable[[], Any]]:
    operands = Operands.random(Case(*shape))
    theirs = theirs_of(operands)
    operands.multiply()
    check(operands)
    theirs()
    check(operands._replace(ours=operands.theirs))
    return {"tmaasync": operands.multiply, peer: theirs, "torch": operands.multiply_by_torch}


def fp8_runs(deep_gemm: ModuleType, shape: Shape) -> dict[str, Callable[[], Any]]:
    m, n, k = shape
    (a, scale_a), (b, scale_b) = by_rows(drawn(m, k)), by_blocks(drawn(n, k))
    ours, theirs = (
        torch.full((m, n), math.nan, dtype=torch.bfloat16, device="cuda") for _ in range(2)
    )
    dense_scales = scale_b[:, : k // 128].contiguous()
    runs = {
        "tmaasync": lambda: ops.scaled_matmul(a, b.T, scale_a, scale_b.T, out=ours),
        "deep_gemm": lambda: deep_gemm.fp8_gemm_nt((a, scale_a), (b, dense_scales), theirs),
    }
    rows = some_rows(m)
    exact = spread(a[rows], scale_a[rows], rows=1), spread(b, scale_b, rows=128)
    for run, got in zip(runs.values(), (ours, theirs), strict=True):
        run()
        check_fp8(got[rows], *exact, TOLERANCE["block"])
    return runs


def measure(
    peer: str,
    label: str,
    shape: Shape,
    sets: Sequence[dict[str, Callable[[], Any]]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    flop = 2 * math.prod(shape)
    calls = max(len(sets), round(GRAPH_FLOP / flop), 1)
    order = [sets[index % len(sets)] for index in range(calls)]
    graphs = {name: captured([one[name] for one in order]) for name in sets[0]}
    m, n, k = shape
    row: dict[str, Any] = {"case": f"{label} {m} x {n} x {k}", "m": m, "n": n, "k": k}
    row |= {"graphs_of": calls, "operand_sets": len(sets)}
    row |= race(
        graphs,
        rounds=options.rounds,
        seconds_per_slice=options.seconds,
        reference=peer,
        works_per_call=calls,
    )
    row["tflop_per_s"] = tera_per_second(row, flop)
    print(f"{row['case']:32s} {row['tflop_per_s']}  {speed_text(row, peer)}", flush=True)
    return row


def measure_bf16(
    peer: str,
    version: str,
    theirs_of: Callable[[Operands], Callable[[], Any]],
    options: argparse.Namespace,
) -> None:
    with recorded(f"matmul_{peer}", versions={peer: version}) as rows:
        for shape in (*((side, side, side) for side in CUBES), *SHAPES):
            sets = [bf16_runs(peer, theirs_of, shape) for _ in range(bf16_operand_sets(*shape))]
            rows.append(measure(peer, "bfloat16", shape, sets, options))


def measure_deep_gemm(options: argparse.Namespace) -> None:
    deep_gemm = peer_module("deep_gemm", ("bf16_gemm_nt", "fp8_gemm_nt"))
    version = peer_version(deep_gemm)
    with recorded("fp8_blockwise_matmul_deep_gemm", versions={"deep_gemm": version}) as rows:
        for shape in FP8_SHAPES:
            sets = [fp8_runs(deep_gemm, shape) for _ in range(fp8_operand_sets(*shape))]
            rows.append(measure("deep_gemm", "e4m3", shape, sets, options))
    measure_bf16("deep_gemm", version, partial(deep_gemm_of, deep_gemm), options)


def measure_quack(options: argparse.Namespace) -> None:
    quack = peer_module("quack.gemm_interface", ["gemm"])
    measure_bf16("quack", peer_version(peer_module("quack", [])), partial(quack_of, quack), options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["deep_gemm", "quack"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.08, help="of a slice")
    options = parser.parse_args()
    torch.manual_seed(0)
    measure_quack(options) if options.peer == "quack" else measure_deep_gemm(options)


if __name__ == "__main__":
    main()
