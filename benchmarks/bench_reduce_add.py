"""ops.reduce_add against torch's add_, and, contended, against atomics.

Writes section "reduce_add" of the results. A contended case adds a stack of arrays to one.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from race import geometric_mean, race, recorded, speed_text, tera_per_second

from tmaasync import Kernel, ops

_ATOMICS = """
extern "C" __global__ void add(float* target, const float* source, int size, long long total) {
    const long long step = 1ll * gridDim.x * blockDim.x;
    long long i = 1ll * blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < total; i += step) atomicAdd(target + i % size, source[i]);
}
extern "C" __global__ void add_vectors(
    float4* target, const float4* source, int size, long long total
) {
    const long long step = 1ll * gridDim.x * blockDim.x;
    long long i = 1ll * blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < total; i += step) atomicAdd(target + i % size, source[i]);
}
"""
# Bytes of the target; arrays in the stack.
CONTENDED = ((1 << 14, 16384), (1 << 18, 2048), (1 << 20, 512), (1 << 24, 32))


def whole(mebibytes: int, dtype: torch.dtype) -> dict[str, Any]:
    """Add an array to another."""
    size = (mebibytes << 20) // dtype.itemsize
    source = torch.randint(0, 9, (size,), device="cuda").to(dtype)
    target, other = torch.zeros_like(source), torch.zeros_like(source)
    runs = {
        "tmaasync": lambda: ops.reduce_add(target, source),
        "torch": lambda: other.add_(source),
    }
    return {
        "case": f"add_ {mebibytes} MiB of {str(dtype).removeprefix('torch.')}",
        "kind": "whole",
        "bytes": 3 * source.nbytes,
        "results": (target, other),
        "runs": runs,
        "reference": "torch",
    }


def contended(target_bytes: int, count: int) -> dict[str, Any]:
    """Add a stack of arrays to one."""
    size = target_bytes // 4
    source = torch.randint(0, 9, (count, size), device="cuda").float()
    targets = [torch.zeros(size, device="cuda") for _ in range(4)]
    ours, theirs, vectors, summed = targets
    atomics = Kernel(_ATOMICS, "add")
    by_vectors = Kernel(_ATOMICS, "add_vectors")
    grid = 132 * 8

    runs = {
        "tmaasync": lambda: ops.reduce_add(ours, source),
        "atomics": lambda: atomics(grid, 256, (theirs, source, size, source.numel())),
        "atomics of 16 bytes": lambda: by_vectors(
            grid, 256, (_pointer(vectors), _pointer(source), size // 4, source.numel() // 4)
        ),
        "torch sum": lambda: summed.add_(source.sum(0)),
    }
    return {
        "case": f"{count} arrays of {target_bytes >> 10} KiB into one",
        "kind": "contended",
        "bytes": source.nbytes,
        "results": tuple(targets),
        "runs": runs,
        "reference": "atomics",
    }


def _pointer(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def measure(case: dict[str, Any], rounds: int) -> dict[str, Any]:
    results, runs, reference = (case.pop(name) for name in ("results", "runs", "reference"))
    for run in runs.values():
        run()
    # Small integers: every order of additions gives the same bits.
    if not all(torch.equal(results[0], other) for other in results[1:]):
        raise SystemExit(f"{case['case']}: the sums differ")
    row = dict(case)
    row |= race(runs, rounds=rounds, reference=reference)
    row["tb_per_s"] = tera_per_second(row, row["bytes"], 3)
    print(
        f"{row['case']:40s} {row['tb_per_s']['tmaasync']:6.3f} TB/s  {speed_text(row, reference)}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    sizes = [(64, torch.float32), (1024, torch.float32), (256, torch.bfloat16)]
    with recorded("reduce_add") as rows:
        rows.extend(measure(whole(*case), rounds) for case in sizes)
        rows.extend(measure(contended(*case), rounds) for case in CONTENDED)
    print(f"geometric mean {geometric_mean(rows[: len(sizes)], 'torch'):.3f} x add_")
    print(
        f"geometric mean, contended {geometric_mean(rows[len(sizes) :], 'atomics'):.3f} x atomics"
    )


if __name__ == "__main__":
    main()
