"""What batch-invariant calls cost: decode from pages of 128, and GEMMs of few rows, in CUDA graphs.

Writes section "batch_invariant" of the results. Decode also with other numbers of splits of the
keys than the one that batch-invariant calls have.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from attention_cases import Case
from bench_decode import GRAPH_CALLS, paged_decode_run
from race import captured, race, recorded

from tmaasync import ops
from tmaasync.ops._operation import tile_configs

SPLITS = (1, 16)
DECODE = ((32768, 1), (8192, 4), (8192, 32), (2048, 64), (512, 8))
"""Keys, and sequences."""
MATMULS = ((1, 4096, 14336), (16, 4096, 14336), (128, 7168, 2048), (128, 2048, 7168))


def graph(runs: list[Callable[[], Any]], splits: int | None = None) -> Callable[[], Any]:
    def choose(config: Any) -> Any:
        return replace(config, kv_splits=splits)

    with nullcontext() if splits is None else tile_configs(choose):
        return captured(runs)


def decode(rounds: int) -> Iterator[dict[str, Any]]:
    for keys, batch in DECODE:
        case = Case(keys, 128, 64, 8, False, batch, queries=1)
        sets = [case.arrays() for _ in range(GRAPH_CALLS)]
        out = torch.full_like(sets[0][0], torch.nan)
        runs = [paged_decode_run(case, one, 128, out, is_float8=False) for one in sets]
        same = [functools.partial(run, batch_invariant=True) for run in runs]
        graphs = {"tmaasync": graph(runs), "batch_invariant": graph(same)}
        graphs |= {f"{splits} splits": graph(same, splits) for splits in SPLITS}
        yield {"case": f"paged, {case.label}"} | race(
            graphs, rounds=rounds, reference="tmaasync", works_per_call=GRAPH_CALLS
        )


def matmuls(rounds: int) -> Iterator[dict[str, Any]]:
    for m, n, k in MATMULS:
        sets = [
            [torch.randn(*s, device="cuda").bfloat16() for s in ((m, k), (n, k))] for _ in "1234"
        ]
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        runs = [functools.partial(ops.matmul, a, b.T, out=out) for a, b in sets]
        same = [functools.partial(run, batch_invariant=True) for run in runs]
        graphs = {"tmaasync": captured(runs), "batch_invariant": captured(same)}
        yield {"case": f"matmul {m} x {n} x {k}"} | race(
            graphs, rounds=rounds, reference="tmaasync", works_per_call=len(sets)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    with recorded("batch_invariant") as rows:
        for row in (*decode(rounds), *matmuls(rounds)):
            print(row["case"], row["us"], flush=True)
            rows.append(row)


if __name__ == "__main__":
    main()
