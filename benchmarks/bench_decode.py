"""Decode in FP8, and from a paged KV cache: ops.varlen_attention against cuDNN on padded arrays.

Writes section "paged_decode" of the results, in CUDA graphs, and the decode cases of section
"attention_float8", as bench_attention.py does. Inputs are normally distributed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from attention_cases import Case, float8_decode_cases
from bench_attention import (
    check,
    in_float8,
    measure_float8,
    paged_from,
    peer,
)
from race import captured, race, recorded
from torch.nn.attention import SDPBackend

from tmaasync import ops

GRAPH_CALLS = 4  # with keys and values of their own, so that L2 has none of them


def paged_decode_cases() -> list[Case]:
    return [
        Case(32768, 128, 64, 8, False, 1, queries=1),
        Case(8192, 128, 64, 8, False, 32, queries=1),
    ]


def paged_decode_run(
    case: Case, arrays: list[torch.Tensor], size: int, out: torch.Tensor, *, is_float8: bool
) -> Callable[[], Any]:
    """Return a decode of pages of this size; FP8 with a scale of each operand."""
    lengths = (case.positions,) * case.batch
    options: dict[str, Any] = {}
    if is_float8:
        made = [in_float8(array) for array in arrays]
        options["scales"] = tuple(scale for _, scale in made)
        arrays = [operand for operand, _ in made]
    q, k, v = (array.flatten(0, 1) for array in arrays)
    paged, table = paged_from([k.view(torch.uint8), v.view(torch.uint8)], lengths, size)
    ends = [
        torch.arange(case.batch + 1, device="cuda", dtype=torch.int32) * rows
        for rows in (case.rows, case.positions)
    ]
    given = (q, *(pages.view(k.dtype) for pages in paged), *ends, case.rows, case.positions)
    return functools.partial(
        ops.varlen_attention, *given, page_table=table, out=out.flatten(0, 1), **options
    )


def measure_paged_decode(case: Case, rounds: int) -> dict[str, Any]:
    sets = [case.arrays() for _ in range(GRAPH_CALLS)]
    out = torch.full_like(sets[0][0], torch.nan)
    calls = {
        "tmaasync": [paged_decode_run(case, one, 16, out, is_float8=False) for one in sets],
        "pages of 128": [paged_decode_run(case, one, 128, out, is_float8=False) for one in sets],
        "float8": [paged_decode_run(case, one, 16, out, is_float8=True) for one in sets],
        "float8, pages of 128": [
            paged_decode_run(case, one, 128, out, is_float8=True) for one in sets
        ],
        "padded": [functools.partial(ops.attention, *one, out=out) for one in sets],
        "cudnn": [peer(case, SDPBackend.CUDNN_ATTENTION, one) for one in sets],
    }
    in_eight = [operand.double() * scale for operand, scale in map(in_float8, sets[-1])]
    for name in ("tmaasync", "pages of 128", "float8", "float8, pages of 128"):
        calls[name][-1]()
        is_float8 = "float8" in name
        dtype = torch.float8_e4m3fn if is_float8 else torch.bfloat16
        check(replace(case, dtype=dtype), out, in_eight if is_float8 else sets[-1])
    del in_eight
    graphs = {name: captured(runs) for name, runs in calls.items()}
    row = {"case": f"paged, {case.label}", "head_dim": case.head_dim}
    row |= race(graphs, rounds=rounds, reference="cudnn", works_per_call=GRAPH_CALLS)
    read = 2 * case.batch * case.kv_heads * case.positions * case.head_dim
    row["read_tb_per_s"] = {
        name: round(read * (1 if "float8" in name else 2) / us / 1e6, 2)
        for name, us in row["us"].items()
    }
    print(row["case"], row["us"], row["read_tb_per_s"], flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--paged", action="store_true", help="section paged_decode alone")
    options = parser.parse_args()
    torch.manual_seed(0)
    with recorded("paged_decode") as rows:
        rows.extend(measure_paged_decode(case, options.rounds) for case in paged_decode_cases())
    if options.paged:
        return
    with recorded("attention_float8", is_part=True) as rows:
        rows.extend(measure_float8(case, options.rounds) for case in float8_decode_cases())


if __name__ == "__main__":
    main()
