"""Kernels that a user composes of the structured layer, against ops: GEMMs and varlen attention.

Writes section "structured_kernels" of the results: the speed of examples/07_gemm.cu over
ops.matmul, and of examples/08_ragged_attention.cu over ops.varlen_attention, which are tuned per
problem. Section "stream_k" has the stream-K GEMM of docs/cookbook/stream_k.md, the GEMM of the
example with whole tiles of the same size ("whole tiles"), and ops.matmul, where tiles leave SMs
idle in the last wave. Inputs are normally distributed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attention_cases
import torch
from race import race, record, relative_error, speed_text, tera_per_second

from tmaasync import ops

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
# The tile configs that the cost model of ops.matmul prefers.
CONFIGS = {
    4096: {"tile": (128, 256), "cluster": 1, "stages": 4},
    8192: {"tile": (256, 192), "cluster": 2, "stages": 3},
    16384: {"tile": (256, 192), "cluster": 2, "stages": 3},
}
# M, N, K of few waves, and the tiles to try.
STREAM_K_SHAPES = (
    (1536, 2304, 16384),
    (1792, 2560, 16384),
    (2048, 2304, 8192),
    (2304, 4096, 8192),
    (4096, 4352, 8192),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)
STREAM_K_CONFIGS: tuple[dict[str, Any], ...] = (
    {"tile": (128, 256), "cluster": 1, "stages": 4},
    {"tile": (256, 192), "cluster": 2, "stages": 3},
)


def bind(name: str) -> Any:
    """Return an example's function ``bind``; the example reads its sizes from the command line."""
    given, sys.argv = sys.argv, [name, "--gpu"]
    try:
        return runpy.run_path(str(EXAMPLES / f"{name}.py"))["bind"]
    finally:
        sys.argv = given


def device_lines(name: str) -> int:
    """Count the lines of a kernel that are code."""
    lines = (line.strip() for line in (EXAMPLES / f"{name}.cu").read_text().splitlines())
    return sum(1 for line in lines if line and not line.startswith("//"))


def measure(label: str, runs: dict[str, Any], outs: list[torch.Tensor], flops: float) -> Any:
    for run in runs.values():
        run()
    error = relative_error(outs[0], outs[1].double())
    if not error < 1e-2:
        raise SystemExit(f"{label}: relative error {error:.2e}")
    row: dict[str, Any] = {"case": label}
    row |= race(runs, rounds=6, reference="ops", seconds_per_slice=0.1)
    row["tflop_per_s"] = tera_per_second(row, flops)
    print(f"{label:52s} {row['tflop_per_s']}  {speed_text(row, 'ops')}", flush=True)
    return row


def gemms() -> Iterator[dict[str, Any]]:
    bind_gemm = bind("07_gemm")
    for side in CONFIGS:
        a, b = (torch.randn(side, side, device="cuda").bfloat16() for _ in range(2))
        outs = [torch.full((side, side), math.nan, device="cuda").bfloat16() for _ in range(2)]
        runs = {
            "tmaasync": bind_gemm(a, b, outs[0], **CONFIGS[side]),
            "ops": lambda a=a, b=b, out=outs[1]: ops.matmul(a, b.T, out=out),
        }
        row = measure(f"structured_gemm {side}^3", runs, outs, 2 * side**3)
        yield {**row, "device_lines": device_lines("07_gemm")}


def bind_stream_k(*operands: torch.Tensor, **config: Any) -> Any:
    """Return a call of the cookbook's kernel."""
    page = (ROOT / "docs" / "cookbook" / "stream_k.md").read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)  # noqa: S102

    def zeros(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        of_32_bits = torch.zeros(shape, dtype=torch.int32, device="cuda")
        return of_32_bits.view(getattr(torch, dtype))

    return names["bind"](*operands, zeros, **config)


def stream_k_gemms() -> Iterator[dict[str, Any]]:
    bind_gemm = bind("07_gemm")
    for (m, n, k), config in itertools.product(STREAM_K_SHAPES, STREAM_K_CONFIGS):
        a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
        outs = [torch.full((m, n), math.nan, device="cuda").bfloat16() for _ in range(3)]
        runs = {
            "tmaasync": bind_stream_k(a, b, outs[0], **config),
            "ops": lambda a=a, b=b, out=outs[1]: ops.matmul(a, b.T, out=out),
            "whole tiles": bind_gemm(a, b, outs[2], **config),
        }
        tile = "x".join(map(str, config["tile"]))
        yield measure(f"stream_k {m}x{n}x{k}, tile {tile}", runs, outs, 2 * m * n * k)


def attentions() -> Iterator[dict[str, Any]]:
    bind_attention = bind("08_ragged_attention")
    for batch in attention_cases.batches():
        shape = (sum(batch.lengths), batch.heads, batch.head_dim)
        q, k, v = (torch.randn(*shape, device="cuda").bfloat16() for _ in range(3))
        lengths = torch.tensor([0, *batch.lengths], device="cuda").cumsum(0).int()
        longest, outs = max(batch.lengths), [torch.full_like(q, math.nan) for _ in range(2)]
        bound = bind_attention(q, k, v, outs[0], lengths, longest, batch.causal)
        options = {"causal": batch.causal, "out": outs[1]}
        given = (q, k, v, lengths, lengths, longest, longest)
        runs = {
            "tmaasync": bound,
            "ops": lambda given=given, options=options: ops.varlen_attention(*given, **options),
        }
        mask = "causal" if batch.causal else "full"
        row = measure(f"{batch.name}, {mask}", runs, outs, batch.flops)
        yield {**row, "device_lines": device_lines("08_ragged_attention")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("gemm", "attention", "stream_k"))
    only = parser.parse_args().only
    torch.manual_seed(0)
    rows = list(gemms()) if only in (None, "gemm") else []
    rows += attentions() if only in (None, "attention") else []
    if rows:
        print(record("structured_kernels", rows))
    if only in (None, "stream_k"):
        print(record("stream_k", list(stream_k_gemms())))


if __name__ == "__main__":
    main()
